"""Drawings: which figures belong to a table, and which of its rows they show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flbench.leaderboard.statistics import Block
from flbench.leaderboard.table import Table, TableRow
from flbench.results.files import slug

MOST = 12
"""Rows in a figure."""


@dataclass(frozen=True)
class Drawing:
    """One figure: its file's name, a text for those who do not see it, and what draws it.

    `draw` gives the SVG file, or None where nothing can be drawn.
    """

    name: str
    alt: str
    draw: Callable[[], bytes | None]


def shown(table: Table) -> list[TableRow]:
    """At most 12 rows: the oracle and the baselines, and the best ranked; the best first."""
    rows = table.main
    always = [row for row in rows if row.default and (row.is_oracle or row.baseline)][:MOST]
    best = [row for row in rows if row.rank is not None and row not in always]
    kept = [*always, *best[: MOST - len(always)]]
    return [row for row in rows if row in kept]


def drawings(table: Table, alone: bool = True) -> list[Drawing]:
    """The figures of a table; unless it is alone (`is_alone`), their names hold its fingerprint."""
    from flbench import figures

    about = f"{table.suite} on {table.dataset}"
    parts = [slug(table.suite), slug(table.dataset), *([] if alone else [table.fingerprint])]
    rows = [(row.name, row.results) for row in shown(table)]
    every = [(row.name, row.results) for row in table.main]
    kinds = [
        ("curves", "test accuracy and loss, round by round", figures.curves, rows),
        ("pareto", "accuracy against traffic", figures.pareto, rows),
        ("clients", "accuracy of every client", figures.clients, rows),
        ("partition", "who holds how much of which label", figures.partition, every),
        ("scores", "scores that groups were made from", figures.scores, every),
        ("memberships", "groups, round by round", figures.memberships, every),
    ]
    return [
        Drawing("--".join([*parts, kind]) + ".svg", f"{about}: {alt}", partial(draw, which, about))
        for kind, alt, draw, which in kinds
    ]


def across(blocks: Sequence[Block]) -> list[Drawing]:
    """A figure of average ranks for each block."""
    from flbench import figures

    found = []
    for place, block in enumerate(blocks, start=1):
        count = len(block.tables)
        title = f"average rank of {len(block.ranks)} methods on {count} tables"
        draw = partial(figures.critical_difference, block.ranks, block.distance, count, title)
        name = f"critical-difference{f'-{place}' if place > 1 else ''}.svg"
        found.append(Drawing(name, f"{title}, with critical difference", draw))
    return found
