"""A round as a row of numbers: the same while it is played and when a result file is read again."""

from __future__ import annotations

from flbench.results.events import RoundRecord
from flbench.results.schema import Result

Row = dict[str, float]


def row_of(record: RoundRecord) -> Row:
    """What was measured in a round and what methods noted in numbers, by name.

    Example:
        >>> row_of(RoundRecord(1, 9, {"accuracy": 1 / 3, "loss": None}, notes={"flis.k": 2}))
        {'accuracy': 0.333333, 'flis.k': 2.0}
    """
    measured = {k: round(float(v), 6) for k, v in record.metrics.items() if v is not None}
    return measured | {k: float(v) for k, v in record.notes.items() if isinstance(v, (int, float))}


def rows_of(result: Result) -> list[Row]:
    """The rows of all rounds, first round first: what `row_of` said of each."""
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
