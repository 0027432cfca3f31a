"""Tables in the terminal: the leaderboard's rows after a command, and others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rich.console import Console as Terminal
from rich.table import Table

from flbench.errors import escaped
from flbench.leaderboard.grouping import (
    ResultGroup,
    asked_of,
    mean_std,
    rows_of,
    shown_metrics,
)
from flbench.results.plain_rows import as_table
from flbench.results.schema import Result
from flbench.terminal.lines import tell


def print_rows(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of plain data as a table."""
    headings, cells = as_table(rows)
    _print(title, list(headings), cells, {name for name, words in headings.items() if words})


def _print(
    title: str,
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    texts: Collection[str],
    wrapped: Collection[str] = (),
) -> None:
    """Print a table. Where there is no place, headings wrap at words, but numbers are never cut.

    Args:
        title: above the table.
        headings: of the columns.
        cells: of each row.
        texts: headings of columns of text, on the left.
        wrapped: those whose text wraps, too.
    """
    cells = [[escaped(text) for text in row] for row in cells]
    terminal = Terminal(markup=False, emoji=False)  # brackets are part of names
    table = Table(title=escaped(title), title_justify="left")
    natural, least = [], []
    for heading, column in zip(headings, zip(*cells, strict=True), strict=True):
        words = [word for text in column for word in text.split()]
        natural.append(max(map(len, [heading, *column])))
        least.append(max(map(len, [*heading.split(), *(words if heading in wrapped else column)])))
    borders = 3 * len(headings) + 1
    is_narrow = sum(natural) + borders > terminal.width
    for heading, width in zip(headings, least, strict=True):
        table.add_column(
            heading,
            justify="left" if heading in texts else "right",
            overflow="fold",
            min_width=width,
            width=width if is_narrow and heading not in wrapped else None,
        )
    for row in cells:
        table.add_row(*row)
    terminal.width = max(terminal.width, sum(least) + borders)
    terminal.print(table)


def print_table(finished: Sequence[tuple[Path, Result]]) -> None:
    """Print method, metrics over seeds and seconds; and the paths."""
    for title, rows in rows_of([result for _, result in finished]).items():
        metrics = shown_metrics("terminal", rows)
        headings = ["method", *(one.heading for one in metrics), "seconds"]
        cells = [
            [
                row.name,
                *(mean_std(row.column(one.name), spread=one.spread) for one in metrics),
                f"{row.seconds or 0:.1f}",
            ]
            for row in rows
        ]
        _print(title, headings, cells, ["method"], ["method"])
        if labels := list(asked_of(rows)):
            _print_client_metrics(rows, labels)
    tell(*(path for path, _ in finished))


def _print_client_metrics(rows: Sequence[ResultGroup], labels: Sequence[str]) -> None:
    """Print metrics that were asked for beside accuracy: a line per method and metric."""
    parts = {"mean": 4, "std_clients": 4, "worst_decile": 4, "clients": 0}
    headings = ["method", "metric", "mean", "std", "worst decile", "clients"]
    cells = [
        [
            row.name,
            label,
            *(
                mean_std(row.column(f"{label}_{part}"), digits, spread=part == "mean")
                for part, digits in parts.items()
            ),
        ]
        for row in rows
        for label in labels
        if row.client_metric(label)
    ]
    if cells:
        texts = ["method", "metric"]
        _print("metrics of clients", headings, cells, texts, texts)
