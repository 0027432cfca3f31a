"""Statistics of a leaderboard: what two rows' seeds and clients can tell apart. Pure numpy.

Rows of a table are pairs: same seed, same clients, same test samples. So a difference of two rows
is judged on the differences of their clients, over the seeds that both have. Where the clients are
the same ones in every seed, as persons are, a client's values of several seeds say no more than
that client does: they are one cluster.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import sqrt

import numpy as np
import numpy.typing as npt

from flbench.metrics import Floats

Bools = npt.NDArray[np.bool_]
ClientIds = npt.NDArray[np.int64]
ALPHA = 0.05
POWER = 0.8
MOST_SEEDS = 10_000
FEW_SEEDS = 2
"""Up to so many seeds, an interval over seeds says nothing."""
LEAST, GAP, TIMES = 4, 0.05, 4
"""Of `uneven`: seeds, headline (accuracy, or deviations of the targets), ranges."""
DIGITS = 10
"""Decimals that count: what lies behind them is the noise of sums in another order."""


@dataclass(frozen=True)
class Estimate:
    """Means over seeds of the mean over clients, as an array of any shape.

    Two standard errors are kept, because neither is enough: that of the means of S seeds, which
    holds all there is to know about other seeds but is itself uncertain if seeds are few, and that
    of the clients within seeds, which is the least that there can be.

    Attributes:
        mean: the means.
        seeds: S.
        of_seeds: standard error from the variance of the seeds' means; NaN for one seed.
        of_clients: standard error from the variance of clients within seeds, pooled, or from that
            of clients who are the same in every seed; NaN where there is one client.
        freedom: degrees of freedom of `of_clients`: clients less one, summed over seeds where they
            are others in each.
    """

    mean: Floats
    seeds: int
    of_seeds: Floats
    of_clients: Floats
    freedom: int

    @cached_property
    def interval(self) -> Floats:
        """95 % interval of each mean, shape (..., 2); NaN for one client of one seed.

        The wider of two t intervals, one for each standard error. That of the seeds alone holds
        what it says for normal means; the other keeps it from being narrow where few seeds agree by
        chance. With one seed only the clients' is left, which says nothing about other seeds.
        """
        of_seeds = _quantile(self.seeds - 1) * self.of_seeds
        of_clients = _quantile(self.freedom) * self.of_clients
        half = np.fmax(of_seeds, of_clients)  # a NaN gives way to the other
        return np.stack([self.mean - half, self.mean + half], axis=-1).round(DIGITS)

    @cached_property
    def within_seeds(self) -> Floats:
        """95 % t interval of the clients within seeds, shape (..., 2): nothing of other seeds."""
        half = _quantile(self.freedom) * self.of_clients
        return np.stack([self.mean - half, self.mean + half], axis=-1).round(DIGITS)

    @cached_property
    def shown(self) -> Floats:
        """`interval` of three seeds or more; of fewer, which say nothing of others, the other."""
        return self.interval if self.seeds > FEW_SEEDS else self.within_seeds

    @cached_property
    def p(self) -> Floats:
        """Two-sided p that the mean is 0; NaN for one seed, which says nothing about others.

        It is below 5 % where the interval leaves out 0: the greater p of the two t tests.
        """
        if self.seeds < 2:
            return np.full(self.mean.shape, np.nan)
        return np.fmax(
            _p(self.mean, self.of_seeds, self.seeds - 1),
            _p(self.mean, self.of_clients, self.freedom),
        )

    @cached_property
    def p_within_seeds(self) -> Floats:
        """Two-sided p that the mean is 0, by the clients within seeds: nothing of other seeds."""
        return _p(self.mean, self.of_clients, self.freedom)

    @cached_property
    def p_shown(self) -> Floats:
        """Two-sided p that the mean is 0, by the t test of `shown`."""
        return self.p_within_seeds if self.seeds <= FEW_SEEDS else self.p


def estimate(values: Sequence[Floats], who: Sequence[ClientIds] | None = None) -> Estimate:
    """Estimate means of seeds and clients.

    With `who`, the deviations of a client from the means of its seeds are summed, and the variance
    is that of these sums: a variance robust to clusters (Liang, Zeger, Biometrika 73, 1986).

    Args:
        values: per seed, at least one, the values of its clients, shape (..., N); N may differ.
        who: per seed the ids of these clients, shape (N,); None = each seed has others.
    """
    means = np.stack([seed.mean(axis=-1) for seed in values], axis=-1)
    count = len(values)
    if who is not None and count > 1:
        of_clients, freedom = _by_cluster(values, who)
        return _estimate(means, of_clients, freedom)
    squares = sum(((seed - seed.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for seed in values)
    sizes = np.array([seed.shape[-1] for seed in values])
    freedom = int((sizes - 1).sum())
    share = float((1 / sizes).sum()) / count**2
    unknown = np.full(means.shape[:-1], np.nan)
    return _estimate(means, np.sqrt(squares / freedom * share) if freedom else unknown, freedom)


def _by_cluster(values: Sequence[Floats], who: Sequence[ClientIds]) -> tuple[Floats, int]:
    """Standard error of the mean over seeds of clients that are the same ones, and its freedom."""
    ids = np.unique(np.concatenate(who))
    sums = np.zeros((*values[0].shape[:-1], len(ids)))
    for seed, names in zip(values, who, strict=True):
        away = seed - seed.mean(axis=-1, keepdims=True)
        sums[..., np.searchsorted(ids, names)] += away / (len(names) * len(values))
    if len(ids) < 2:
        return np.full(sums.shape[:-1], np.nan), 0
    return np.sqrt((sums**2).sum(axis=-1) * len(ids) / (len(ids) - 1)), len(ids) - 1


def _estimate(means: Floats, of_clients: Floats, freedom: int) -> Estimate:
    """Of the means of each seed, shape (..., S), and what is known of clients."""
    count = means.shape[-1]
    unknown = np.full(means.shape[:-1], np.nan)
    of_seeds = means.std(axis=-1, ddof=1) / sqrt(count) if count > 1 else unknown
    return Estimate(
        np.round(means.mean(axis=-1), DIGITS),
        count,
        np.round(of_seeds, DIGITS),
        np.round(of_clients, DIGITS),
        freedom,
    )


def uneven(means: Sequence[float]) -> bool:
    """Whether seeds fall into two kinds, as where a method collapses on some of them.

    So it is for `LEAST` seeds or more whose means, in order, have a gap of more than `GAP`, and of
    more than `TIMES` the range on either side of it.

    Example:
        >>> uneven([0.9, 0.55, 0.89, 0.91]), uneven([0.9, 0.8, 0.85, 0.95])
        (True, False)
    """
    ordered = np.sort(means)
    if len(ordered) < LEAST:
        return False
    gaps = np.diff(ordered)
    at = int(gaps.argmax())
    ranges = ordered[at] - ordered[0], ordered[-1] - ordered[at + 1]
    return bool(np.round(gaps[at], DIGITS) > np.round(max(GAP, TIMES * max(ranges)), DIGITS))


def difference(
    row: Mapping[int, Floats],
    other: Mapping[int, Floats],
    who: Mapping[int, ClientIds] | None = None,
) -> Estimate:
    """Estimate the mean of `row` less `other` over their common seeds, at least one.

    Both are seed -> headline of every client, shape (N,); `who`: seed -> ids, as of `estimate`.
    """
    seeds = sorted({*row} & {*other})
    return estimate([row[seed] - other[seed] for seed in seeds], _ids(who, seeds))


def _ids(who: Mapping[int, ClientIds] | None, seeds: Iterable[int]) -> list[ClientIds] | None:
    return None if who is None else [who[seed] for seed in seeds]


def seeds_needed(found: Estimate, pairs: int = 1) -> int | None:
    """Seeds at which a t test sees a difference with a probability of 80 %.

    The difference and its deviation over seeds are taken to be those of the estimate, a single
    number of two seeds or more. The power of the two-sided test of n seeds at level 5 % / `pairs`
    is that of a noncentral t with n - 1 degrees of freedom and noncentrality sqrt(n) mean /
    deviation (Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, chapter 2): the
    mean of P(Z > t sqrt(v / (n - 1)) - noncentrality) over v of a chi-squared distribution, taken
    at 2,000 of its quantiles.

    Returns:
        None where there are not two seeds, or 10,000 seeds would not do.
    """
    from scipy.special import gammaincinv, ndtr, stdtrit

    if found.seeds < 2 or not found.mean:
        return None
    error = float(np.fmax(found.of_seeds, found.of_clients)) * sqrt(found.seeds)
    if not error:
        return 2
    effect = abs(float(found.mean)) / error
    levels = (np.arange(2000) + 0.5) / 2000

    def enough(seeds: int) -> bool:
        limit = stdtrit(seeds - 1, 1 - ALPHA / pairs / 2)
        deviations = np.sqrt(2 * gammaincinv((seeds - 1) / 2, levels) / (seeds - 1))
        return bool(ndtr(effect * sqrt(seeds) - limit * deviations).mean() >= POWER)

    if not enough(MOST_SEEDS):
        return None
    return 2 + bisect_left(range(2, MOST_SEEDS), True, key=enough)


def _quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t; NaN without a degree of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - ALPHA / 2)) if freedom else float("nan")


def _p(mean: Floats, error: Floats, freedom: int) -> Floats:
    """Two-sided p of Student's t test; 0 where the error is 0 and the mean is not."""
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean == 0, 0.0, np.abs(mean) / error)
    found: Floats = 2 * stdtr(max(freedom, 1), -t)
    return found


@dataclass(frozen=True)
class RowStatistics:
    """What seeds and clients say of R rows.

    Attributes:
        intervals: 95 % interval of each row's mean, shape (R, 2); NaN for a single client.
        gains: by how much row i is better than row j, mean over their common seeds, shape (R, R);
            NaN where they have none.
        p: p of each gain, not corrected, shape (R, R); NaN where the rows have not two seeds
            in common, so that nothing can be said.
    """

    intervals: Floats
    gains: Floats
    p: Floats

    @property
    def pairs(self) -> int:
        """Number of pairs that have a p."""
        return int((~np.isnan(self.p)).sum()) // 2

    def better(self, rows: Sequence[int]) -> Bools:
        """Whether row i is separably better than row j among some rows, shape (r, r).

        All pairs of these rows are one family: the probability that one pair or more of equal rows
        is separated is at most 5 % (`holm`).
        """
        among = np.ix_(rows, rows)
        upper = np.triu_indices(len(rows), 1)
        rejected = np.zeros((len(rows), len(rows)), dtype=bool)
        rejected[upper] = holm(self.p[among][upper])
        return (rejected | rejected.T) & (self.gains[among] > 0)


def compare(
    rows: Sequence[Mapping[int, Floats]],
    gain: Callable[[Floats, Floats], Floats] = np.subtract,
    who: Mapping[int, ClientIds] | None = None,
) -> RowStatistics:
    """Compare all rows of a table with each other.

    Args:
        rows: per row and seed the headline of every client, shape (N,).
        gain: by how much the first of two headlines is better (`Task.gain`); here, higher is.
        who: seed -> the ids of its clients, the same in all rows; None = each seed has others.
    """
    count = len(rows)
    intervals = np.full((count, 2), np.nan)
    gains, p = np.full((count, count), np.nan), np.full((count, count), np.nan)
    for at, row in enumerate(rows):
        own = sorted(row)
        intervals[at] = estimate([row[seed] for seed in own], _ids(who, own)).shown
        shared: dict[tuple[int, ...], list[int]] = {}
        for other in range(at + 1, count):
            shared.setdefault(tuple(sorted({*row} & {*rows[other]})), []).append(other)
        for seeds, others in shared.items():
            if seeds:
                theirs = {seed: np.stack([rows[one][seed] for one in others]) for seed in seeds}
                differences = [gain(row[seed], theirs[seed]) for seed in seeds]
                found = estimate(differences, _ids(who, seeds))
                gains[at, others], gains[others, at] = found.mean, -found.mean
                p[at, others] = p[others, at] = found.p
    return RowStatistics(intervals, gains, p)


def holm(p: Floats) -> Bools:
    """Which hypotheses of a family are rejected, shape as `p`; NaN is no hypothesis.

    The k-th smallest of m values is compared with 0.05 / (m - k + 1), up to the first that is
    greater; the probability of one false rejection or more is at most 0.05, however the tests
    depend on each other (Holm, Scand. J. Statist. 6, 1979).

    Example:
        >>> holm(np.array([0.04, 0.01, np.nan, 0.02])).tolist()
        [True, True, False, True]
    """
    tests = int((~np.isnan(p)).sum())
    order = np.argsort(p, kind="stable")[:tests]  # NaN is last
    found: Bools = np.zeros(len(p), dtype=bool)
    found[order] = np.logical_and.accumulate(p[order] <= ALPHA / np.arange(tests, 0, -1))
    return found


def interval(values: Mapping[int, Floats]) -> tuple[float, float] | None:
    """95 % interval of the mean of something that some clients may not have; they are left out.

    Args:
        values: one per client, shape (N,), by seed; NaN = the client has none.

    Returns:
        None where nobody has one, or only one client of one seed.
    """
    known = [values[seed][~np.isnan(values[seed])] for seed in sorted(values)]
    known = [seed for seed in known if len(seed)]
    if sum(map(len, known)) < 2:
        return None
    low, high = estimate(known).shown.tolist()
    return low, high


def ranks(better: Bools) -> list[int]:
    """1 + the number of rows that are separably better, and never better than the row above.

    Without the second half, a row that varies much would pass steadier ones with higher means,
    because it is separable from fewer rows.

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
    rows that share a letter are not separable. After `z` comes `a1`, then `b1`.

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
    names = [f"{chr(ord('a') + place % 26)}{place // 26 or ''}" for place in range(len(runs))]
    return [
        "".join(name for name, run in zip(names, runs, strict=True) if row in run)
        for row in range(count)
    ]


def share_letter(one: str, other: str) -> bool:
    """Whether two rows share a letter.

    Example:
        >>> share_letter("ya1", "a1b1"), share_letter("ya", "a1b1")
        (True, False)
    """
    names, others = ({*re.findall(r"[a-z]\d*", row)} for row in (one, other))
    return not names.isdisjoint(others)


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


@cache
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
    sizes = [size for size in _sizes(scores) if size[0] >= 2 and size[1] >= 3]
    if not sizes:
        return []
    widest, longest = max(sizes, key=_cells), max(sizes)
    chosen = [widest, longest] if longest[0] > widest[0] else [widest]
    return [block(scores, methods) for _, _, methods in chosen]


def widest(
    scores: Mapping[str, Collection[str]], cells: bool = False
) -> tuple[list[str], list[str]]:
    """The methods and the tables that compare the most pairs without gaps; one table may do.

    Args:
        scores: table -> its methods.
        cells: choose by the most numbers and not by the most pairs, where each table stands for
            much, as a kind of federation does: then breadth counts for more.

    Example:
        >>> widest({"s": ["a", "b", "c"], "t": ["a", "b", "d"], "u": ["b"]})
        (['a', 'b', 'd'], ['t'])
        >>> widest({"s": ["a", "b", "c"], "t": ["a", "b", "d"], "u": ["b"]}, cells=True)
        (['a', 'b'], ['s', 't'])
        >>> widest({"s": ["a", "b", "c"], "t": ["a", "b", "c", "d"], "u": ["b", "c"]})
        (['a', 'b', 'c'], ['s', 't'])
    """
    _, _, methods = max(_sizes(scores), key=_cells if cells else _pairs, default=(0, 0, []))
    return methods, sorted(table for table, row in scores.items() if set(methods) <= set(row))


_Size = tuple[int, int, list[str]]
"""Of a set of methods: the tables that hold all of them, how many they are, their names."""


def _sizes(scores: Mapping[str, Collection[str]]) -> list[_Size]:
    """All sets of methods that tables, or several of them, have in common."""
    shared: set[frozenset[str]] = set()
    for row in scores.values():  # all intersections of the tables' methods
        shared |= {frozenset(row) & other for other in shared} | {frozenset(row)}
    return [
        (sum(methods <= set(row) for row in scores.values()), len(methods), sorted(methods))
        for methods in shared
    ]


def _cells(size: _Size) -> tuple[int, _Size]:
    return size[0] * size[1], size


def _pairs(size: _Size) -> tuple[int, _Size]:
    """By the pairs of methods in all tables: one table of 50 methods says more than ten of four."""
    return size[0] * size[1] * (size[1] - 1), size
