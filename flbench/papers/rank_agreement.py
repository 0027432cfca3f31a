"""Rank agreement: whether our results order the methods of a table as the paper does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flbench.metrics import Floats
from flbench.papers.reproduction import NO_VERDICT, ReproducedValue

FEWEST = 3
"""Methods of which an order can be more than chance: of two, it is right or wrong."""
DRAWS = 1000
"""Draws of seeds of which the interval is made."""


@dataclass(frozen=True)
class RankAgreement:
    """Kendall's tau-b of our means against the published numbers.

    Attributes:
        interval: 2.5th and 97.5th percentile over `DRAWS` draws of as many seeds with replacement,
            the same for all methods; None of a single seed.
        methods: how many are compared; seeds: how many all of them have.
    """

    tau: float
    interval: tuple[float, float] | None
    methods: int
    seeds: int

    def __str__(self) -> str:
        over = f"{self.methods} methods"
        if self.interval is None:
            return f"{self.tau:.2f} (one seed; {over})"
        low, high = self.interval
        return f"{self.tau:.2f} ({low:.2f} to {high:.2f} over {self.seeds} seeds; {over})"


def rank_agreement(rows: Sequence[ReproducedValue]) -> RankAgreement | None:
    """The agreement of one suite and data set; None of less than three methods with a common seed.

    Numbers without a verdict are left out. What a run never reached (None) comes after all others.
    """
    kept = [one for one in rows if one.results and one.verdict not in NO_VERDICT]
    by_seed = [
        {result.seed: value for result, value in zip(one.results, one.values, strict=True)}
        for one in kept
    ]
    seeds = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    if len(kept) < FEWEST or not seeds:
        return None
    never = np.inf
    ours = np.array(
        [[never if (v := one[seed]) is None else v for seed in seeds] for one in by_seed]
    )
    printed = np.array([one.printed.value for one in kept])
    tau = float(kendall_tau(printed, ours.mean(axis=1)))
    if len(seeds) == 1:
        return RankAgreement(tau, None, len(kept), 1)
    drawn = np.random.default_rng(0).integers(0, len(seeds), (DRAWS, len(seeds)))
    taus = kendall_tau(printed, ours[:, drawn].mean(axis=-1).T)
    low, high = np.percentile(taus, [2.5, 97.5], method="nearest").tolist()
    return RankAgreement(tau, (low, high), len(kept), len(seeds))


def kendall_tau(one: Floats, others: Floats) -> Floats:
    """Kendall's tau-b of an array, shape (n,), with others, shape (..., n).

    Kendall, "The treatment of ties in ranking problems", Biometrika 33, 1945. 0 where one is
    constant; numbers that differ by rounding only are ties.

    Example:
        >>> kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([[0.1, 0.2, 0.3], [0.1, 0.3, 0.2]]))
        array([1.        , 0.33333333])
    """
    a, b = _orders(one), _orders(others)
    pairs = np.sqrt((a != 0).sum((-2, -1)) * (b != 0).sum((-2, -1)))
    return np.asarray((a * b).sum((-2, -1)) / np.maximum(pairs, 1))


def _orders(values: Floats) -> npt.NDArray[np.int64]:
    """1, 0 or -1 for each pair of the last axis, shape (..., n, n)."""
    rounded = np.round(values, 9)
    above = rounded[..., :, None] > rounded[..., None, :]
    return above.astype(np.int64) - above.swapaxes(-2, -1)
