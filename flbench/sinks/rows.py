"""A round as a row of numbers, the same during the run and from the result file."""

from __future__ import annotations

from flbench.results.events import RoundRecord
from flbench.results.schema import Result

Row = dict[str, float]


def row_of(record: RoundRecord) -> Row:
    """The metrics and the numeric notes of a round, by name.

    Example:
        >>> row_of(RoundRecord(1, 9, {"accuracy": 1 / 3, "loss": None}, notes={"flis.k": 2}))
        {'accuracy': 0.333333, 'flis.k': 2.0}
    """
    measured = {k: round(float(v), 6) for k, v in record.metrics.items() if v is not None}
    return measured | {k: float(v) for k, v in record.notes.items() if isinstance(v, (int, float))}


def rows_of(result: Result) -> list[Row]:
    """The rows of all rounds of a result, as `row_of` gave them during the run."""
    rounds = max((len(curve) for curve in result.curves.values()), default=0)
    rows: list[Row] = [{} for _ in range(rounds)]
    for name, curve in result.curves.items():
        for row, value in zip(rows, curve, strict=False):
            if value is not None:
                row[name] = float(value)
    for note in result.notes:
        if isinstance(note["value"], (int, float)) and 1 <= note["round"] <= rounds:
            rows[note["round"] - 1][note["name"]] = float(note["value"])
    return rows
