"""Shares from a Dirichlet distribution have its moments, also where they are very small."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.partitions.shares import cut, log_shares, normalised


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("alpha", [0.02, 0.5, 1.0, 30.0])
def test_shares_have_the_moments_of_the_distribution(alpha: float) -> None:
    """Of k shares: mean 1 / k, variance (k - 1) / (k^2 (k alpha + 1))."""
    k, draws = 5, 20_000
    shares = normalised(log_shares(alpha, (draws, k), rng()))
    assert shares.sum(axis=1) == pytest.approx(1)
    variance = (k - 1) / (k**2 * (k * alpha + 1))
    assert shares.mean(axis=0) == pytest.approx(1 / k, abs=5 * np.sqrt(variance / draws))
    assert shares.var(axis=0) == pytest.approx(variance, rel=0.06)


@pytest.mark.parametrize("alpha", [1e-12, 1e-310])
def test_the_smallest_concentration_gives_all_to_one_that_is_drawn_evenly(alpha: float) -> None:
    shares = normalised(log_shares(alpha, (4000, 4), rng()))
    assert shares.max(axis=1).tolist() == [1.0] * 4000
    counts = np.bincount(shares.argmax(axis=1), minlength=4)
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3, "chi-square of 3 degrees, 1 in 1000"


def test_of_those_that_are_left_one_has_all_again() -> None:
    logs = log_shares(1e-12, (100, 4), rng())
    first = normalised(logs).argmax(axis=1)
    logs[np.arange(100), first] = -np.inf
    assert normalised(logs).max(axis=1).tolist() == [1.0] * 100


def test_the_largest_concentration_gives_equal_shares() -> None:
    assert normalised(log_shares(1e6, (50, 4), rng())) == pytest.approx(0.25, abs=0.01)


def test_a_cut_is_rounded_up_or_down_and_exact_on_average() -> None:
    shares = np.array([0.5, 0.07, 0.43])
    cuts = np.array([cut(shares, 30, rng(seed)) for seed in range(2000)])
    assert (cuts.sum(axis=1) == 30).all()
    assert (np.abs(cuts - 30 * shares) < 1).all()
    assert cuts.mean(axis=0) == pytest.approx(30 * shares, abs=0.06)
