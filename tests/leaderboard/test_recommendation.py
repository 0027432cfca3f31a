"""Which method for a federation: distances, expected gains and regrets computed by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_results import made, write
from mentions import mention, mentioning, mentions
from scipy import stats
from toy import Typed

from flbench.errors import UserError
from flbench.leaderboard import recommendation as rule
from flbench.leaderboard.recommendation import Evidence, FederationTraits
from flbench.leaderboard.table import tables

BASES = ("one", "alone")


def table(
    suite: str,
    gains: Mapping[str, float],
    traffic: Mapping[str, float] | None = None,
    **about: Any,
) -> Evidence:
    """A table by hand; both baselines are in it, the better one with a gain of 0."""
    return Evidence(
        title=f"{suite} on toy",
        suite=suite,
        federation=FederationTraits(**about),
        gains={"one": -0.1, "alone": 0.0, **gains},
        traffic={"one": 1.0, "alone": 0.0, **(traffic or {})},
        baselines=BASES,
    )


def test_labels_that_a_client_holds_in_effect() -> None:
    assert rule.held_labels([{0: 5, 1: 5}, {2: 3, 3: 3}]) == 0.5, "two of four"
    assert rule.held_labels([{0: 1, 1: 0}, {1: 9}]) == 0.5, "one of two; a count of 0 is none"
    assert rule.held_labels([{0: 2, 1: 2}, {0: 1}]) == pytest.approx(2**0.5 / 2, abs=1e-6)
    assert rule.held_labels([{}, {0: 1}]) is None
    assert rule.held_labels([]) is None


@pytest.mark.parametrize("alpha", [0.1, 1.0, 20.0])
def test_labels_of_a_dirichlet_distribution_are_those_of_many_draws(alpha: float) -> None:
    shares = np.random.RandomState(0).dirichlet([alpha] * 5, size=20_000)
    entropies = stats.entropy(shares, axis=1)
    assert rule.dirichlet_labels(alpha, 5) == pytest.approx(np.exp(entropies.mean()) / 5, rel=0.01)


def test_the_distance_is_the_mean_of_differences_over_ranges() -> None:
    known = [
        table("a", {}, clients=10, labels=0.2, groups=True),
        table("b", {}, clients=1000, labels=0.6, groups=False),
        table("c", {}, clients=100, labels=None, groups=False),
    ]
    asked = FederationTraits(clients=100, labels=0.4, samples=7)
    # clients: a half of the logarithm's range from a and b, none from c; labels: a half from both
    assert rule.distances(asked, known) == pytest.approx([0.5, 0.5, 0.0])
    assert rule.distances(FederationTraits(groups=True), known) == [0.0, 1.0, 1.0]
    assert rule.distances(FederationTraits(samples=7), known) == [1.0, 1.0, 1.0], (
        "nothing in common"
    )
    far = rule.distances(FederationTraits(clients=10**9), known)
    assert far == [1.0, 1.0, 1.0], "beyond the range counts as its whole"
    assert rule.distances(FederationTraits(clients=10), known[:1]) == [0.0], (
        "no range, no difference"
    )
    assert rule.distances(FederationTraits(clients=20), known[:1]) == [1.0]


def test_near_tables_weigh_more_and_only_so_many_count() -> None:
    known = [
        table(name, {}, labels=share) for name, share in zip("abc", (0.0, 0.4, 1.0), strict=True)
    ]
    near = rule.nearest(FederationTraits(labels=0.1), known, count=2)
    assert [one.table.suite for one in near] == ["a", "b"]
    assert [one.distance for one in near] == pytest.approx([0.1, 0.3])
    total = 1 / 0.2 + 1 / 0.4
    assert [one.weight for one in near] == pytest.approx([5 / total, 2.5 / total])


def test_all_tables_that_are_as_near_as_the_last_count() -> None:
    shares = {"a": 0.0, "b": 0.4, "c": 0.4, "d": 1.0}
    known = [table(name, {}, labels=share) for name, share in shares.items()]
    near = rule.nearest(FederationTraits(labels=0.0), known, count=2)
    assert [one.table.suite for one in near] == ["a", "b", "c"]
    assert sum(one.weight for one in near) == pytest.approx(1)


def test_a_method_that_may_not_be_used_is_not_named() -> None:
    gains, moved = {"cheap": 0.2, "dear": 0.3}, {"cheap": 1.0, "dear": 5.0}
    near = rule.on_average([table(name, gains, moved) for name in "ab"])
    assert {*rule.usable(near)} == {"alone", "cheap", "dear", "one"}
    assert {*rule.usable(near, most_traffic=1.0)} == {"alone", "cheap", "one"}
    assert {*rule.usable(near, allowed={"dear"})} == {"dear"}
    assert len(rule.usable(near)["dear"]) == 2


def test_the_interval_is_the_usual_one_for_equal_weights() -> None:
    values = [0.1, 0.4, 0.1, 0.2]
    middle, low, high = rule.predicted(values, [2.0] * 4)
    half = stats.t.ppf(0.975, 3) * np.std(values, ddof=1) * np.sqrt(1 + 1 / 4)
    assert (middle, low, high) == pytest.approx((0.2, 0.2 - half, 0.2 + half))
    middle, low, high = rule.predicted([0.0, 1.0], [3.0, 1.0])
    square = 0.75**2 + 0.25**2
    deviation = np.sqrt((0.75 * 0.25**2 + 0.25 * 0.75**2) / (1 - square))
    half = stats.t.ppf(0.975, 1 / square - 1) * deviation * np.sqrt(1 + square)
    assert (middle, high) == pytest.approx((0.25, 0.25 + half))


def neighbours(*found: tuple[Evidence, float]) -> list[rule.Neighbour]:
    return [rule.Neighbour(one, 0.0, weight) for one, weight in found]


def test_a_method_needs_enough_tables_and_the_best_comes_first() -> None:
    near = neighbours(
        (table("a", {"x": 0.1, "y": 0.9, "z": 0.2}, {"x": 2.0, "z": 0.5}), 0.5),
        (table("b", {"x": 0.3, "y": 0.9, "z": 0.2}, {"x": 4.0, "z": 0.5}), 0.25),
        (table("c", {"x": 0.7, "z": 0.2}, {"x": 4.0, "z": 0.5}), 0.25),
    )
    found = {one.method: one for one in rule.advise(near)}
    assert list(found) == ["x", "z", "alone", "one"], "y is in two tables only"
    assert found["x"].gain == pytest.approx(0.05 + 0.075 + 0.175)
    assert found["x"].traffic == pytest.approx(3.0)
    assert (found["z"].interval, found["x"].tables) == ((pytest.approx(0.2), pytest.approx(0.2)), 3)
    assert -1 <= found["x"].interval[0] < found["x"].gain < found["x"].interval[1] <= 1
    names = [one.method for one in rule.advise(near, most_traffic=0.5)]
    assert names == ["z", "alone"]
    assert rule.advise(near, {"alone", "one", "z"})[0].method == "z"


def test_a_suite_is_left_out_with_all_its_tables() -> None:
    """Of three tables of other suites every one is needed: `x` is the best there, but not here."""
    known = [
        table("a", {"x": 0.4, "y": 0.1}, labels=0.1),
        table("b", {"x": 0.4, "y": 0.1}, labels=0.2),
        table("c", {"x": 0.4, "y": 0.1}, labels=0.3),
        table("d", {"x": -0.2, "y": 0.3}, labels=0.9),
        replace(table("d", {"x": -0.3, "y": 0.3}, labels=1.0), title="d on other"),
    ]
    found = rule.score(known)
    rows = {row["table"]: row for row in found["rows"]}
    assert rows["d on toy"]["recommended"] == "x"
    assert rows["d on toy"]["regret"] == {
        "nearest": 0.5, "on average": 0.5, "one": 0.4, "alone": 0.3, "at random": 0.3,
    }  # fmt: skip
    assert {title for title, _ in rows["d on toy"]["nearest"]} == {f"{s} on toy" for s in "abc"}
    # For a: b and c (+.4) are nearer than d (-.2, -.3); all with the same weight, y has .2, x .075.
    assert (rows["a on toy"]["recommended"], rows["a on toy"]["on_average"]) == ("x", "y")
    assert rows["a on toy"]["regret"]["on average"] == pytest.approx(0.3)
    assert found["mean"]["suites"] == 4
    assert found["mean"]["tables"] == 5
    assert found["mean"]["regret"]["one"] == pytest.approx((3 * 0.5 + 0.4 + 0.4) / 5)
    saved = [row["regret"]["on average"] - row["regret"]["nearest"] for row in found["rows"]]
    assert found["mean"]["saved"] == pytest.approx(sum(saved) / 5)
    low, high = found["mean"]["saved_interval"]
    assert low <= found["mean"]["saved"] <= high
    assert rule.score(known) == found


@pytest.mark.parametrize(
    ("ends", "word"),
    [([0.01, 0.2], "better"), ([-0.2, -0.01], "worse"), ([-0.1, 0.1], "no better")],
)
def test_the_verdict_follows_from_the_interval(ends: list[float], word: str) -> None:
    assert f"choose {word} than" in rule.verdict({"saved_interval": ends})


def test_one_suite_cannot_be_scored() -> None:
    with pytest.raises(UserError, match=mention("tables", "suites")):
        rule.score([table("a", {})])


# --- from result files --------------------------------------------------------------------------


def results(suite: str, *, shift: float = 0.0, **more: Any) -> list[Any]:
    """Seven methods and the two baselines on one table; `m0` is the best, then `m1`, ..."""
    mark = f"mark-{suite}"
    told = {"mark": mark, "suite": {"name": suite, **more}}
    base = {"plugin": {"baseline": True}}
    return [
        made(0.5 + shift, method="one", **base, **told, mb_per_client=2.0),
        made(0.6 + shift, method="alone", alone=True, **base, **told, mb_per_client=0.0),
        *(made(0.7 - n / 100 + shift, method=f"m{n}", **told) for n in range(5)),
        made(0.99, method="told", plugin={"uses_true_groups": True}, **told),
        made(0.98, method="m0+m1", **told),
    ]


def test_a_table_becomes_evidence(tmp_path: Path) -> None:
    few = [one for one in results("few") if one.method.name != "m4"]
    domains = {"partition": {"name": "by-domain"}, "participation": 0.1}
    attacked = results("attacked", plugins=[{"name": "sign-flip"}])
    found = rule.evidence(tables(write(tmp_path, *results("s", **domains), *few, *attacked)))
    assert [one.suite for one in found] == ["s"], "four methods beside the baselines are too few"
    (one,) = found
    assert one.baselines == ("alone", "one")
    assert {name: round(gain, 6) for name, gain in one.gains.items()} == {
        "alone": 0.0, "one": -0.1, "m0": 0.1, "m1": 0.09, "m2": 0.08, "m3": 0.07, "m4": 0.06,
    }  # fmt: skip
    assert one.traffic == {"alone": 0.0, "one": 1.0, **{f"m{n}": 0.5 for n in range(5)}}
    assert one.federation == FederationTraits(
        clients=4,
        participation=0.1,
        labels=None,
        samples=12.0,
        domains=True,
        groups=False,
        networks=False,
    )
    assert one.federation.axes()["participation"] == log(0.1)
    assert rule.evidence(tables(tmp_path), rule.NEWCOMERS) == []


def test_tables_in_which_clients_join_late_count_for_these_alone(tmp_path: Path) -> None:
    late = [
        one.model_copy(update={"summary": {**one.summary, rule.NEWCOMERS: 0.3}})
        for one in results("late", unseen=0.2)
    ]
    found = tables(write(tmp_path, *results("s"), *late))
    assert [one.suite for one in rule.evidence(found)] == ["s"]
    assert [one.suite for one in rule.evidence(found, rule.NEWCOMERS)] == ["late"]


@pytest.mark.slow
def test_the_command_answers_and_says_what_it_used(typed: Typed, tmp_path: Path) -> None:
    found = [one for name in "abcd" for one in results(name)]
    folder = str(write(tmp_path / "R", *found))
    code, out, err = typed("recommend", "--clients", "4", "--results", folder)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert mentions(lines[0], "4 nearest", "4 tables", "clients", "0")
    assert mentions(lines[1], "0.00", "toy", "mark-a", "7", "m0", "+10.0", "weight 0.25")
    assert "  m0       +10.0    +10.0 to +10.0     0.5x  4" in lines
    assert "try first: m0" in lines
    assert mentions(lines, "0.0", "nearest")
    assert any(line.startswith("Near tables choose no better") for line in lines)
    _, out, _ = typed("recommend", "--clients", "4", "--traffic", "0.4", "--results", folder)
    assert "try first: alone" in out.splitlines()
    Path("afile").touch()
    code, _, err = typed("recommend", "--results", folder, "--score", "afile/score.json")
    assert (code, err.partition(";")[0]) == (1, mentioning("afile/score.json", "Not a directory"))
    code, out, _ = typed("recommend", "--results", folder, "--score", "found/score.json")
    assert code == 0
    scored = json.loads(Path("found/score.json").read_text())
    assert scored == rule.score(rule.evidence(tables(Path(folder))))
    assert [row["recommended"] for row in scored["rows"]] == ["m0"] * 4


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "nothing is known of the federation: give --clients"),
        ("--alpha 1 --same-labels", "--labels-per-client, --alpha and --same-labels: give one"),
        ("--alpha 0", "--alpha: expected a number above 0, got 0"),
        ("--labels-per-client 11", "--labels-per-client: expected 1 to 10, got 11"),
        ("--participation 0", "--participation: expected a share above 0, got 0"),
        ("--clients 4 --newcomers", "R: no table has accuracies of newcomers of both baselines"),
        ("--clients 4 --results nowhere", "--results: expected a folder of result files"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    words: str, line: str, typed: Typed, tmp_path: Path
) -> None:
    write(tmp_path / "R", made())
    code, out, err = typed("recommend", "--results", "R", *words.split())
    assert (code, out) == (1, "")
    assert err.startswith(f"flbench: {line}")


def test_ways_to_say_which_labels_a_client_holds(typed: Typed, tmp_path: Path) -> None:
    from flbench.cli.recommend import _labels

    assert _labels(2, None, 10, False) == 0.2
    assert _labels(None, None, 10, True) == 1.0
    assert _labels(None, 0.1, 10, False) == rule.dirichlet_labels(0.1, 10)
    assert _labels(None, None, 10, False) is None


@pytest.mark.slow
def test_only_methods_that_say_so_run_across_networks() -> None:
    from flbench.cli.recommend import _across_networks

    allowed = _across_networks()
    assert "fedproto" in allowed
    assert "scaffold" not in allowed
