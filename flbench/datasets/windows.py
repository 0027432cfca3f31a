"""Windows of a sequence that overlap: how many lie between two that share nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PAIRS = 500
"""Pairs of neighbours that are looked at."""
COMMON = 0.5
"""Share of them from which the samples are windows of a sequence."""
LEAST = 3
"""Values that two neighbours must have in common, of more than one kind."""


def gap_of(rows: npt.NDArray[np.generic], domains: npt.NDArray[np.int64]) -> int | None:
    """Samples to leave out between two that share no value; None = they are no such windows.

    Args:
        rows: samples in their order, shape (m, T), (m, T, k) or (m, k, T).
        domains: of each sample, shape (m,); neighbours are of one domain.

    Example:
        >>> series = np.sin(np.arange(40.0))
        >>> gap_of(np.stack([series[i : i + 6] for i in range(20)]), np.zeros(20, int))
        5
        >>> gap_of(np.stack([series[i : i + 6] for i in range(0, 30, 3)]), np.zeros(10, int))
        1
    """
    order = np.argsort(domains, kind="stable")
    first, second = order[:-1], order[1:]
    together = domains[first] == domains[second]
    first, second = first[together], second[together]
    if len(first) < 2:
        return None
    some = np.unique(np.linspace(0, len(first) - 1, PAIRS).astype(np.int64))
    pairs = rows[first[some]], rows[second[some]]
    found = (_step(*(np.moveaxis(one, axis, 1) for one in pairs)) for axis in {1, rows.ndim - 1})
    return next((gap for gap in found if gap is not None), None)


def _step(first: npt.NDArray[np.generic], second: npt.NDArray[np.generic]) -> int | None:
    """The gap of windows whose time is the second axis, of neighbours; each (pairs, T, ...)."""
    length: int = first.shape[1]
    rest = tuple(range(1, first.ndim))
    for step in range(1, length - LEAST + 1):
        for one, other in ((first, second), (second, first)):  # or the newest value stands first
            common = one[:, step:]
            same = (common == other[:, : length - step]).all(axis=rest)
            varies = (common != common[:, :1]).any(axis=rest)
            if (same & varies).mean() > COMMON:
                return -(-length // step) - 1
    return None


def overlap_notes(gap: int | None) -> list[str]:
    """What to say of windows that overlap, if any were found (`gap_of`)."""
    if gap is None:
        return []
    return [
        f"its samples are windows of a sequence that overlap: parts are divided by time, with {gap}"
        " samples left out between them"
    ]
