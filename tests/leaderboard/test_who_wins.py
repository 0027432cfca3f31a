"""Methods over kinds of federation: numbers by hand, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_results import made, write
from made_tasks import as_numbers
from mentions import mentions

from flbench.leaderboard.pages import index, overview
from flbench.leaderboard.sentences import sentences
from flbench.leaderboard.table import tables
from flbench.leaderboard.who_wins import Standing, WhoWins, who_wins
from flbench.leaderboard.who_wins_html import kind_id, who_wins_html
from flbench.results.schema import Result

SPECIAL: dict[str, dict[str, Any]] = {
    "fedavg": {"plugin": {"baseline": True}},
    "local-only": {"plugin": {"baseline": True}, "alone": True},
    "oracle": {"plugin": {"uses_true_groups": True}},
}
BOARD = (
    ("s", "digits", {"fedavg": 0.6, "a": 0.8, "b": 0.7, "d": 0.4, "local-only": 0.5}),
    ("t", "digits", {"fedavg": 0.5, "a": 0.5, "b": 0.9, "d": 0.5, "local-only": 0.8}),
    ("u", "fashion-mnist", {"fedavg": 0.6, "a": 0.9, "b": 0.6, "oracle": 0.95}),
)
"""Suite, data set and accuracies: two tables of digits, one of pictures."""
Turn = Callable[[Result], Result]


def results(seeds: int = 3, board: Any = BOARD) -> list[Result]:
    return [
        made(
            accuracy, method=name, seed=seed, mark=suite * 8, dataset=dataset,
            suite={"name": suite}, mb_per_client=2.0 if name == "a" else 1.0,
            **SPECIAL.get(name, {}),
        )
        for suite, dataset, rows in board
        for name, accuracy in rows.items()
        for seed in range(seeds)
    ]  # fmt: skip


def found(folder: Path, seeds: int = 3, turn: Turn = lambda one: one) -> WhoWins:
    wins = who_wins(tables(write(folder, *map(turn, results(seeds)))))
    assert wins is not None
    return wins


def by_name(wins: WhoWins) -> dict[str, Standing]:
    return {one.name: one for one in wins.lines}


def test_the_numbers_of_kinds_and_their_mean_by_hand(tmp_path: Path) -> None:
    wins = found(tmp_path)
    assert list(wins.kinds) == ["digits", "pictures"]
    assert wins.scored == ("digits", "pictures"), "three methods on both are more than four on one"
    one = by_name(wins)
    # errors .4 .2 .3 .6 and .5 .5 .1 .5 of digits: 50 0 33 67 and 80 80 0 80
    digits = {name: one[name].cells["digits"].value for name in ("fedavg", "a", "b", "d")}
    assert digits == pytest.approx({"fedavg": 65, "a": 40, "b": 50 / 3, "d": 220 / 3})
    pictures = {name: one[name].cells["pictures"].value for name in ("fedavg", "a", "b")}
    assert pictures == pytest.approx({"fedavg": 75, "a": 0, "b": 75})
    scores = {name: line.score.value for name, line in one.items() if line.score}
    assert scores == pytest.approx({"a": 20, "b": (50 / 3 + 75) / 2, "fedavg": 70})
    assert [line.name for line in wins.lines] == ["a", "b", "fedavg", "d", "local-only", "oracle"]
    assert [line.name for line in wins.ranked] == ["a", "b", "fedavg"]


def test_more_kinds_with_fewer_methods_are_scored(tmp_path: Path) -> None:
    """Five methods on digits are 20 pairs and five numbers, three on both kinds 12 and six."""
    digits = {"fedavg": 0.6, "a": 0.8, "b": 0.7, "c": 0.5, "d": 0.4}
    pictures = {"fedavg": 0.6, "a": 0.9, "b": 0.6}
    board = (("s", "digits", digits), ("u", "fashion-mnist", pictures))
    wins = who_wins(tables(write(tmp_path, *results(board=board))))
    assert wins is not None and wins.scored == ("digits", "pictures")
    assert [line.name for line in wins.ranked] == ["a", "b", "fedavg"]


def test_what_is_not_ranked_is_measured_by_the_best_that_is(tmp_path: Path) -> None:
    one = by_name(found(tmp_path))
    # local-only: .5 where the best has .2, .2 where it has .1; the oracle: .05 where it has .1
    assert one["local-only"].cells["digits"].value == pytest.approx((60 + 50) / 2)
    assert one["oracle"].cells["pictures"].value == pytest.approx(-100)
    assert (one["local-only"].alone, one["oracle"].alone, one["fedavg"].anchor) == (1, 0, 1)
    assert one["local-only"].score is one["oracle"].score is None
    assert one["oracle"].reference and not one["fedavg"].reference


def test_a_reference_that_lacks_a_table_says_so(tmp_path: Path) -> None:
    board = (BOARD[0], ("t", "digits", {**BOARD[1][2], "oracle": 0.9}), BOARD[2])
    wins = who_wins(tables(write(tmp_path, *results(board=board))))
    assert wins is not None
    oracle = by_name(wins)["oracle"]
    assert oracle.score is None, "two of its three tables are not what the scores are over"
    cell = oracle.cells["digits"]
    assert (cell.tables, cell.of, cell.whole) == (1, 2, False)
    assert "over 1 of 2 tables" in who_wins_html(wins)


def test_training_alone_counts_at_its_best(tmp_path: Path) -> None:
    """In every round it has .7 and .9: .3 where the best has .2, .1 where the best has .1."""
    full = [
        made(accuracy, method="local-only", seed=seed, mark=suite * 8, dataset="digits",
             suite={"name": suite}, config=f"full-{suite}", params={"schedule": "full"},
             **SPECIAL["local-only"])
        for suite, accuracy in (("s", 0.7), ("t", 0.9)) for seed in range(3)
    ]  # fmt: skip
    wins = who_wins(tables(write(tmp_path, *results(), *full)))
    assert wins is not None
    alone = {one.name: one.cells["digits"] for one in wins.lines if one.alone}
    assert {name: cell.value for name, cell in alone.items()} == pytest.approx(
        {"local-only": 55, "local-only (schedule=full)": (100 / 3 + 0) / 2}
    )
    _, digits = sentences(wins)
    assert mentions(digits.text, "0 of 4 methods", "local-only (schedule=full)", "17 %")


def test_training_alone_in_every_round_is_never_taken_for_the_usual_one(tmp_path: Path) -> None:
    """Also where no other row of it is in the table, so that its name alone says no more."""
    board = [one for one in results() if one.method.name != "local-only"]
    full = [
        made(0.7, method="local-only", seed=seed, mark="s" * 8, dataset="digits",
             suite={"name": "s"}, params={"schedule": "full"}, **SPECIAL["local-only"])
        for seed in range(3)
    ]  # fmt: skip
    wins = who_wins(tables(write(tmp_path, *board, *full)))
    assert wins is not None
    assert {one.name for one in wins.lines if one.alone} == {"local-only (schedule=full)"}


def test_an_oracle_that_never_used_its_groups_is_no_line(tmp_path: Path) -> None:
    def idle(one: Result) -> Result:
        ari = 0.0 if one.method.name == "oracle" else None
        return one.model_copy(update={"summary": {**one.summary, "ari": ari}})

    assert "oracle" not in by_name(found(tmp_path, turn=idle))


def test_bytes_are_times_those_of_one_model_for_all(tmp_path: Path) -> None:
    one = by_name(found(tmp_path))
    assert (one["a"].bytes, one["b"].bytes, one["fedavg"].bytes) == (2, 1, 1)
    assert one["a"].work is None, "neither epochs nor times of training are known"


def test_intervals_are_over_seeds_or_clients_within_few_seeds(tmp_path: Path) -> None:
    three, two = found(tmp_path / "three"), found(tmp_path / "two", 2)
    assert [one.drawn for one in three.kinds.values()] == ["suites and seeds", "seeds"]
    assert [one.drawn for one in two.kinds.values()] == [
        "suites and clients within seeds", "clients within seeds",
    ]  # fmt: skip
    for wins in (three, two):  # all seeds and all clients are equal: suites alone differ
        one = by_name(wins)
        assert one["a"].cells["pictures"].ends == pytest.approx((0, 0))
        assert one["a"].cells["digits"].ends == pytest.approx((0, 80))
        assert one["oracle"].cells["pictures"].ends == pytest.approx((-100, -100))


def test_errors_give_the_same_map_as_what_is_right(tmp_path: Path) -> None:
    plain = found(tmp_path / "plain")
    mirrored = found(tmp_path / "mirrored", turn=as_numbers)
    assert [one.name for one in mirrored.lines] == [one.name for one in plain.lines]
    for one, other in zip(plain.lines, mirrored.lines, strict=True):
        assert {kind: cell.value for kind, cell in other.cells.items()} == pytest.approx(
            {kind: cell.value for kind, cell in one.cells.items()}
        )
        assert (one.score is None) == (other.score is None)
    assert sentences(mirrored) == sentences(plain)


def test_too_few_methods_are_no_map(tmp_path: Path) -> None:
    assert who_wins([]) is None
    assert who_wins(tables(write(tmp_path, made(), made(method="b")))) is None


# --- what is said of it ---------------------------------------------------------------------------


def test_sentences_are_computed(tmp_path: Path) -> None:
    leaders, digits = sentences(found(tmp_path))
    assert mentions(leaders.text, "3 methods", "digits and pictures", "a (20.0", "b (45.8")
    assert leaders.kind == ""
    # a and b have 40 and 17, local-only 55
    assert mentions(digits.text, "digits", "2 tables", "2 of 4 methods", "local-only", "55 %")
    assert digits.kind == "digits"


def test_a_best_method_that_is_worse_than_training_alone_saves_nothing(tmp_path: Path) -> None:
    wins = found(tmp_path)
    (alone,) = [one for one in wins.lines if one.alone]
    worse = replace(alone.cells["digits"], value=-108.7, ends=(-293.0, 43.0))
    lines = [one for one in wins.lines if one is not alone]
    lines.append(replace(alone, cells={"digits": worse}))
    *_, digits = sentences(replace(wins, lines=tuple(lines)))
    assert mentions(digits.text, "0 of 4 methods", "109 % (-43 to 293) more error")


def test_what_costs_no_more_than_one_model_for_all_is_named(tmp_path: Path) -> None:
    wins = found(tmp_path)
    lines = tuple(replace(one, work=1.0) for one in wins.lines)
    _, cheap, _ = sentences(replace(wins, lines=lines))
    assert mentions(cheap.text, "fedavg (70.0", "b (45.8"), "a sends twice as much"


def test_the_first_page_has_the_map_and_leads_to_the_tables_of_a_kind(tmp_path: Path) -> None:
    shown = tables(write(tmp_path, *results()))
    wins = who_wins(shown)
    text = index(shown, "", wins)
    (heading,) = re.findall(r"^\| method .+$", text, re.MULTILINE)
    assert [cell.strip() for cell in heading.strip("|").split("|")] == [
        "method", "score", "digits", "pictures", "bytes", "work",
    ]  # fmt: skip
    names = re.findall(r"^\| ([*\w-]+) \|", text.split("## What it says")[0], re.MULTILINE)
    assert names == ["method", "a", "b", "**fedavg**", "d", "*local-only*", "*oracle*"]
    assert "[Tables](#digits)" in text and "\n### Digits\n" in text and "\n### Pictures\n" in text
    assert "| *oracle* | - | - | -100.0 (-100 to -100) |" in overview(shown, [], [], 1, wins)


def test_the_map_of_the_web_page_is_coloured_and_escaped(tmp_path: Path) -> None:
    evil = "<img src=x>"
    wins = found(tmp_path)
    lines = tuple(replace(one, name=evil) if one.name == "b" else one for one in wins.lines)
    text = who_wins_html(replace(wins, lines=lines))
    assert evil not in text and "&lt;img src=x&gt;" in text
    (best,) = re.findall(r"<tr><th[^>]*>a</th>(.+?)</tr>", text)
    # 20, 40 and 0 per cent, each of its shade; twice the bytes
    assert re.findall(r'<td class="(h\d)">([\d.]+)', best) == [
        ("h3", "20.0"), ("h5", "40.0"), ("h0", "0.0"),
    ]  # fmt: skip
    assert "<td>2.0</td>" in best
    assert f'href="#{kind_id("pictures")}"' in text


def test_figures_name_what_is_best_for_its_cost(tmp_path: Path) -> None:
    wins = found(tmp_path)
    lines = tuple(replace(one, work=1.0 if one.name == "b" else 3.0) for one in wins.lines)
    text = who_wins_html(replace(wins, lines=lines))
    bytes_, work = re.findall(r'aria-label="(score of .+?)"', text)
    assert mentions(bytes_, "score of 3 methods against bytes", "b, a")
    assert mentions(work, "score of 3 methods against work", "b, a")
    assert "a: score 20.0, bytes 2.0" in text
    assert text.count('class="own"') == 4, "fedavg is on no front"
