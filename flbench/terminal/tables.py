"""Tables in the terminal: the leaderboard's rows after a command, and others."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from rich.console import Console as Terminal
from rich.table import Table

from flbench.errors import escaped
from flbench.leaderboard.grouping import (
    METHOD,
    Column,
    ResultGroup,
    asked_of,
    cells_of,
    metric_column,
    rows_of,
    shown_metrics,
    uneven_marks,
)
from flbench.metrics import metrics_of
from flbench.results.plain_rows import DIGITS, as_table
from flbench.results.schema import Result
from flbench.terminal.lines import tell

WIDE = 120
"""Characters of a line of `table_text`."""


def print_rows(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of plain data as a table."""
    _print(title, *as_table(rows))


def _print(
    title: str,
    headings: Sequence[tuple[str, bool]],
    lines: Sequence[Sequence[str]],
    wrapped: Collection[str] = (),
    to: IO[str] | None = None,
) -> None:
    """Print a table. Where there is no place, headings wrap at words, but numbers are never cut.

    Args:
        title: above the table.
        headings: of the columns, each with whether its column holds words, which stand left.
        lines: the cells of each row.
        wrapped: headings of columns whose text wraps, too.
        to: None = standard output.
    """
    lines = [[escaped(text) for text in line] for line in lines]
    width, forced = (None, None) if to is None else (WIDE, False)
    terminal = Terminal(
        file=to, width=width, force_terminal=forced,
        force_jupyter=False,  # in a notebook rich would show the table, and write nothing
        markup=False, emoji=False,  # brackets are part of names
    )  # fmt: skip
    table = Table(title=escaped(title), title_justify="left")
    natural, least = [], []
    for (heading, _), column in zip(headings, zip(*lines, strict=True), strict=True):
        words = [word for text in column for word in text.split()]
        natural.append(max(map(len, [heading, *column])))
        least.append(max(map(len, [*heading.split(), *(words if heading in wrapped else column)])))
    borders = 3 * len(headings) + 1
    is_narrow = sum(natural) + borders > terminal.width
    for (heading, is_text), width in zip(headings, least, strict=True):
        table.add_column(
            heading,
            justify="left" if is_text else "right",
            overflow="fold",
            min_width=width,
            width=width if is_narrow and heading not in wrapped else None,
        )
    for line in lines:
        table.add_row(*line)
    terminal.width = max(terminal.width, sum(least) + borders)
    terminal.print(table)


def print_table(finished: Sequence[tuple[Path, Result]]) -> None:
    """Print method, metrics over seeds and seconds; and the paths."""
    _print_results([result for _, result in finished])
    tell(*(path for path, _ in finished))


def table_text(results: Sequence[Result]) -> str:
    """What `print_table` prints of results, without their paths."""
    to = io.StringIO()
    _print_results(results, to)
    return to.getvalue()


def _print_results(results: Sequence[Result], to: IO[str] | None = None) -> None:
    """Print a table for each suite."""
    for title, rows in rows_of(results).items():
        headline, *others = shown_metrics("terminal", rows)
        labels = list(asked_of(rows))
        beside = [label for label in labels if label in rows[0].task.beside]
        means = [metrics_of(label, None)[0] for label in beside]
        made: list[Column] = [
            METHOD,
            *(metric_column(one, DIGITS) for one in (headline, *means, *others)),
            ("seconds", False, lambda row: f"{row.seconds or 0:.1f}"),
        ]
        _print(title, *cells_of(rows, made), wrapped=["method"], to=to)
        if uneven := uneven_marks(rows):
            print(f"these rows do not share {', '.join(uneven)}: they cannot be compared", file=to)
        if further := [label for label in labels if label not in beside]:
            _print_client_metrics(rows, further, to)


def _print_client_metrics(
    rows: Sequence[ResultGroup], labels: Sequence[str], to: IO[str] | None
) -> None:
    """Print metrics that were asked for beside accuracy: a line per method and metric."""
    parts = ("mean", "std_clients", "worst_decile", "clients")
    headings = [("method", True), ("metric", True)]
    headings += [(name, False) for name in ("mean", "std", "worst decile", "clients")]
    asked = {label: {one.name: one for one in metrics_of(label, None)} for label in labels}
    lines = [
        [
            row.name,
            label,
            *(metric_column(asked[label][f"{label}_{part}"])[2](row) for part in parts),
        ]
        for row in rows
        for label in labels
        if row.client_metric(label)
    ]
    if lines:
        _print("metrics of clients", headings, lines, ["method", "metric"], to)
