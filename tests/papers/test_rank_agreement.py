"""Kendall's tau of our results against published numbers, and its interval over seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from flbench.papers.paper import PublishedValue
from flbench.papers.rank_agreement import RankAgreement, kendall_tau, rank_agreement
from flbench.papers.reproduction import ReproducedValue, Verdict


class Run:
    """A result of which only the seed is asked."""

    def __init__(self, seed: int) -> None:
        self.seed = seed


def row(
    printed: float, *ours: float | None, seeds: tuple[int, ...] = (), doubt: str = ""
) -> ReproducedValue:
    results = tuple(Run(seed) for seed in seeds or range(len(ours)))
    number = PublishedValue("s", "d", f"{printed}", printed, None, doubt)
    verdict: Verdict = "doubtful" if doubt else "equal"
    return ReproducedValue(number, results, ours, verdict)  # type: ignore[arg-type]


def test_tau_is_that_of_scipy_with_ties_too() -> None:
    rng = np.random.default_rng(3)
    one = rng.integers(0, 4, 7).astype(float)
    others = rng.integers(0, 4, (20, 7)).astype(float)
    expected = [kendalltau(one, other).statistic for other in others]
    assert kendall_tau(one, others) == pytest.approx(np.array(expected))


def test_tau_of_a_constant_is_none_of_any_order_and_rounding_is_a_tie() -> None:
    assert kendall_tau(np.arange(3.0), np.ones(3)) == 0
    nearly = np.array([0.3, 0.1 + 0.2, 0.4])
    assert kendall_tau(np.arange(3.0), nearly) == kendall_tau(np.arange(3.0), nearly.round(3))


def test_the_agreement_of_a_table_by_hand() -> None:
    """Seed 0 has the printed order, seed 1 its reverse in one pair of three, their mean too."""
    rows = [row(0.9, 0.9, 0.5), row(0.8, 0.8, 0.7), row(0.7, 0.1, 0.1)]
    found = rank_agreement(rows)
    assert found is not None
    assert (found.tau, found.methods, found.seeds) == (pytest.approx(1 / 3), 3, 2)
    assert found.interval == (pytest.approx(1 / 3), pytest.approx(1.0))
    alone = rank_agreement([row(one.printed.value, one.values[0]) for one in rows])
    assert alone == RankAgreement(1.0, None, 3, 1)


def test_only_seeds_that_all_methods_have_are_compared() -> None:
    rows = [row(0.9, 0.9), row(0.8, 0.1, 0.8, seeds=(1, 0)), row(0.7, 0.7)]
    found = rank_agreement(rows)
    assert found is not None
    assert (found.tau, found.seeds) == (1.0, 1)
    assert rank_agreement([*rows, row(0.6, 0.6, seeds=(5,))]) is None


def test_numbers_without_a_verdict_and_those_not_run_are_in_no_order() -> None:
    rows = [row(0.9, 0.9), row(0.8, 0.8), row(0.7, 0.7)]
    moving = replace(row(0.3, 1.0), verdict="not final")
    more = [*rows, row(0.1, 1.0, doubt="smudged"), moving, row(0.2)]
    assert rank_agreement(more) == rank_agreement(rows) == RankAgreement(1.0, None, 3, 1)
    assert rank_agreement(rows[:2]) is None, "of two methods, an order is chance"


def test_what_is_never_reached_comes_last() -> None:
    """Rounds: printed 10 < 20 < 30; of ours the first never reaches the target."""
    found = rank_agreement([row(10, None), row(20, 21.0), row(30, 33.0)])
    assert found is not None
    assert found.tau == pytest.approx(-1 / 3)
