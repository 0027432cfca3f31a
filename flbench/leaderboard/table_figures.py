"""Drawings: the figures of a table, which rows they show, and the figures across tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flbench.leaderboard.statistics import Block
from flbench.leaderboard.table import Table, TableRow
from flbench.results.files import slug
from flbench.results.schema import Result

NamedResults = Sequence[tuple[str, Sequence[Result]]]
"""Names of rows, with their results."""
MOST = 8
"""Rows in a figure, each with a name."""
SHOWCASE = "what-clustering-gives.svg"
"""The file of the figure of one table that the README shows."""


@dataclass(frozen=True)
class Drawing:
    """One figure: its file's name, a text for those who do not see it, and what draws it.

    `draw` gives the SVG file, or None where nothing can be drawn. It depends on nothing but
    `shows`: texts, numbers, and rows with their results.
    """

    name: str
    alt: str
    draw: Callable[[], bytes | None]
    shows: tuple[Any, ...]


def shown(table: Table) -> list[TableRow]:
    """At most 8 rows: oracle, baselines, and the best others but references; the best first.

    Of baselines that train alone, or learn nothing, they are the best two.
    """
    rows = table.main
    always = [row for row in rows if row.nearest and (row.is_oracle or row.one_for_all)]
    apart = [row for row in rows if row.nearest and row.baseline and row not in always]
    always = [*always, *apart[:2]][:MOST]
    best = [row for row in rows if not row.reference and row not in always]
    kept = [*always, *best[: MOST - len(always)]]
    return [row for row in rows if row in kept]


def drawings(table: Table, alone: bool = True) -> list[Drawing]:
    """The figures of a table: its partition, which no new row changes, and all about its rows.

    Unless the table is alone (`is_alone`), their names hold its fingerprint.
    """
    from flbench import figures

    about = f"{table.suite} on {table.dataset}"
    name = "--".join(
        [slug(table.suite), slug(table.dataset), *([] if alone else [table.fingerprint])]
    )
    best = [(row.name, row.results) for row in shown(table)]
    every = [(row.name, row.results) for row in table.main]
    return [
        Drawing(
            f"{name}--partition.svg",
            f"{about}: who holds how much of which label",
            partial(figures.partition, every, about),
            ("partition", *_partition_of(every), about),
        ),
        Drawing(
            f"{name}--rows.svg",
            f"{about}: {table.task.heading} by round, against traffic and by client; scores and"
            " groups",
            partial(_rows, best, every, about),
            ("rows", best, every, about),
        ),
    ]


def _partition_of(rows: NamedResults) -> tuple[Any, ...]:
    """All that the figure of a partition depends on: seed, counts and groups of one result.

    Another row of the table has the same, so that a new one need not draw the figure again.
    """
    from flbench.figures.partition import counted

    found = counted(rows)
    return () if found is None else (found.seed, found.clients.labels, found.clients.group)


def _rows(best: NamedResults, every: NamedResults, about: str) -> bytes | None:
    """All that can be drawn of the rows of a table, in one file."""
    from flbench import figures

    parts = [
        figures.curves(best, about),
        figures.pareto(best, about),
        figures.clients(best, about),
        figures.scores(every, about),
        figures.memberships(every, about),
    ]
    return figures.stacked([part for part in parts if part is not None])


def showcase(found: Sequence[Table]) -> list[Drawing]:
    """What clustering gives, on the table that shows it of most methods; none, if no table does.

    It is that with most rows of those in which the true groups help: the oracle is better than
    training alone and than one model for all.
    """
    from flbench import figures

    helped = [
        table
        for table in found
        if any(row.is_oracle and row.gain is not None and row.gain > 0 for row in table.main)
    ]
    if not helped:
        return []
    table = max(helped, key=lambda one: len(one.compared))
    about = f"{table.suite} on {table.dataset}"
    rows = [(row.name, row.results) for row in shown(table)]
    every = [(row.name, row.results) for row in table.compared]
    draw = partial(figures.clustering_gain, every, rows, about)
    alt = f"{about}: scores between clients in blocks, and {table.task.heading} against traffic"
    return [Drawing(SHOWCASE, alt, draw, ("showcase", every, rows, about))]


def across(blocks: Sequence[Block]) -> list[Drawing]:
    """A figure of average ranks for each block."""
    from flbench import figures

    found = []
    for place, block in enumerate(blocks, start=1):
        count = len(block.tables)
        title = f"average rank of {len(block.ranks)} methods on {count} tables"
        shows = (block.ranks, block.distance, count, title)
        draw = partial(figures.critical_difference, *shows)
        name = f"critical-difference{f'-{place}' if place > 1 else ''}.svg"
        alt = f"{title}, with critical difference"
        found.append(Drawing(name, alt, draw, ("critical difference", *shows)))
    return found
