"""Methods across suites: numbers by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from made_results import made, page, twice, write
from mentions import mentions
from scipy.stats import rankdata

from flbench.leaderboard.across import PageTable, parts_of, ranked_blocks, wins
from flbench.leaderboard.html import PAGE, html
from flbench.leaderboard.markdown import anchor, escaped
from flbench.leaderboard.pages import index, overview, suite_page
from flbench.leaderboard.table import tables
from flbench.results.schema import Energy, Result, Tuning
from flbench.suite import Suite, load_suite


def trained(result: Result, seconds: float, **environment: str) -> Result:
    """The same result, with a time of training."""
    times = {"total": seconds + 1, "train": seconds}
    return result.model_copy(update={"seconds": times, "environment": environment})


def board(folder: Path) -> Path:
    """Three methods on two suites, and one more on the second; suite x has no b."""
    for mark, suite, scores in (
        ("aaaaaaaa", "s", {"fedavg": 0.6, "a": 0.8, "b": 0.7}),
        ("bbbbbbbb", "t", {"fedavg": 0.5, "a": 0.5, "b": 0.9, "c": 0.4}),
        ("cccccccc", "x", {"fedavg": 0.5, "a": 0.7}),
    ):
        for name, accuracy in scores.items():
            one = made(
                accuracy, method=name, mark=mark, suite={"name": suite},
                plugin={"baseline": name == "fedavg"},
            )  # fmt: skip
            write(folder, *twice(trained(one, {"a": 30.0, "b": 11.0}.get(name, 10.0))))
    return folder


def parts(folder: Path) -> dict[str, PageTable]:
    found = tables(folder)
    return {part.title: part for part in parts_of(found)}


def test_wins_by_hand() -> None:
    found = wins({
        "one": {"a": {0: 0.5, 1: 0.7}, "b": {0: 0.4, 1: 0.6}, "c": {0: 0.4}},
        "two": {"a": {0: 0.5, 1: 0.5}, "b": {1: 0.6, 2: 0.0}},
        "three": {"a": {5: 0.1 + 0.2}, "b": {5: 0.3}, "d": {9: 0.9}},
    })  # fmt: skip
    assert found["a", "b"].tolist() == [1.5, 3], "won on one, lost on the common seed, a tie"
    assert found["b", "a"].tolist() == [1.5, 3]
    assert found["c", "a"].tolist() == [0, 1]
    assert found["b", "c"].tolist() == [0.5, 1], "on seed 0 only"
    assert ("a", "d") not in found, "no common seed"
    assert ("c", "d") not in found, "no common table"


def test_wins_agree_with_ranks_where_no_table_has_a_gap() -> None:
    scores = np.random.default_rng(1).integers(0, 6, size=(7, 5)) / 5
    found = wins({
        f"t{at}": {f"m{m}": {0: float(value)} for m, value in enumerate(row)}
        for at, row in enumerate(scores)
    })  # fmt: skip
    ranks = rankdata(-scores, axis=1).sum(axis=0)
    for m in range(5):
        won = sum(pair[0] for (one, _), pair in found.items() if one == f"m{m}")
        assert won == 7 * 5 - ranks[m]


def test_the_standings_of_a_block(tmp_path: Path) -> None:
    part = parts(board(tmp_path))["At defaults: 3 methods on 2 tables"]
    assert part.headings == (
        "method", "average rank", "improvability", "95 % interval", "to fedavg",
        "95 % interval to fedavg", "work", "seconds", "MB/client",
    )  # fmt: skip
    # errors .4 .2 .3 and .5 .5 .1 of fedavg, a, b: 50 0 33.3 and 80 80 0 per cent
    assert part.lines == (
        ("b", "1.50", "16.7", "0.0 to 33.3", "-48.3", "-80.0 to -16.7", "~1.1", "12.0", "1.00"),
        ("a", "1.75", "40.0", "0.0 to 80.0", "-25.0", "-50.0 to +0.0", "~3.0", "31.0", "1.00"),
        ("fedavg", "2.75", "65.0", "50.0 to 80.0", "", "", "~1.0", "11.0", "1.00"),
    )
    assert mentions(part.caption, "2 tables", "2 suites")
    assert mentions(part.caption, "toy")
    assert "less than 2.34, Nemenyi's" in part.caption, "2.343 sqrt(3 4 / 12)"


def test_a_cost_that_one_table_lacks_is_missing(tmp_path: Path) -> None:
    for mark in ("aaaaaaaa", "bbbbbbbb"):
        for name in ("b", "c", "fedavg"):
            told = {"simulated_seconds": 3.0} if mark == "bbbbbbbb" or name == "b" else {}
            one = made(0.5, method=name, mark=mark, suite={"name": mark}, **told)
            watts = Energy(meter="m", cpu=1.0, gpu=2.0, memory=0.5)
            if name == "c":
                one = one.model_copy(update={"energy": watts})
            write(tmp_path, one)
    part = parts(tmp_path)["At defaults: 3 methods on 2 tables"]
    assert part.headings[-2:] == ("sim. s", "Wh")
    assert {line[0]: line[-2:] for line in part.lines} == {
        "b": ("3", ""), "c": ("", "3.500"), "fedavg": ("", "")
    }  # fmt: skip


def test_who_beats_whom(tmp_path: Path) -> None:
    part = parts(board(tmp_path))["Who beats whom: 3 methods"]
    assert part.headings == ("method", "mean", "1", "2", "3")
    assert part.lines == (  # of suites s and t, which hold all three
        ("1 b", "75", "", "50", "100"),
        ("2 a", "62", "50", "", "75"),
        ("3 fedavg", "12", "0", "25", ""),
    )


def test_every_method_against_one_model_for_all(tmp_path: Path) -> None:
    write(board(tmp_path), made(0.9, method="z", mark="dddddddd", suite={"name": "lonely"}))
    write(tmp_path, made(0.9, method="c", mark="bbbbbbbb", suite={"name": "t"}, seed=7))
    part = parts(tmp_path)["Every method against fedavg"]
    assert part.lines == (
        ("a", "3", "3", "2.5", "+13.3", "+0.0", "+20.0"),
        ("b", "2", "2", "2", "+25.0", "+10.0", "+40.0"),
        ("c", "1", "1", "0", "-10.0", "-10.0", "-10.0"),
        ("z", "1", "0", "", "", "", ""),
    )


def test_methods_by_work(tmp_path: Path) -> None:
    part = parts(board(tmp_path))["By work: 3 of these methods"]
    # fedavg: 3 rounds of 2 epochs, half the clients: 3 epochs per client; a trains three times
    # as long; b is better with less, and fedavg does about the same work as b
    assert part.lines == (
        ("fedavg", "~1.0", "~3", "65.0", ""),
        ("b", "~1.1", "~3", "16.7", "yes"),
        ("a", "~3.0", "~9", "40.0", ""),
    )
    lacking = made(0.3, method="b", mark="aaaaaaaa", suite={"name": "s"})
    for path in (tmp_path / "aaaaaaaa").rglob("b/*/seed-*.json"):
        path.unlink()
    write(tmp_path, *twice(lacking))
    part = parts(tmp_path)["By work: 2 of these methods"]
    assert part.caption.endswith(" Not known for b.")
    lines = parts(tmp_path)["At defaults: 3 methods on 2 tables"].lines
    assert {line[0]: line[6] for line in lines} == {"a": "~3.0", "b": "", "fedavg": "~1.0"}
    assert [line[0] for line in part.lines] == ["fedavg", "a"]


def counted(result: Result, *epochs: float, accuracy: Sequence[float | None] = ()) -> Result:
    """The same result, with the epochs trained until each round, and its accuracy by round."""
    known = list(accuracy or (0.1, result.summary["accuracy_mean"]))
    curves = {"accuracy": known, "trained_epochs": list(epochs)}
    summary = {**result.summary, "trained_epochs": epochs[-1]}
    return result.model_copy(update={"curves": curves, "summary": summary})


def test_epochs_that_are_counted_are_not_estimated(tmp_path: Path) -> None:
    one = trained(made(0.6, method="a"), 50.0)
    nothing = trained(made(0.6, method="idle"), 10.0)
    write(tmp_path, trained(made(0.5, plugin={"baseline": True}), 10.0), counted(one, 3, 6))
    write(tmp_path, counted(nothing, 0, 0))
    (table,) = tables(tmp_path)
    idle, row = (next(row for row in table.rows if row.name == one) for one in ("idle", "a"))
    assert (idle.work, idle.counted) == (0.0, True)
    assert (row.work, row.epochs, row.counted) == (2.0, 6.0, True), "of 3, not 5 times as long"
    text = page(tmp_path)
    assert "| 6 |" in text and "| ~3 |" in text.replace("\\", "")


def test_accuracy_at_equal_work_by_hand(tmp_path: Path) -> None:
    # one cohort in every round makes 3 epochs per client; up to 3.3 is taken to be the same
    curve = (0.5, None, 0.4, 0.6)
    one = made(0.6, method="a")
    cases = {
        (1, 2, 3, 3.3): 0.6, (1, 2, 3.3, 3.4): 0.4, (1, 2, 4, 5): 0.5, (3.4, 4, 5, 6): None
    }  # fmt: skip
    for at, (epochs, expected) in enumerate(cases.items()):
        folder = write(tmp_path / str(at), counted(one, *epochs, accuracy=curve))
        (table,) = tables(folder)
        assert table.rows[0].at_equal_work() == ({} if expected is None else {0: expected})


def test_accuracy_at_equal_work_of_a_time(tmp_path: Path) -> None:
    # twice the time in four rounds: three rounds are 1.5 times the work
    curves = {"accuracy": [0.2, 0.3, 0.4, 0.6]}
    twice_as_long = trained(made(0.6, method="a"), 20.0).model_copy(update={"curves": curves})
    write(tmp_path, trained(made(0.5, plugin={"baseline": True}), 10.0), twice_as_long)
    write(tmp_path, made(0.6, method="unknown"))
    (table,) = tables(tmp_path)
    found = {row.name: row.at_equal_work() for row in table.rows}
    assert found == {"fedavg": {0: 0.5}, "a": {0: 0.4}, "unknown": {}}


def test_equal_work_is_a_track_with_a_ranking(tmp_path: Path) -> None:
    for mark in ("aaaaaaaa", "bbbbbbbb"):
        for name, accuracy, epochs in (
            ("everybody", 0.9, (3, 6)), ("b", 0.8, (1, 3)), ("fedavg", 0.7, (1, 3))
        ):  # fmt: skip
            one = made(
                accuracy, method=name, mark=mark, suite={"name": mark},
                plugin={"baseline": name == "fedavg"},
            )  # fmt: skip
            write(tmp_path, *twice(counted(one, *epochs)))
    found = parts(tmp_path)
    ranks = {
        title: [(line[0], line[1], line[2]) for line in found[title].lines]
        for title in ("At defaults: 3 methods on 2 tables", "At equal work: 3 methods on 2 tables")
    }
    assert list(ranks.values()) == [
        [("everybody", "1.00", "0.0"), ("b", "2.00", "50.0"), ("fedavg", "3.00", "66.7")],
        [("b", "1.00", "0.0"), ("fedavg", "2.00", "33.3"), ("everybody", "3.00", "77.8")],
    ], "errors .1 .2 .3; after half its rounds everybody has .9"
    assert found["At equal work: 3 methods on 2 tables"].headings[-1] == "work"
    assert found["Tracks"].lines == (
        ("at defaults", "3", "2", "3 methods on 2 tables"),
        ("at equal work", "3", "2", "3 methods on 2 tables"),
    )


def test_tuned_rows_are_ranked_among_their_budget_only(tmp_path: Path) -> None:
    for mark in ("aaaaaaaa", "bbbbbbbb"):
        suite = {"name": mark}
        for at, name in enumerate("abc"):
            write(tmp_path, *twice(made(0.5 + at / 10, method=name, mark=mark, suite=suite)))
            for budget in (8, 16):
                search = Tuning(budget=budget, tried=8, seeds=[100], score="accuracy")
                best = made(
                    0.9 - 0.35 * at, method=name, mark=mark, suite=suite, tuning=search,
                    config=f"{budget}{name}{mark}",
                )  # fmt: skip
                if budget == 8 or name == "a":
                    write(tmp_path, *twice(best))
    found = parts(tmp_path)
    assert found["Tracks"].lines == (
        ("at defaults", "3", "2", "3 methods on 2 tables"),
        ("tuned, budget 8", "3", "2", "3 methods on 2 tables"),
        ("tuned, budget 16", "1", "2", ""),
    )
    assert [line[0] for line in found["At defaults: 3 methods on 2 tables"].lines] == list("cba")
    tuned = found["Tuned, budget 8: 3 methods on 2 tables"]
    assert [(line[0], line[1]) for line in tuned.lines] == [
        ("a", "1.00"), ("b", "2.00"), ("c", "3.00")
    ]  # fmt: skip
    assert not any(title.startswith("Tuned, budget 16") for title in found)
    ranks = {row.name: row.rank for row in tables(tmp_path)[0].rows}
    assert [ranks[f"{name} (tuned, budget 8)"] for name in "abc"] == [1, 2, 3]
    assert [ranks[name] for name in "cba"] == [1, 2, 3], "as if nothing had been tuned"


def test_work_is_compared_on_one_kind_of_machine(tmp_path: Path) -> None:
    plain = {"baseline": True}
    write(tmp_path, trained(made(0.5, plugin=plain), 10.0, threads="1"))
    write(tmp_path, trained(made(0.5, plugin=plain, seed=1), 20.0))
    write(tmp_path, made(0.4, method="alone", plugin=plain, alone=True))
    write(
        tmp_path,
        trained(made(0.6, method="a"), 50.0, threads="4"),
        trained(made(0.6, method="a", seed=1), 50.0, python="3.99"),
        trained(made(0.6, method="b"), 50.0, threads="4"),
        made(0.6, method="c"),
        trained(made(0.6, method="d", seed=1), 50.0, flbench="0.9"),
    )
    (table,) = tables(tmp_path)
    rows = {row.name: (row.work, row.epochs) for row in table.rows}
    assert rows == {
        "fedavg": (1.0, 3.0), "a": (2.5, 7.5), "b": (None, None), "c": (None, None),
        "alone": (None, None), "d": (None, None),
    }  # fmt: skip


def test_without_fedavg_nothing_is_said_of_it(tmp_path: Path) -> None:
    for mark in ("aaaaaaaa", "bbbbbbbb"):
        for name, accuracy in (("a", 0.5), ("b", 0.6), ("c", 0.7)):
            write(tmp_path, made(accuracy, method=name, mark=mark, suite={"name": mark}))
    found = parts(tmp_path)
    title = "At defaults: 3 methods on 2 tables"
    assert list(found) == ["Tracks", title, "Who beats whom: 3 methods"]
    assert "to fedavg" not in found[title].headings
    assert "fedavg" not in found[title].caption


def test_methods_without_a_common_seed_have_no_standing(tmp_path: Path) -> None:
    for mark in ("aaaaaaaa", "bbbbbbbb"):
        for seed, name in enumerate("abc"):
            write(tmp_path, made(0.5, method=name, mark=mark, seed=seed, suite={"name": mark}))
    assert list(parts(tmp_path)) == ["Tracks"]


def test_one_table_is_no_comparison_across_suites(tmp_path: Path) -> None:
    assert parts(write(tmp_path, made(0.5), made(0.6, method="b"))) == {}


def test_tables_in_which_clients_join_late_are_not_among_them(tmp_path: Path) -> None:
    found = tables(board(tmp_path))
    late = replace(found[0], settings={**found[0].settings, "unseen": 0.2}, fingerprint="late")
    assert parts_of([*found, late]) == parts_of(found)
    assert ranked_blocks([*found, late]) == ranked_blocks(found)


def test_both_pages_show_every_part(tmp_path: Path) -> None:
    found = tables(board(tmp_path))
    every = parts_of(found)
    text, web = overview(found, every, [], 9), html(found)
    index, rows = web[PAGE].decode(), b"".join(web.values()).decode()
    for part in every:
        assert f"\n## {part.title}\n" in text
        assert f"<h3>{escape(part.title)}</h3>" in index
        assert f"- [{part.title}](#{anchor(part.title)})" in text
    assert "| 1 b | 75 | - | 50 | 100 |" in text
    assert '{"cells":["1 b","75","-","50",' in rows
    assert all(f"\n- {escaped(note)}\n" in text for part in every for note in part.notes)
    assert all(f">{escape(note)}</p>" in index for part in every for note in part.notes)
    assert any(part.notes for part in every)
    assert parts_of(found) == every


def test_a_superseded_suite_stands_last_and_counts_in_no_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str, dataset: str) -> Suite | None:
        about = {"name": name, "version": 1, "superseded_by": "newer"}
        return load_suite("iid").model_copy(update=about) if name == "a-old" else None

    without = tables(board(tmp_path / "without"))
    old = [
        made(score, method=name, mark="dddddddd", suite={"name": "a-old"})
        for name, score in {"fedavg": 0.1, "a": 0.2, "b": 0.9}.items()
    ]
    tuning = Tuning(budget=2, tried=2, seeds=[9], score="accuracy")
    old += [one.model_copy(update={"tuning": tuning}) for one in old]
    old = [
        one.model_copy(
            update={"fingerprint": one.fingerprint.model_copy(update={"config": f"c{at}"})}
        )
        for at, one in enumerate(old)
    ]
    folder = write(board(tmp_path / "old"), *twice(*(trained(one, 10.0) for one in old)))
    assert parts_of(tables(folder)) != parts_of(without), "it would count"
    monkeypatch.setattr("flbench.leaderboard.table.suite_of", installed)
    found = tables(folder)
    assert [table.suite for table in found] == ["s", "t", "x", "a-old"]
    assert found[-1].superseded_by == "newer"
    assert [row.rank for row in found[-1].compared] != [], "its own rows are as they were"
    assert (parts_of(found), ranked_blocks(found)) == (parts_of(without), ranked_blocks(without))

    page_, lines = html(found)[PAGE].decode(), suite_page(found[-1:], "results", {}).splitlines()
    assert mentions(page_, "a-old", "superseded by newer")
    assert "superseded by newer" in index(found, "").splitlines()[-1]
    heading, said, opened = (
        next(at for at, line in enumerate(lines) if text in line)
        for text in ("## a-old", "newer", "<details>")
    )
    table = next(at for at, line in enumerate(lines) if line.startswith("|"))
    assert heading < said < opened < table < lines.index("</details>")
