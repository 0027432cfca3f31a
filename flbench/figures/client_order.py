"""Groups of clients in figures: names that match the true groups, colours, runs of equal groups."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from flbench.figures.style import COLOURS
from flbench.metrics import Floats, Ints
from flbench.results.schema import Result


def groups_in_round(result: Result, round_number: int) -> Ints:
    """Group of each client in a round, shape (N,); before the first grouping, the first one."""
    known = result.memberships()
    passed = [labels for first, labels in known if first <= round_number]
    found = passed[-1] if passed else known[0][1] if known else [0] * len(result.clients.test)
    return np.array(found, dtype=np.int64)


def true_groups(result: Result, labels: Ints) -> tuple[Ints, bool]:
    """True groups as 0..G-1, shape (N,), and True; if unknown, the given labels and False."""
    groups = result.clients.group
    source = labels if groups is None else np.array(groups, dtype=np.int64)
    ranks = np.unique(source, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return ranks, groups is not None


def match_to_true_groups(labels: Ints, truth: Ints, before: Ints | None = None) -> Ints:
    """Rename groups to the true groups with the largest total overlap (Hungarian method).

    Other groups are named G, G+1, ...; of equal matches, the one that changes fewer names is taken.

    Args:
        labels: group of each client, shape (N,); -1 = in none, and stays so.
        truth: true groups 0..G-1, shape (N,).
        before: the names in the previous round, shape (N,).

    Example:
        >>> match_to_true_groups(np.array([7, 7, 3, 5]), np.array([0, 0, 1, 1])).tolist()
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


def group_colours(names: Ints) -> Floats:
    """A colour for each group, shape (..., 4); colours repeat, -1 is grey."""
    from matplotlib.colors import to_rgba_array

    table = to_rgba_array([*COLOURS, "#7a7a7a44"])
    return table[np.where(names < 0, len(COLOURS), names % len(COLOURS))]


def equal_runs(sorted_groups: Ints) -> list[tuple[int, int, int]]:
    """Runs of equal groups as (group, start, stop).

    Example:
        >>> equal_runs(np.array([0, 0, 2]))
        [(0, 0, 2), (2, 2, 3)]
    """
    cuts = [0, *(np.flatnonzero(np.diff(sorted_groups)) + 1).tolist(), len(sorted_groups)]
    return [
        (int(sorted_groups[start]), start, stop) for start, stop in pairwise(cuts) if stop > start
    ]
