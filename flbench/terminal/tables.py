"""Tables in the terminal: the leaderboard's rows after a command, and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console as Terminal
from rich.table import Table

from flbench.leaderboard.grouping import (
    ResultGroup,
    asked_of,
    mean_std,
    rows_of,
    shown_metrics,
)
from flbench.results.schema import Result


def print_rows(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows as a table: a column per key without list values, means with deviations."""
    terminal = Terminal(markup=False, emoji=False)  # brackets are part of names
    table = Table(title=title, title_justify="left")
    names = list(dict.fromkeys(key for row in rows for key in row))
    names = [key for key in names if not any(isinstance(row.get(key), list) for row in rows)]
    names = [key for key in names if key.removesuffix("_std") == key or key[:-4] not in names]
    cells = [[_with_deviation(row, name) for name in names] for row in rows]
    for index, name in enumerate(names):
        is_text = any(isinstance(row.get(name), str) for row in rows)
        widest = max(len(line[index]) for line in cells)  # headings wrap, numbers do not
        table.add_column(
            name, justify="left" if is_text else "right", overflow="fold", min_width=widest
        )
    for line in cells:
        table.add_row(*line)
    terminal.print(table, crop=False)


def _with_deviation(row: Mapping[str, object], name: str) -> str:
    """A number with its deviation, if there is one."""
    spread = row.get(f"{name}_std")
    return _cell(row.get(name)) + ("" if spread is None else f" ± {_cell(spread)}")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


def print_table(finished: Sequence[tuple[Path, Result]]) -> None:
    """Print method, metrics over seeds and seconds; and the paths."""
    terminal = Terminal(markup=False, emoji=False)
    for title, rows in rows_of([result for _, result in finished]).items():
        table = Table(title=title, title_justify="left")
        metrics = shown_metrics("terminal", rows)
        table.add_column("method", no_wrap=True)
        for heading in (*(one.heading for one in metrics), "seconds"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            cells = [mean_std(row.column(one.name), spread=one.spread) for one in metrics]
            table.add_row(row.name, *cells, f"{row.seconds or 0:.1f}")
        terminal.print(table)
        if labels := list(asked_of(rows)):
            terminal.print(_client_metrics(rows, labels))
    for path, _ in finished:
        print(path)


def _client_metrics(rows: Sequence[ResultGroup], labels: Sequence[str]) -> Table:
    """Metrics that were asked for beside accuracy: a line per method and metric."""
    table = Table(title="metrics of clients", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("metric", overflow="fold")
    parts = {"mean": 4, "std_clients": 4, "worst_decile": 4, "clients": 0}
    for heading in ("mean", "std", "worst decile", "clients"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        for label in labels:
            cells = [
                mean_std(row.column(f"{label}_{part}"), digits, spread=part == "mean")
                for part, digits in parts.items()
            ]
            if row.client_metric(label):
                table.add_row(row.name, label, *cells)
    return table
