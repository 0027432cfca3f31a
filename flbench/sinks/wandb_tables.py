"""The configuration, tables and figures of a result for a dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flbench.results.schema import Result

Columns = list[str | int]
Rows = list[list[Any]]


def config_of(result: Result) -> dict[str, Any]:
    """The configuration of a run: everything in its result except measurements."""
    table = result.model_dump(
        include={
            *("suite", "dataset", "seed", "fingerprint", "tuning", "suite_plugins"),
            *("status", "environment", "schema_version"),
        }
    )
    method = result.method
    plugins = [plugin.model_dump() for plugin in method.plugins]
    about = {"method": method.name, "params": method.params, "plugins": plugins}
    return {**table, **about, "task": result.headline.name}


def tables(result: Result) -> Iterator[tuple[str, Columns, Rows]]:
    """The arrays of a result as tables: name, columns, rows.

    `clients` and `membership` have a row per client, `scores` one per evaluating client (None =
    not measured), `unseen` one per newcomer; a column of `membership` is the group of each client
    from a round on.
    """
    clients = result.clients
    names = ("train", "validation", "test", "correct", "values", "loss", "group", "bytes")
    asked = {label: one.values for label, one in (result.client_metrics or {}).items()}
    arrays = {**{name: getattr(clients, name) for name in names}, **asked}
    yield "clients", *_columns(arrays, clients.labels)
    changes = {f"round {number}": labels for number, labels in result.memberships()}
    yield "membership", *_columns({"group": clients.group, **changes})
    if (scores := result.scores) is not None:
        kind = scores.columns.removesuffix("s")
        rows = [
            [client, *(None if value != value else value for value in row)]
            for client, row in zip(scores.row_ids, scores.values().tolist(), strict=True)
        ]
        yield "scores", ["client", *(f"{kind} {number}" for number in scores.column_ids)], rows
    if (unseen := result.unseen) is not None:
        yield "unseen", *_columns(unseen.model_dump(exclude={"epochs"}))


def _columns(
    arrays: dict[str, Any], counts: list[dict[int, int]] | None = None
) -> tuple[Columns, Rows]:
    """Arrays of equal length as columns, and one per label; the first column numbers the rows."""
    known = {name: array for name, array in arrays.items() if array is not None}
    for label in sorted({label for row in counts or () for label in row}):
        known[f"label {label}"] = [row.get(label, 0) for row in counts or ()]
    rows = [[number, *row] for number, row in enumerate(zip(*known.values(), strict=True))]
    return ["client", *known], rows


def figures(result: Result) -> Iterator[tuple[str, bytes]]:
    """The figures of one result that can be drawn, as name and SVG; noted lists are among them."""
    from flbench import figures as draw

    title = f"{result.method.name} on {result.suite['name']} ({result.dataset})"
    for kind in (draw.curves, draw.clients, draw.scores, draw.memberships, draw.partition):
        if (svg := kind([(result.method.name, [result])], title)) is not None:
            yield kind.__name__, svg
    yield from draw.notes(result, title)
