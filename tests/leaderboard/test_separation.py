"""How many seeds would separate two rows: what is said of made results."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_results import made, twice, write
from mentions import mention, mentioning, mentions

from flbench.errors import UserError
from flbench.leaderboard.separation import separations
from flbench.leaderboard.table import tables, tables_of
from flbench.results.schema import Tuning


def said(folder: Path, *names: str) -> list[str]:
    first, second = names
    return [line for one in separations(tables(folder), (first, second)) for line in one.lines()]


def test_two_rows_of_a_table(tmp_path: Path) -> None:
    # differences .3, .32 and .1 of a and b; means of seeds vary by .1217
    for seed, accuracy in enumerate((0.8, 0.82, 0.6)):
        write(tmp_path, made(accuracy, method="a", seed=seed), made(0.5, method="b", seed=seed))
    write(tmp_path, *twice(made(0.7, method="c")), made(0.9, seed=0, method="few"))
    write(tmp_path, *twice(made(0.9, method="o", plugin={"uses_true_groups": True})))
    search = Tuning(budget=8, tried=8, seeds=[100], score="accuracy")
    write(tmp_path, *twice(made(0.9, method="c", tuning=search, config="t")))
    (found,) = separations(tables(tmp_path), ("a", "b"))
    assert found.difference == pytest.approx(0.24)
    assert found.interval == pytest.approx((-0.0622, 0.5422), abs=1e-4)
    assert (found.seeds, found.pairs, found.separated) == (3, 3, False)
    assert found.alone == 5, "effect 1.97"
    assert found.together == 6, "at level .05 / 3"
    assert said(tmp_path, "a", "b") == [
        mentioning(
            "toy", "5u1te000", "a less b", "+0.2400", "95 %", "-0.0622", "0.5422", "3 common"
        ),
        mentioning("5 seeds", "80 %"),
        mentioning("3 pairs", "6 seeds", "80 %"),
    ]
    assert mentions(said(tmp_path, "b", "c")[2], "3 pairs", "2 seeds")
    assert said(tmp_path, "b", "o")[2].endswith("they are not ranked together")
    assert said(tmp_path, "b", "c (tuned, budget 8)")[2].endswith("they are not ranked together")
    assert mentions(said(tmp_path, "few", "a")[1], "nothing", "two or more")


def test_equal_rows_give_no_number(tmp_path: Path) -> None:
    write(tmp_path, *twice(made(0.5, method="a"), made(0.5, method="b")))
    assert said(tmp_path, "a", "b")[1:] == [mentioning("no difference", "no number of seeds")]


def test_a_method_stands_for_its_row_at_defaults(tmp_path: Path) -> None:
    for mode, config in (("x", "one"), ("y", "other")):
        write(tmp_path, *twice(made(0.5, method="a", params={"mode": mode}, config=config)))
    write(tmp_path, *twice(made(0.4, method="b")))
    (found,) = separations(tables(tmp_path), ("a", "b"))
    assert found.rows == ("a (mode=x)", "b")
    with pytest.raises(UserError, match=mention("a and a (mode=x)")):
        separations(tables(tmp_path), ("a", "a (mode=x)"))


def test_every_table_with_both_rows_is_asked(tmp_path: Path) -> None:
    for mark in ("01234567", "5u1te000"):
        write(tmp_path, *twice(made(0.5, method="a", mark=mark), made(0.4, method="b", mark=mark)))
    write(tmp_path, made(0.4, method="z", mark="01234567", seed=5))
    assert len(separations(tables(tmp_path), ("a", "b"))) == 2
    with pytest.raises(UserError, match=mention("q", "a, b, z")):
        separations(tables(tmp_path), ("a", "q"))
    with pytest.raises(UserError, match=mention("no table", "a and z")):
        separations(tables(tmp_path), ("a", "z"))
    with pytest.raises(UserError, match=mention("two rows", "got 'a' twice")):
        separations(tables(tmp_path), ("a", "a"))
    with pytest.raises(UserError, match=mention("x", "toy")):
        tables_of(tables(tmp_path), ["x"], tmp_path)
