"""Who wins: one score for each method over the kinds of federation, and what it costs.

A kind's number is the improvability of a method over the tables of that kind that compare the
most pairs of methods without a gap; the score is the mean over the kinds that have the most numbers
without a gap. Nothing that is missing is filled in: what a method was not run on has no number, and
a method that lacks one of those kinds has no score. Rows that are not ranked stand among them as
lines to read against; a number of theirs that lacks tables says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from flbench.leaderboard.across import contenders, table_errors
from flbench.leaderboard.kinds import by_kind, judged_alike
from flbench.leaderboard.resampling import (
    TableErrors,
    bootstrap,
    drawn_units,
    improvability,
    mean_over_suites,
)
from flbench.leaderboard.statistics import DIGITS, widest
from flbench.leaderboard.table import Table, TableRow
from flbench.metrics import Floats

Interval95 = tuple[float, float]
LEAST = 3
"""Methods of a kind that is compared at all."""
MEANING = (
    "By how many per cent the error of a method would shrink if it were the best method in every"
    " table: 0 is the best. Methods at their defaults, the best score first."
)
NOTE = (
    "A method that was not run on all of these has no score; * = not in all of the tables that the"
    " column is over. Small, or in brackets: 95 % intervals, over resampled suites and seeds; of a"
    " table with one or two seeds over its clients within these seeds, the same ones for all"
    " methods. Bytes: megabytes of a client over those of one model for all. Work: local epochs"
    " over those of one cohort in every round; ~ = estimated. Both are medians over the tables."
)


@dataclass(frozen=True)
class Improvability:
    """A mean improvability in per cent, and its 95 % interval; None = too few seeds.

    `tables` is over how many it is, of the `of` of its kind.
    """

    value: float
    ends: Interval95 | None
    tables: int
    of: int

    @property
    def whole(self) -> bool:
        """Whether it is over all tables that the others are over."""
        return self.tables == self.of


@dataclass(frozen=True)
class KindNumbers:
    """What is known of one kind of federation.

    Attributes:
        tables: all of the kind that count across suites.
        compared: those that hold every method of `methods`.
        methods: the ranked methods that are compared, by name.
        numbers: of these, and of references.
        draws: of the ranked methods, shape (replicates, methods); see `resampling`.
        drawn: what the intervals are over, in words; "" = there are none.
    """

    tables: tuple[Table, ...]
    compared: tuple[Table, ...]
    methods: tuple[str, ...]
    numbers: Mapping[str, Improvability]
    draws: Floats
    drawn: str


@dataclass(frozen=True)
class Standing:
    """A method over the kinds.

    Attributes:
        name: of the method.
        reference: why it is not ranked; "" = it is.
        anchor: whether it is the baseline of one model for all.
        alone: whether it is that of training alone.
        score: mean over the kinds that are scored; None = one of them is missing.
        cells: kind -> its number.
        bytes: megabytes of a client over those of one model for all, median over tables.
        work: local epochs over those of one cohort in every round, median over tables.
        counted: whether all of these epochs were counted.
    """

    name: str
    reference: str
    anchor: bool
    alone: bool
    score: Improvability | None
    cells: Mapping[str, Improvability]
    bytes: float | None
    work: float | None
    counted: bool


@dataclass(frozen=True)
class WhoWins:
    """Methods over kinds of federation, the best score first, those without one last.

    Attributes:
        kinds: kind -> what is known of it, in their order.
        scored: the kinds that the score is over.
        lines: of the methods and the references.
    """

    kinds: Mapping[str, KindNumbers]
    scored: tuple[str, ...]
    lines: tuple[Standing, ...]

    @cached_property
    def ranked(self) -> list[Standing]:
        """Those that are ranked and have a score."""
        return [one for one in self.lines if one.score is not None and not one.reference]


def who_wins(found: Sequence[Table]) -> WhoWins | None:
    """Methods at defaults over the kinds of federation of some tables; None = too few of them."""
    kinds = {}
    for kind, tables in by_kind(judged_alike(found)).items():
        if (numbers := _numbers(tables)) is not None:
            kinds[kind] = numbers
    if not kinds:
        return None
    common, scored = widest({kind: one.methods for kind, one in kinds.items()}, cells=True)
    scored = [kind for kind in kinds if kind in scored]
    rows = _rows(kinds.values())
    scores = _scores(kinds, scored, common)
    lines = [
        _standing(name, own, kinds, scores.get(name), _anchors(kinds.values()))
        for name, own in rows.items()
    ]
    lines = [one for one in lines if one.cells]
    lines.sort(key=_order)
    return WhoWins(kinds, tuple(scored), tuple(lines))


def _order(one: Standing) -> tuple[bool, float, str]:
    return one.score is None, round(one.score.value, DIGITS) if one.score else 0.0, one.name


def _references(table: Table) -> dict[str, TableRow]:
    """The rows that are not ranked, by method at its defaults; training alone also at others.

    Those of training alone in every round are under its name and parameters. An oracle that never
    used the true groups is one model for all, and left out.
    """
    found = {}
    for row in table.main:
        if row.reference and not row.is_idle_oracle and (row.default or row.baseline):
            params = ", ".join(f"{key}={value}" for key, value in sorted(row.params.items()))
            found[row.method if row.default else f"{row.method} ({params})"] = row
    return found


def _numbers(tables: Sequence[Table]) -> KindNumbers | None:
    """The numbers of one kind; None where no table of it compares enough methods."""
    ranked = {table.title: contenders(table) for table in tables}
    methods, titles = widest({title: rows.keys() for title, rows in ranked.items()})
    chosen = [table for table in tables if table.title in titles]
    errors: dict[str, list[TableErrors]] = {}
    compared: list[Table] = []
    others: dict[str, dict[str, list[TableErrors]]] = {}
    for table in chosen if len(methods) >= LEAST else ():
        rows = [ranked[table.title][name] for name in methods]
        seeds = sorted(set.intersection(*(set(row.seeds) for row in rows)))
        if not seeds:
            continue
        compared.append(table)
        errors.setdefault(table.suite, []).append(_errors(table, rows, seeds))
        for name, row in _references(table).items():
            if set(seeds) <= set(row.seeds):
                of_suites = others.setdefault(name, {})
                of_suites.setdefault(table.suite, []).append(_errors(table, [*rows, row], seeds))
    if not compared:
        return None
    draws, count = bootstrap(errors), len(compared)
    drawn = drawn_units(errors)
    points = _points(errors)
    numbers = {
        name: Improvability(float(points[at]), _ends(draws[:, at], drawn), count, count)
        for at, name in enumerate(methods)
    }
    numbers |= _of_references(others, len(methods), count)
    return KindNumbers(tuple(tables), tuple(compared), tuple(methods), numbers, draws, drawn)


def _of_references(
    errors: Mapping[str, Mapping[str, Sequence[TableErrors]]], ranked: int, count: int
) -> dict[str, Improvability]:
    """The numbers of what is not ranked: its errors are the last, after those of the ranked."""
    found = {}
    for name, own in errors.items():
        value = float(_points(own, ranked)[-1])
        if not np.isnan(value):
            ends = _ends(bootstrap(own, ranked=ranked)[:, -1], drawn_units(own))
            found[name] = Improvability(value, ends, sum(map(len, own.values())), count)
    return found


def _errors(table: Table, rows: Sequence[TableRow], seeds: Sequence[int]) -> TableErrors:
    score = table.task.score
    scores = [{seed: score(value) for seed, value in row.by_seed().items()} for row in rows]
    return table_errors(table.task, scores, seeds, rows)


def _points(errors: Mapping[str, Sequence[TableErrors]], ranked: int | None = None) -> Floats:
    return mean_over_suites({
        suite: [improvability(one.by_seed.mean(axis=0), ranked) for one in tables]
        for suite, tables in errors.items()
    })  # fmt: skip


def _ends(draws: Floats, drawn: str) -> Interval95 | None:
    """The 95 % interval of some draws; None where nothing was drawn."""
    if not drawn or np.isnan(draws).any():
        return None
    low, high = np.percentile(draws, (2.5, 97.5)).tolist()
    return low, high


def _scores(
    kinds: Mapping[str, KindNumbers], scored: Sequence[str], methods: Sequence[str]
) -> dict[str, Improvability]:
    """The scores of the methods that all of these kinds have, and of references that are whole."""
    numbers = [kinds[kind].numbers for kind in scored]
    names = [name for name in dict.fromkeys(name for one in numbers for name in one)
             if all(name in one and one[name].whole for one in numbers)]  # fmt: skip
    found = {}
    for name in names:
        value = float(np.mean([one[name].value for one in numbers]))
        ends = None
        if name in methods and all(kinds[kind].drawn for kind in scored):
            draws = [kinds[kind].draws[:, kinds[kind].methods.index(name)] for kind in scored]
            ends = _ends(np.mean(_apart(draws), axis=0), "all")
        tables = sum(len(kinds[kind].compared) for kind in scored)
        found[name] = Improvability(value, ends, tables, tables)
    return found


def _apart(draws: Sequence[Floats]) -> list[Floats]:
    """Draws of several kinds, each turned by another share, so that they are not the same draws."""
    return [np.roll(one, at * len(one) // len(draws)) for at, one in enumerate(draws)]


def _rows(kinds: Iterable[KindNumbers]) -> dict[str, list[tuple[Table, TableRow]]]:
    """The rows that numbers are from, by method."""
    found: dict[str, list[tuple[Table, TableRow]]] = {}
    for kind in kinds:
        for table in kind.compared:
            for name, row in {**contenders(table), **_references(table)}.items():
                if name in kind.numbers:
                    found.setdefault(name, []).append((table, row))
    return found


def _anchors(kinds: Iterable[KindNumbers]) -> dict[str, TableRow]:
    """The row of one model for all, by the title of its table."""
    return {
        table.title: row
        for kind in kinds
        for table in kind.compared
        for row in contenders(table).values()
        if row.one_for_all
    }


def _standing(
    name: str,
    rows: Sequence[tuple[Table, TableRow]],
    kinds: Mapping[str, KindNumbers],
    score: Improvability | None,
    anchors: Mapping[str, TableRow],
) -> Standing:
    ratios, works = [], []
    for table, row in rows:
        base = anchors.get(table.title)
        sent, usual = (one.mean_of("mb_per_client") if one else None for one in (row, base))
        if sent is not None and usual:
            ratios.append(sent / usual)
        if row.work is not None:
            works.append(row.work)
    cells = {kind: one.numbers[name] for kind, one in kinds.items() if name in one.numbers}
    return Standing(
        name,
        next((row.reference for _, row in rows if row.reference), ""),
        any(row.one_for_all for _, row in rows),
        any(row.baseline and row.reference for _, row in rows),
        score,
        cells,
        median(ratios) if len(ratios) == len(rows) else None,
        median(works) if len(works) == len(rows) else None,
        all(row.counted for _, row in rows),
    )


def score_of(wins: WhoWins) -> str:
    """What the score is over, and each column."""
    counts = [
        f"{kind} {len(one.compared)} of {len(one.tables)}" for kind, one in wins.kinds.items()
    ]
    return (
        f"Score: the mean over {listed(wins.scored)}. A column is over the tables that hold all of"
        f" its methods: {listed(counts)}."
    )


def ratio(value: float | None) -> str:
    """A number of times, of about three digits.

    Example:
        >>> ratio(0.0121), ratio(1), ratio(433.78), ratio(None)
        ('0.01', '1.0', '434', '-')
    """
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if 0 < value < 1 else f"{value:.1f}"


def listed(words: Sequence[str]) -> str:
    """Words in a sentence.

    Example:
        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
