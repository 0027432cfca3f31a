"""Order and colour of clients: whose group is whose, and who stands beside whom."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from flbench.figures.style import COLOURS
from flbench.results.schema import Result

Floats = npt.NDArray[np.float64]


Ints = npt.NDArray[np.int64]


def labels_at(result: Result, round_number: int) -> Ints:
    """Everybody's group in a round, shape (N,); the first known before there were any."""
    known = result.memberships()
    passed = [labels for first, labels in known if first <= round_number]
    found = passed[-1] if passed else known[0][1] if known else [0] * len(result.clients.test)
    return np.array(found, dtype=np.int64)


def truth_of(result: Result, labels: Ints) -> tuple[Ints, bool]:
    """True groups as 0..G-1, shape (N,), and True; where unknown, the given labels and False."""
    groups = result.clients.group
    source = labels if groups is None else np.array(groups, dtype=np.int64)
    return np.unique(source, return_inverse=True)[1].reshape(-1).astype(
        np.int64
    ), groups is not None


def matched(labels: Ints, truth: Ints, before: Ints | None = None) -> Ints:
    """Groups under the names of the true groups they overlap most, all in all (Hungarian method).

    What is left over is called G, G+1, ...; of equal matches the one that changes fewer names wins.

    Args:
        labels: group of each client, shape (N,); -1 = in none, and stays so.
        truth: true groups 0..G-1, shape (N,).
        before: what was returned a round ago.

    Returns:
        Shape (N,).

    Example:
        >>> matched(np.array([7, 7, 3, 5]), np.array([0, 0, 1, 1])).tolist()
        [0, 0, 1, 2]
    """
    from scipy.optimize import linear_sum_assignment

    names = np.unique(labels[labels >= 0])
    true = int(truth.max(initial=-1)) + 1
    most = max(true, int(before.max(initial=-1)) + 1 if before is not None else 0)
    overlap = np.zeros((len(names), most + len(names)))
    for row, name in enumerate(names):
        mine = labels == name
        overlap[row, :true] += np.bincount(truth[mine], minlength=true)
        if before is not None:
            old = before[mine & (before >= 0)]
            overlap[row, :most] += np.bincount(old, minlength=most) * (0.5 / len(labels))
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    found = np.full(len(labels), -1, dtype=np.int64)
    for row, column in zip(rows, columns, strict=True):
        found[labels == names[row]] = column
    return found


def colours_of(names: Ints) -> Floats:
    """A colour for each group, recycled where there are many, shape (..., 4); none for -1."""
    from matplotlib.colors import to_rgba_array

    table = to_rgba_array([*COLOURS, "#7a7a7a44"])
    found: Floats = table[np.where(names < 0, len(COLOURS), names % len(COLOURS))]
    return found


def borders(sorted_groups: Ints) -> list[tuple[int, int, int]]:
    """Runs of equal groups as (group, start, stop).

    Example:
        >>> borders(np.array([0, 0, 2]))
        [(0, 0, 2), (2, 2, 3)]
    """
    cuts = [0, *(np.flatnonzero(np.diff(sorted_groups)) + 1).tolist(), len(sorted_groups)]
    return [
        (int(sorted_groups[start]), start, stop) for start, stop in pairwise(cuts) if stop > start
    ]
