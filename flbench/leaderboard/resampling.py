"""Improvability of methods over tables, and its draws of other suites, seeds or clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flbench.leaderboard.statistics import ClientIds
from flbench.metrics import Floats

REPLICATES = 2000
SEED = 20260101
LEAST_SEEDS = 3
"""Fewer seeds say nothing about others: then clients are drawn within the seeds that there are."""


@dataclass(frozen=True)
class TableErrors:
    """The errors of some methods in one table, over the seeds that all of them have.

    Attributes:
        by_seed: shape (seeds, methods).
        by_client: for each seed the errors of its clients, shape (N, methods), the same clients
            for every method; () = they are not known.
        who: for each seed the ids of its clients, shape (N,), where they are the same ones in every
            seed; () = each seed has others.
    """

    by_seed: Floats
    by_client: tuple[Floats, ...] = ()
    who: tuple[ClientIds, ...] = ()

    @property
    def unit(self) -> str:
        """What is drawn: "seeds", or of few seeds "clients"; "" where neither says anything."""
        if len(self.by_seed) >= LEAST_SEEDS:
            return "seeds"
        return "clients" if self.by_client else ""

    def drawn(self, draw: np.random.RandomState, count: int) -> Floats:
        """Mean errors over `count` draws with replacement, shape (count, methods).

        Methods are paired: all of them have the same draws. NaN where there is no `unit`.
        """
        if self.unit == "seeds":
            seeds = draw.randint(len(self.by_seed), size=(count, len(self.by_seed)))
            found: Floats = self.by_seed[seeds].mean(axis=1)
            return found
        found = np.full((count, self.by_seed.shape[1]), np.nan)
        if not self.unit:
            return found
        if self.who:  # a client is drawn with all its seeds
            ids = np.unique(np.concatenate(self.who))
            of_all = _times(draw, len(ids), count)
        total, there = np.zeros(found.shape), np.zeros((count, 1))
        for at, clients in enumerate(self.by_client):
            if self.who:
                times = of_all[:, np.searchsorted(ids, self.who[at])]
            else:
                times = _times(draw, len(clients), count)
            number = times.sum(axis=1, keepdims=True)  # 0: nobody of this seed is among the drawn
            total += times @ clients / np.maximum(number, 1)
            there += number > 0
        found = total / there
        return found


def _times(draw: np.random.RandomState, size: int, count: int) -> npt.NDArray[np.int64]:
    """How often each of some is among as many draws with replacement, shape (count, size)."""
    return draw.multinomial(size, np.full(size, 1 / size), size=count)


def improvability(errors: Floats, ranked: int | None = None) -> Floats:
    """How much lower the error of the best is, in per cent of a method's own error.

    100 (error - lowest error) / error; 0 for the best.

    Args:
        errors: shape (..., methods).
        ranked: so many of the methods, the first ones, can be the best; None = all. What others
            have is below 0 where they are better than that; NaN = an error of 0 that is.
    """
    best = errors[..., :ranked].min(axis=-1, keepdims=True)
    excess = errors - best
    found: Floats = 100 * np.divide(excess, errors, out=np.zeros_like(errors), where=errors != 0)
    found[(errors == 0) & (excess < 0)] = np.nan
    return found


def mean_over_suites(values: Mapping[str, Sequence[Floats]]) -> Floats:
    """Mean of a number over the tables of each suite, and over suites."""
    of_suites = [np.mean(tables, axis=0) for tables in values.values()]
    found: Floats = np.mean(of_suites, axis=0)
    return found


def bootstrap(
    errors: Mapping[str, Sequence[TableErrors]],
    replicates: int = REPLICATES,
    ranked: int | None = None,
) -> Floats:
    """Mean improvability over resampled suites and seeds, shape (replicates, methods).

    As many suites as there are are drawn with replacement; for each of them, and each of its
    tables, as many seeds as there are, or clients within seeds (`TableErrors`). The best method is
    looked for in each draw. Always the same draws: the stream of numpy's `RandomState` is frozen.

    Args:
        errors: suite -> its tables.
        replicates: number of draws.
        ranked: as of `improvability`.
    """
    draw = np.random.RandomState(SEED)
    chosen = draw.randint(len(errors), size=(replicates, len(errors)))
    methods = next(iter(errors.values()))[0].by_seed.shape[1]
    total: Floats = np.zeros((replicates, methods))
    for place, tables in enumerate(errors.values()):
        for slot in range(len(errors)):
            at = np.flatnonzero(chosen[:, slot] == place)
            for table in tables:
                drawn = table.drawn(draw, len(at))
                total[at] += improvability(drawn, ranked) / len(tables)
    return total / len(errors)


def drawn_units(errors: Mapping[str, Sequence[TableErrors]]) -> str:
    """In words, what intervals are drawn over; "" where there can be none.

    Example:
        >>> four, three = TableErrors(np.zeros((4, 2))), TableErrors(np.zeros((3, 2)))
        >>> drawn_units({"s": [four], "t": [three]})
        'suites and seeds'
    """
    units = {table.unit for tables in errors.values() for table in tables}
    if "" in units:
        return ""
    words = {"seeds": "seeds", "clients": "clients within seeds"}
    said = [*(["suites"] if len(errors) > 1 else []), *(words[one] for one in sorted(units))]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
