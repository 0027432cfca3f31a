"""Windows of a sequence that overlap: their order, and how many lie between two that share nothing.

Samples that share values are no independent ones: if they were divided at random, nearly all values
of a test sample would be in training samples. So they are divided by time, with a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from flbench.core.dataset import Dataset, Indices

PAIRS = 500
"""Pairs of neighbours that are looked at."""
COMMON = 0.5
"""Share of them from which the samples are windows of a sequence."""
LEAST = 3
"""Values that two neighbours must have in common, of more than one kind."""
DISTINCT = 0.9
"""Share of windows that must begin otherwise than all others, so that few agree by chance."""
FEW = 25
"""Samples below which it is not looked for windows in another order."""
LARGEST_STEP = 64
"""By how much a window may follow another one, where they are not in order."""
AT_ONCE = 4096
"""Windows that are hashed at once."""
BASE, OF_DOMAINS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
"""Odd factors of hashes: B of places, and that of domains."""
Codes = npt.NDArray[np.uint64]


def by_time(data: Dataset, rows: npt.NDArray[np.generic]) -> Dataset:
    """The data set with its gap, in order of time, if its samples are windows that overlap.

    Args:
        data: its samples may have any order.
        rows: what may be windows, of each sample: the sample itself, perhaps with what follows it,
            shape (m, T), (m, T, k) or (m, k, T).
    """
    domains = np.zeros(len(rows), dtype=np.int64)
    if data.domains is not None:
        domains = data.domains.numpy()
    gap = gap_of(rows, domains)
    if gap is not None:
        return replace(data, gap=gap, notes=(*data.notes, *overlap_notes(gap)))
    if (found := sequence_of(rows, domains)) is None:
        return data
    order, gap = found
    return replace(
        data,
        x=data.x[torch.from_numpy(order)],
        y=data.y[torch.from_numpy(order)],
        domains=None if data.domains is None else data.domains[torch.from_numpy(order)],
        test=None if data.test is None else data.test[torch.from_numpy(order)],
        gap=gap,
        notes=(*data.notes, "its samples were put in order of time", *overlap_notes(gap)),
    )


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


@dataclass(frozen=True)
class WindowEnds:
    """Hashes of windows, from which those of their beginnings and ends follow.

    Equal hashes stand for equal values, of one domain. That of values v_0, v_1, ... is the sum of
    h(v_j) B^(j+1) modulo 2^64.

    Attributes:
        whole: of each window, shape (m,).
        first, last: h of its first and last values, in their order, each shape (m, S).
        length: values of a window, T.
    """

    whole: Codes
    first: Codes
    last: Codes
    length: int

    @classmethod
    def of(
        cls, rows: npt.NDArray[np.generic], domains: Indices, order: Sequence[int] | None = None
    ) -> WindowEnds:
        """The hashes of windows, shape (m, T, ...); their values in another order, if it is given.

        Values are hashed a few windows at a time.
        """
        length = rows.shape[1]
        most, powers = min(length - LEAST, LARGEST_STEP), np.cumprod(np.full(length, BASE))
        found: list[tuple[Codes, Codes, Codes]] = []
        for start in range(0, len(rows), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            codes = hashed(rows[some], domains[some])
            codes = codes if order is None else codes[:, order]
            whole = (codes * powers).sum(axis=1, dtype=np.uint64)
            found.append((whole, codes[:, :most].copy(), codes[:, length - most :].copy()))
        whole, first, last = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return cls(whole, first, last, length)

    def parts(self) -> Iterator[tuple[Codes, Codes]]:
        """The ends and the beginnings of windows without so many values, from one value on.

        Equal hashes of the two stand for equal values.
        """
        powers = np.cumprod(np.full(self.length, BASE))
        tails = heads = self.whole
        for step in range(1, self.first.shape[1] + 1):
            tails = tails - self.first[:, step - 1] * powers[step - 1]
            heads = heads - self.last[:, -step] * powers[self.length - step]
            yield tails, heads * powers[step - 1]


def hashed(rows: npt.NDArray[np.generic], domains: Indices) -> Codes:
    """A number for what a window holds at each time, shape (m, T); those of domains differ.

    Args:
        rows: shape (m, T, ...).
    """
    values = np.ascontiguousarray(rows, dtype=np.float64).reshape(*rows.shape[:2], -1)
    codes = (values + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    for shift in (29, 32):
        codes = (codes ^ (codes >> np.uint64(shift))) * BASE
    powers = np.cumprod(np.full(codes.shape[2], BASE))
    at_once: Codes = (codes * powers).sum(axis=2, dtype=np.uint64)
    return at_once + domains.astype(np.uint64)[:, None] * OF_DOMAINS


def sequence_of(rows: npt.NDArray[np.generic], domains: Indices) -> tuple[Indices, int] | None:
    """The order of windows that overlap, in any order and at any distances, and their gap.

    They are such windows if more than half of them end as another one of their domain begins, some
    values later, and less than a quarter of them once the values of all are in another order.

    Args:
        rows: as for `gap_of`; so are the domains.

    Returns:
        The samples of each domain in its places, in order of time, and how many of them lie between
        two that share nothing; None = they are no such windows, or too few to tell.

    Example:
        >>> series = np.random.default_rng(0).normal(size=50)
        >>> shuffled = np.random.default_rng(1).permutation(40)
        >>> rows = np.stack([series[i : i + 6] for i in range(40)])[shuffled]
        >>> order, gap = sequence_of(rows, np.zeros(40, int))
        >>> shuffled[order].tolist() == list(range(40)), gap
        (True, 5)
    """
    if len(rows) < FEW:
        return None
    for axis in {1, rows.ndim - 1}:
        turned = np.moveaxis(rows, axis, 1)[:, : 2 * LARGEST_STEP]
        if turned.shape[1] <= LEAST:
            continue
        ends = WindowEnds.of(turned, domains)
        step = next((step for step, share in _followed(ends) if share > COMMON), None)
        if step is None:
            continue
        mixed = np.random.default_rng(0).permutation(turned.shape[1]).tolist()
        shares = dict(_followed(WindowEnds.of(turned, domains, mixed)))
        if max([share for at, share in shares.items() if at <= step], default=0.0) < COMMON / 2:
            return _in_time(_followers(ends), domains, rows.shape[axis])
    return None


def _followed(ends: WindowEnds) -> Iterator[tuple[int, float]]:
    """The share of windows that end as another one begins, so many values later or fewer."""
    some = np.unique(np.linspace(0, len(ends.whole) - 1, PAIRS).astype(np.int64))
    found = np.zeros(len(some), dtype=bool)
    for step, (tails, heads) in enumerate(ends.parts(), start=1):
        ordered = np.sort(heads)
        if _is_ambiguous(ordered):
            return
        places = np.searchsorted(ordered, tails[some]).clip(max=len(ordered) - 1)
        found |= ordered[places] == tails[some]
        yield step, float(found.mean())


def _is_ambiguous(ordered: Codes) -> bool:
    """Whether too many windows begin alike; their hashes are sorted."""
    distinct = 1 + int((ordered[1:] != ordered[:-1]).sum())
    return distinct < DISTINCT * len(ordered)


def _followers(ends: WindowEnds) -> dict[int, tuple[int, int]]:
    """The window that follows each one next, and how many values later."""
    after: dict[int, tuple[int, int]] = {}
    before: set[int] = set()
    last = first = np.arange(len(ends.whole))  # without one after it, without one before it
    for step, (tails, heads) in enumerate(ends.parts(), start=1):
        if _is_ambiguous(np.sort(heads)):
            break
        free = dict(zip(heads[first].tolist(), first.tolist(), strict=True))
        for row, tail in zip(last.tolist(), tails[last].tolist(), strict=True):
            if free.get(tail, row) != row:
                after[row] = free.pop(tail), step
                before.add(after[row][0])
        last = np.array([row for row in last.tolist() if row not in after], dtype=np.int64)
        first = np.array([row for row in first.tolist() if row not in before], dtype=np.int64)
    return after


def _in_time(
    after: dict[int, tuple[int, int]], domains: Indices, length: int
) -> tuple[Indices, int]:
    """The order of windows that follow each other, and their gap; pieces share nothing."""
    firsts = set(range(len(domains))) - {row for row, _ in after.values()}
    order, times, now = list[int](), list[int](), 0
    seen: set[int] = set()
    for first in (*sorted(firsts), *range(len(domains))):  # those in a circle come last
        row: int | None = first
        while row is not None and row not in seen:
            seen.add(row)
            order.append(row)
            times.append(now)
            row, step = after.get(row, (None, length))
            now += step
    by_time = np.array(order, dtype=np.int64)
    overlaps = np.searchsorted(times, np.array(times) + length) - np.arange(len(times)) - 1
    found = np.empty_like(by_time)
    found[np.argsort(domains, kind="stable")] = by_time[np.argsort(domains[by_time], kind="stable")]
    return found, int(overlaps.max())


def overlap_notes(gap: int | None) -> list[str]:
    """What to say of windows that overlap, if any were found (`gap_of`)."""
    if gap is None:
        return []
    return [
        f"its samples are windows of a sequence that overlap: parts are divided by time, with {gap}"
        " samples left out between them"
    ]
