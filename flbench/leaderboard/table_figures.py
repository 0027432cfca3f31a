"""Drawings: the figures of a table, which rows they show, and the figures across tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flbench.leaderboard.statistics import Block
from flbench.leaderboard.table import Table, TableRow
from flbench.results.files import slug

MOST = 12
"""Rows in a figure."""
MAIN_JOB = ("noisy-noniid", "digits")
"""Suite and data set of the command that the README shows."""
SHOWCASE = "accuracy-against-traffic.svg"


@dataclass(frozen=True)
class Drawing:
    """One figure: its file's name, a text for those who do not see it, and what draws it.

    `draw` gives the SVG file, or None where nothing can be drawn.
    """

    name: str
    alt: str
    draw: Callable[[], bytes | None]


def shown(table: Table) -> list[TableRow]:
    """At most 12 rows: oracle, baselines, and the best others but references; the best first."""
    rows = table.main
    always = [row for row in rows if row.default and (row.is_oracle or row.baseline)][:MOST]
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
    every = [(row.name, row.results) for row in table.main]
    return [
        Drawing(
            f"{name}--partition.svg",
            f"{about}: who holds how much of which label",
            partial(figures.partition, every, about),
        ),
        Drawing(
            f"{name}--rows.svg",
            f"{about}: accuracy by round, against traffic and by client; scores and groups",
            partial(_rows, table, about),
        ),
    ]


def _rows(table: Table, about: str) -> bytes | None:
    """All that can be drawn of the rows of a table, in one file."""
    from flbench import figures

    best = [(row.name, row.results) for row in shown(table)]
    every = [(row.name, row.results) for row in table.main]
    parts = [
        figures.curves(best, about),
        figures.pareto(best, about),
        figures.clients(best, about),
        figures.scores(every, about),
        figures.memberships(every, about),
    ]
    return figures.stacked([part for part in parts if part is not None])


def showcase(found: Sequence[Table]) -> list[Drawing]:
    """Accuracy against traffic on the table of the main job, which the README shows."""
    from flbench import figures

    drawn = []
    for table in found:
        if (table.suite, table.dataset) == MAIN_JOB:
            about = f"{table.suite} on {table.dataset}"
            rows = [(row.name, row.results) for row in shown(table)]
            draw = partial(figures.pareto, rows, about)
            drawn.append(Drawing(SHOWCASE, f"{about}: accuracy against traffic", draw))
    return drawn[:1]


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
