"""Windows that overlap are found, whichever way time goes; other samples are no windows."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.datasets.windows import gap_of

SERIES = np.random.default_rng(0).normal(size=200)


@pytest.mark.parametrize(("step", "gap"), [(1, 9), (2, 4), (3, 3), (5, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_the_gap_is_the_least_after_which_nothing_is_shared(
    step: int, gap: int, turned: bool
) -> None:
    """Windows of 10 that start at `step * i`: i and j share values where step * (j - i) < 10."""
    rows = np.stack([SERIES[i : i + 10] for i in range(0, 150, step)])
    rows = rows[:, ::-1] if turned else rows
    shares = [bool(np.isin(rows[0], rows[k]).any()) for k in range(1, 12)]
    assert shares.index(False) == gap
    assert gap_of(rows, np.zeros(len(rows), dtype=np.int64)) == gap


@pytest.mark.parametrize("axis", [1, 2])
def test_several_series_beside_each_other(axis: int) -> None:
    two = np.stack([SERIES, SERIES**2], axis=1)
    rows = np.stack([two[i : i + 6] for i in range(40)])
    rows = rows if axis == 1 else rows.transpose(0, 2, 1)
    assert gap_of(rows, np.zeros(40, dtype=np.int64)) == 5


def test_other_samples_are_no_windows() -> None:
    draw, one = np.random.default_rng(1), np.zeros(50, dtype=np.int64)
    assert gap_of(draw.normal(size=(50, 10)), one) is None
    assert gap_of(np.zeros((50, 10)), one) is None, "constants are equal, and no windows"
    blocks = np.stack([SERIES[i : i + 10] for i in range(0, 200, 10)])
    assert gap_of(blocks, one[:20]) is None
    rows = np.stack([SERIES[i : i + 10] for i in range(50)])
    assert gap_of(draw.permutation(rows), one) is None
    assert gap_of(rows, np.arange(50)) is None, "each is another domain's"
    assert gap_of(rows, np.arange(50) % 2) == 4, "two domains, each with every second window"
