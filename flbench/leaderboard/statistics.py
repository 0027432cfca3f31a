"""Statistics of a leaderboard: what two rows' seeds and clients can tell apart. Pure numpy.

Rows of a table are pairs: same seed, same clients, same test samples. So seeds and clients are
drawn once for all of them, and a difference is judged on the draws that both share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
REPLICATES = 2000
SEED = 20260101
LEVEL = (2.5, 97.5)
DIGITS = 10
"""Decimals that count: what lies behind them is the noise of sums in another order."""


def weights(seeds: int, clients: int, replicates: int = REPLICATES) -> Floats:
    """Weights of the hierarchical bootstrap: seeds are drawn, then clients of each drawn seed.

    Both with replacement, as many as there are. Always the same draws for the same shape: the
    stream of numpy's `RandomState` is frozen. (Davison and Hinkley, Bootstrap Methods and their
    Application, 1997, section 3.8; Field and Welsh, JRSS B 69, 2007.)

    Returns:
        Shape (replicates, seeds * clients), rows sum to 1; column `s * clients + i` is client i of
        seed s.
    """
    draw = np.random.RandomState(SEED)
    drawn = draw.randint(seeds, size=(replicates, seeds, 1), dtype=np.int64)
    who = draw.randint(clients, size=(replicates, seeds, clients), dtype=np.int64)
    cells = seeds * clients
    places = np.arange(replicates)[:, None, None] * cells + drawn * clients + who
    counts = np.bincount(places.ravel(), minlength=replicates * cells)
    found: Floats = counts.reshape(replicates, cells) / cells
    return found


@dataclass(frozen=True)
class Comparison:
    """What the bootstrap says of R rows.

    Attributes:
        intervals: 95 % interval of each row's mean, shape (R, 2).
        differences: 95 % interval of row i less row j over their common seeds, shape (R, R, 2);
            NaN where they have none.
    """

    intervals: Floats
    differences: Floats

    @property
    def better(self) -> Bools:
        """Whether row i is separably better than row j, shape (R, R)."""
        found: Bools = self.differences[..., 0] > 0  # NaN is not
        return found

    @property
    def separable(self) -> Bools:
        """Whether the interval of the difference leaves out 0, shape (R, R)."""
        return self.better | self.better.T


def compare(rows: Sequence[Mapping[int, Floats]]) -> Comparison:
    """Bootstrap all rows of a table together.

    Args:
        rows: per row and seed the accuracy of every client, shape (N,).
    """
    count = len(rows)
    intervals, differences = np.zeros((count, 2)), np.full((count, count, 2), np.nan)
    shared = [[frozenset(one) & frozenset(other) for other in rows] for one in rows]
    for common in {seeds for line in shared for seeds in line if seeds}:
        seeds = sorted(common)
        members = [at for at, row in enumerate(rows) if common <= set(row)]
        values = np.stack(
            [np.concatenate([rows[at][seed] for seed in seeds]) for at in members], axis=1
        )
        means = weights(len(seeds), len(values) // len(seeds)) @ values
        place = {row: column for column, row in enumerate(members)}
        for row in members:
            if common == set(rows[row]):
                intervals[row] = _interval(means[:, [place[row]]])[0]
        pairs = [(i, j) for i in members for j in members if i < j and shared[i][j] == common]
        if pairs:
            first, second = np.array(pairs).T
            left, right = ([place[row] for row in side] for side in (first, second))
            found = _interval(means[:, left] - means[:, right])
            differences[first, second] = found
            differences[second, first] = -found[:, ::-1]
    differences[range(count), range(count)] = 0.0
    return Comparison(intervals, differences)


def interval(values: Mapping[int, Floats]) -> tuple[float, float] | None:
    """95 % interval of the mean of something that some clients may not have.

    Clients without it are drawn like the others, and left out of the mean of a draw.

    Args:
        values: one per client, shape (N,), by seed; NaN = the client has none.

    Returns:
        None where nobody has one.
    """
    table = np.concatenate([values[seed] for seed in sorted(values)] or [np.zeros(0)])
    known = ~np.isnan(table)
    if not known.any():
        return None
    drawn = weights(len(values), len(table) // len(values))
    counted = drawn @ known
    means = (drawn @ np.where(known, table, 0.0))[counted > 0] / counted[counted > 0]
    low, high = _interval(means[:, None])[0].tolist()
    return low, high


def _interval(samples: Floats) -> Floats:
    """Percentiles 2.5 and 97.5 of each column, shape (columns, 2)."""
    found: Floats = np.round(np.percentile(samples, LEVEL, axis=0).T, DIGITS)
    return found


def ranks(better: Bools) -> list[int]:
    """1 + the number of rows that are separably better, and never better than the row above.

    Without the second half, a row that varies much would pass steadier ones with higher means,
    because fewer rows can be told from it.

    Args:
        better: whether row i is separably better than row j, shape (R, R), best mean first.

    Example:
        >>> ranks(np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]], dtype=bool))
        [1, 2, 2]
    """
    return [int(rank) for rank in np.maximum.accumulate(1 + better.sum(axis=0, dtype=np.int64))]


def letters(separable: Bools) -> list[str]:
    """A letter per maximal run of neighbours of which no two are separable.

    A compact letter display (Piepho, J. Comput. Graph. Stat. 13, 2004) of rows sorted by mean:
    rows that share a letter are not separable.

    Args:
        separable: whether rows i and j are separable, shape (R, R), best row first.

    Example:
        >>> letters(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], dtype=bool))
        ['a', 'ab', 'b']
    """
    count = len(separable)
    runs: list[range] = []
    for start in range(count):
        stop = start + 1
        while stop < count and not separable[start:stop, stop].any():
            stop += 1
        if not runs or stop > runs[-1].stop:
            runs.append(range(start, stop))
    names = [_letter(place) for place in range(len(runs))]
    between = "" if len(runs) <= 26 else ","
    return [
        between.join(name for name, run in zip(names, runs, strict=True) if row in run)
        for row in range(count)
    ]


def _letter(place: int) -> str:
    """`a` to `z`, then `aa`, `ab` and so on."""
    before, last = divmod(place, 26)
    return (_letter(before - 1) if before else "") + chr(ord("a") + last)


def average_ranks(scores: Floats) -> Floats:
    """Mean over tables of each method's rank, shape (methods,); 1 is best, equals share the middle.

    Args:
        scores: higher is better, shape (tables, methods).
    """
    from scipy.stats import rankdata

    found: Floats = rankdata(-np.round(scores, DIGITS), axis=1).mean(axis=0)
    return found


def friedman(scores: Floats) -> tuple[float, float]:
    """Statistic and p of Friedman's test that all methods are alike, corrected for ties.

    Args:
        scores: shape (tables, methods), at least three methods.
    """
    from scipy.stats import friedmanchisquare

    rounded = np.round(scores, DIGITS)
    if (rounded == rounded[:, :1]).all():
        return 0.0, 1.0  # all are equal in every table
    statistic, p = friedmanchisquare(*rounded.T)
    return float(statistic), float(p)


def critical_difference(methods: int, tables: int, alpha: float = 0.05) -> float:
    """Nemenyi's critical difference of average ranks (Demšar, JMLR 7, 2006, section 3.2.2).

    CD = q sqrt(k (k + 1) / (6 N)) with q the upper alpha quantile of the studentized range of k
    groups with infinite degrees of freedom, over sqrt 2; k >= 2 methods, N tables.

    Example:
        >>> round(critical_difference(4, 14), 2)
        1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, np.inf)) / sqrt(2)
    return q * sqrt(methods * (methods + 1) / (6 * tables))


@dataclass(frozen=True)
class Block:
    """Average ranks over the tables that hold all of some methods, best first.

    `statistic` and `p` are Friedman's, `distance` is Nemenyi's critical difference at 5 %.
    """

    ranks: Mapping[str, float]
    tables: tuple[str, ...]
    statistic: float
    p: float
    distance: float


def block(scores: Mapping[str, Mapping[str, float]], methods: Iterable[str]) -> Block:
    """Rank three or more methods over the tables, two or more, that hold every one of them.

    `scores` is table -> method -> score, higher is better.
    """
    names = sorted(methods)
    tables = sorted(table for table, row in scores.items() if set(names) <= set(row))
    values = np.array([[scores[table][name] for name in names] for table in tables])
    means = dict(zip(names, average_ranks(values).tolist(), strict=True))
    ordered = dict(sorted(means.items(), key=lambda pair: (round(pair[1], DIGITS), pair[0])))
    statistic, p = friedman(values)
    return Block(ordered, tuple(tables), statistic, p, critical_difference(len(names), len(tables)))


def blocks(scores: Mapping[str, Mapping[str, float]]) -> list[Block]:
    """The block of most cells, methods times tables, and that of most tables if it has more.

    Nothing is missing in a block. Of two as large that of more tables is taken. There is none where
    no two tables share three methods. `scores` is as in `block`.
    """
    shared: set[frozenset[str]] = set()
    for row in scores.values():  # all intersections of the tables' methods
        shared |= {frozenset(row) & other for other in shared} | {frozenset(row)}
    sizes = [
        (sum(methods <= set(row) for row in scores.values()), len(methods), sorted(methods))
        for methods in shared
    ]
    sizes = [size for size in sizes if size[0] >= 2 and size[1] >= 3]
    if not sizes:
        return []
    widest = max(sizes, key=lambda size: (size[0] * size[1], *size))
    longest = max(sizes)
    chosen = [widest, longest] if longest[0] > widest[0] else [widest]
    return [block(scores, methods) for _, _, methods in chosen]
