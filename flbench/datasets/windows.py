"""Windows of a sequence that overlap: their order, and how many lie between two that share nothing.

Samples that share values are no independent ones: if they were divided at random, nearly all values
of a test sample would be in training samples. So they are divided by time, with a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from flbench.core.dataset import Dataset, Indices
from flbench.errors import UserError

PAIRS = 500
"""Pairs of neighbours that are looked at."""
COMMON = 0.5
"""Share of them from which the samples are windows of a sequence."""
LEAST = 3
"""Values that two neighbours must have in common, of more than one kind."""
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

    Raises:
        UserError: they overlap, and no order of time is found.
    """
    domains = np.zeros(len(rows), dtype=np.int64)
    if data.domains is not None:
        domains = data.domains.numpy()
    gap = gap_of(rows, domains)
    if gap is not None:
        return replace(data, gap=gap, notes=(*data.notes, *overlap_notes(gap)))
    order = sequence_of(rows, domains)
    if order is None:
        return data
    gap = gap_of(rows[order], domains[order])
    if gap is None:
        raise UserError(
            f"{data.name}: its samples are windows of a sequence that overlap, in no order that"
            " could be found, so a test sample would share values with training samples: put them"
            " in order of time, those of each client together"
        )
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
        constant: how many values are equal at its end, shape (m,).
        length: values of a window, T.
    """

    whole: Codes
    first: Codes
    last: Codes
    constant: Indices
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
        found: list[tuple[Codes, Codes, Codes, Indices]] = []
        for start in range(0, len(rows), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            codes = hashed(rows[some], domains[some])
            codes = codes if order is None else codes[:, order]
            differs = codes[:, ::-1] != codes[:, -1:]
            constant = np.where(differs.any(axis=1), differs.argmax(axis=1), length)
            whole = (codes * powers).sum(axis=1, dtype=np.uint64)
            found.append(
                (whole, codes[:, :most].copy(), codes[:, length - most :].copy(), constant)
            )
        whole, first, last, constant = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return cls(whole, first, last, constant, length)

    def parts(self) -> Iterator[tuple[Codes, Codes, npt.NDArray[np.bool_]]]:
        """The ends and the beginnings of windows without so many values, from one value on.

        Equal hashes of the two stand for equal values. The last mask says whether an end varies.
        """
        powers = np.cumprod(np.full(self.length, BASE))
        tails = heads = self.whole
        for step in range(1, self.first.shape[1] + 1):
            tails = tails - self.first[:, step - 1] * powers[step - 1]
            heads = heads - self.last[:, -step] * powers[self.length - step]
            yield tails, heads * powers[step - 1], self.constant < self.length - step


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


def sequence_of(rows: npt.NDArray[np.generic], domains: Indices) -> Indices | None:
    """The order of windows that overlap and are shuffled; None = they are no such windows.

    They are if more than half of the samples end as exactly one other of their domain begins, some
    values later, and less than a quarter of them once the values of all are in another order.

    Args:
        rows: as for `gap_of`; so are the domains.

    Example:
        >>> series = np.random.default_rng(0).normal(size=40)
        >>> shuffled = np.random.default_rng(1).permutation(30)
        >>> rows = np.stack([series[i : i + 6] for i in range(30)])[shuffled]
        >>> found = sequence_of(rows, np.zeros(30, int))
        >>> shuffled[found].tolist() == list(range(30))
        True
    """
    for axis in {1, rows.ndim - 1}:
        turned = np.moveaxis(rows, axis, 1)[:, : 2 * LARGEST_STEP]
        if turned.shape[1] <= LEAST:
            continue
        ends = WindowEnds.of(turned, domains)
        mixed = np.random.default_rng(0).permutation(turned.shape[1]).tolist()
        for step, parts in enumerate(ends.parts(), start=1):
            if _followed(*parts) > COMMON:
                others = WindowEnds.of(turned, domains, mixed).parts()
                if _followed(*next(islice(others, step - 1, None))) < COMMON / 2:
                    return _chained(ends, step, domains)
                break
    return None


def _followed(tails: Codes, heads: Codes, varies: npt.NDArray[np.bool_]) -> float:
    """The share of windows that end as exactly one window begins."""
    some = np.unique(np.linspace(0, len(tails) - 1, PAIRS).astype(np.int64))
    ordered = np.sort(heads)
    counts = np.searchsorted(ordered, tails[some], "right") - np.searchsorted(ordered, tails[some])
    return float(((counts == 1) & varies[some]).mean())


def _chained(ends: WindowEnds, step: int, domains: Indices) -> Indices:
    """The samples of each domain in its places, one after the other as they follow in time.

    What is left in pieces, as some windows are missing, is joined at larger steps.
    """
    after, before = _followers(ends, step)
    order, seen = list[int](), set[int]()
    firsts = [row for row in range(len(domains)) if row not in before]
    for first in (*firsts, *range(len(domains))):  # those in a circle come last
        row: int | None = first
        while row is not None and row not in seen:
            seen.add(row)
            order.append(row)
            row = after.get(row)
    in_time = np.array(order, dtype=np.int64)
    result = np.empty_like(in_time)
    result[np.argsort(domains, kind="stable")] = in_time[
        np.argsort(domains[in_time], kind="stable")
    ]
    return result


def _followers(ends: WindowEnds, first_step: int) -> tuple[dict[int, int], set[int]]:
    """Which window follows which one, and all that follow one."""
    after: dict[int, int] = {}
    before: set[int] = set()
    for step, (tails, heads, varies) in enumerate(ends.parts(), start=1):
        if step < first_step:
            continue
        free: dict[int, list[int]] = {}
        for row in sorted(set(range(len(heads))) - before, reverse=True):
            free.setdefault(int(heads[row]), []).append(row)
        for row in sorted(set(range(len(heads))) - after.keys()):
            found = free.get(int(tails[row])) if varies[row] else None
            if found and found[-1] != row:
                after[row] = found.pop()
                before.add(after[row])
    return after, before


def overlap_notes(gap: int | None) -> list[str]:
    """What to say of windows that overlap, if any were found (`gap_of`)."""
    if gap is None:
        return []
    return [
        f"its samples are windows of a sequence that overlap: parts are divided by time, with {gap}"
        " samples left out between them"
    ]
