"""Claims that one method is ahead: by hand, of any results, and of every card."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flbench.papers.claims import cells, compared, leads_found
from flbench.papers.paper import Lead, load_paper
from flbench.plugin.registry import entries

PLACE = ("suite", "data")


def results(*values: float | None, first: int = 0, spread: float = 0.0) -> list[Any]:
    """Results of ten clients, which are at the value, or half of them off by a spread each way."""
    off = np.tile([spread, -spread], 5)
    return [
        SimpleNamespace(
            seed=first + at,
            task=None,
            unseen=None,
            suite={"rounds": 100},
            metrics=partial(dict, accuracy_mean=value, rounds_to_final=value),
            clients=SimpleNamespace(headline_values=partial(np.add, value, off)),
        )
        for at, value in enumerate(values)
    ]


def lead(**more: Any) -> Lead:
    return Lead(**{"table": "1", "method": "a", "over": ["b", "c"], **more})


def only(found: Lead, rows: dict[str, Any], column: str = "accuracy_mean") -> Any:
    (one,) = leads_found(found, {PLACE: rows}, column)
    return one


@pytest.mark.parametrize(
    ("a", "b", "c", "best", "by", "ahead", "verdict"),
    [
        ([9, 8], [7, 6], [5, 6], "b", 2, 2, "holds"),
        ([9, 6], [7, 6], [5, 7], "b", 1, 1, "holds for the means alone"),
        ([6, 6], [7, 6], [5, 5], "b", -0.5, 0, "does not hold"),
        ([6, 6], [6, 6], [5, 5], "b", 0, 0, "level"),
    ],
)
def test_a_lead_by_hand(
    a: list[float],
    b: list[float],
    c: list[float],
    best: str,
    by: float,
    ahead: int,
    verdict: str,
) -> None:
    rows = {"a": results(*a), "b": results(*b), "c": results(*c)}
    one = only(lead(), rows, "rounds_to_final")
    assert (one.best, one.seeds, one.ahead, one.verdict) == (best, 2, ahead, verdict)
    assert one.by == pytest.approx(by)
    assert one.interval is None


@pytest.mark.parametrize(
    ("a", "b", "spread", "half", "verdict"),
    [
        ([0.9], [0.7], 0.05, 0.0377, "holds"),
        ([0.71], [0.7], 0.05, 0.0377, "not separable"),
        ([0.66], [0.7], 0.05, 0.0377, "does not hold"),
        ([0.71], [0.7], 0.0, 0.0, "holds"),
        ([0.7], [0.7], 0.0, 0.0, "level"),
        ([0.7], [0.7], 0.05, 0.0377, "not separable"),
        ([0.72, 0.72], [0.7, 0.7], 0.05, 0.0248, "not separable"),
        ([0.73, 0.73], [0.7, 0.7], 0.05, 0.0248, "holds"),
        ([0.70, 0.74, 0.72], [0.7, 0.7, 0.7], 0.0, 0.0497, "not separable"),
        ([0.74, 0.78, 0.76], [0.7, 0.7, 0.7], 0.0, 0.0497, "holds"),
    ],
)
def test_a_mean_over_clients_is_judged_by_its_interval(
    a: list[float], b: list[float], spread: float, half: float, verdict: str
) -> None:
    """Ten clients: deviation .05 sqrt(10 / 9), t(9) = 2.262; two seeds: 20 clients, t(18) = 2.101.

    Three seeds with means off by -.02, .02, 0: deviation .02, t(2) = 4.303.
    """
    one = only(lead(over=["b"]), {"a": results(*a, spread=spread), "b": results(*b)})
    assert one.verdict == verdict
    assert one.interval == pytest.approx((one.by - half, one.by + half), abs=1e-4)
    low, high = one.interval
    assert cells(one, "accuracy_mean")[5] == f"[{low:+.4f}, {high:+.4f}]"


def test_of_rounds_the_smaller_number_is_ahead_and_never_is_last() -> None:
    fewer = lead(smaller=True, column="rounds_to_final")
    rows = {"a": results(20), "b": results(50), "c": results(None)}
    one = only(fewer, rows, "rounds_to_final")
    assert (one.best, one.by, one.verdict) == ("b", 30, "holds")
    assert "+30.0" in cells(one, "rounds_to_final")
    one = only(fewer, {**rows, "a": results(None)}, "rounds_to_final")
    assert (one.by, one.ahead, one.verdict) == (None, 0, "not final in 1 of 1")
    assert not list(leads_found(fewer, {PLACE: {"a": results(20)}}, "rounds_to_final"))


def test_how_soon_all_reach_what_the_best_other_ends_with() -> None:
    """b ends with .6: a is there (less .01) in round 3, b in 4, c never; c is final in round 1."""

    def run(*curve: float | None) -> list[Any]:
        return [SimpleNamespace(seed=0, curves={"accuracy": curve})]

    rows = {"a": run(0.1, None, 0.59, 0.9), "b": run(0.2, None, 0.5, 0.6), "c": run(0.3, None, 0.3)}
    one = only(lead(common=True), rows, "")
    assert (one.best, one.by, one.verdict) == ("b", 1.0, "holds")
    late = only(lead(common=True), {**rows, "a": run(0.1, None, 0.5)}, "")
    assert (late.by, late.verdict) == (None, "not reached in 1 of 1")


def test_who_alone_reaches_it_is_ahead() -> None:
    """In each seed another of the others has the level that counts, so none has it in both."""

    def runs(*finals: float) -> list[Any]:
        return [
            SimpleNamespace(seed=seed, curves={"accuracy": [0.1, final, final]})
            for seed, final in enumerate(finals)
        ]

    rows = {"a": runs(0.9, 0.9), "b": runs(0.5, 0.2), "c": runs(0.2, 0.6)}
    one = only(lead(common=True), rows, "")
    assert (one.best, one.by, one.ahead) == ("b", 0.0, 0), "b is as soon where it gets there"
    late = {**rows, "b": runs(0.2, 0.2)}
    late["c"] = [*runs(0.2), SimpleNamespace(seed=1, curves={"accuracy": [0.1, 0.1, 0.6]})]
    one = only(lead(common=True), {**late, "c": [late["c"][1]], "a": rows["a"][1:]}, "")
    assert (one.best, one.by, one.verdict) == ("c", 1.0, "holds")
    never = only(lead(smaller=True), {"a": results(3.0), "b": results(None)}, "rounds_to_final")
    assert (never.by, never.ahead, never.verdict) == (
        None, 1, "holds: no other reaches it; without c",
    )  # fmt: skip


def test_a_run_that_still_moves_at_its_end_has_no_final_round() -> None:
    """Of 100 rounds, 80 is final within the run, and 81 may be later with more of them."""
    fewer = lead(smaller=True, over=["b"])
    rows = {"a": results(80, 20), "b": results(81, 60)}
    one = only(fewer, rows, "rounds_to_final")
    assert (one.by, one.ahead, one.verdict) == (40, 2, "holds")
    one = only(fewer, {"a": rows["b"], "b": rows["a"]}, "rounds_to_final")
    assert one.verdict == "not final in 1 of 2"


def test_only_common_seeds_count_and_who_is_missing_is_named() -> None:
    rows = {"a": results(0.9, 0.1), "b": results(0.5, first=0)}
    one = only(lead(by={"suite": 0.17}), rows)
    assert (one.seeds, one.by, one.published) == (1, 0.4, 0.17)
    assert one.missing == ("c",)
    assert cells(one, "accuracy_mean")[-5:] == (
        "+0.4000", "[+0.4000, +0.4000]", "+0.1700", "1 of 1", "holds; without c",
    )  # fmt: skip
    apart = {"a": results(0.9), "b": results(0.5, first=3)}
    assert not list(leads_found(lead(), {PLACE: apart}, "accuracy_mean"))


@pytest.mark.parametrize("name", sorted(entries("papers")))
def test_leads_and_figures_of_every_card_name_what_there_is(name: str) -> None:
    card, methods = load_paper(name), set(entries("methods"))
    for claim in card.claims:
        for one in claim.leads:
            assert {one.method, *one.over} <= methods
            assert one.method not in one.over
            assert compared(card, one)
            if one.table:
                table = card.table(one.table)
                assert one.scale in table.scale
                assert {one.method, *one.over} <= set(table.methods)
                assert set(one.suites) <= set(table.suites)
                assert set(one.by) <= set(table.suites)
                assert set(one.datasets) <= set(table.datasets)
            else:
                assert claim.study
        for figure in claim.drawn:
            assert bool(figure.table) != bool(claim.study)
            if figure.table:
                table = card.table(figure.table)
                assert figure.scale in table.scale
                assert set(figure.methods) <= set(table.methods)
                assert figure.suite in {*table.suites, ""}
                assert figure.dataset in {*table.datasets, ""}
