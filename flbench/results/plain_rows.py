"""Rows of plain data, as studies have them, as a table of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real

DIGITS = 4


def as_table(
    rows: Sequence[Mapping[str, object]],
) -> tuple[list[tuple[str, bool]], list[list[str]]]:
    """Headings, each with whether its column holds words, and the cells of each row.

    A column per key in the order of the rows, without lists and tables; `name_std` is the deviation
    of `name`, and stands in its column. Numbers of a column have the same number of digits, as many
    as are needed, at most four.

    Example:
        >>> as_table([{"n": 0.5, "loss": 0.123456, "loss_std": 0.01}, {"n": 10.0, "loss": None}])
        ([('n', False), ('loss', False)], [['0.5', '0.1235 ± 0.0100'], ['10.0', '-']])
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    keys = {k: None for k in keys if not any(isinstance(r.get(k), (list, dict)) for r in rows)}
    names = [key for key in keys if not key.endswith("_std") or key[:-4] not in keys]
    columns = [_column(name, rows) for name in names]
    texts = [(name, any(isinstance(row.get(name), str) for row in rows)) for name in names]
    return texts, [list(cells) for cells in zip(*columns, strict=True)]


def _column(name: str, rows: Sequence[Mapping[str, object]]) -> list[str]:
    """The cells of a column."""
    spreads = [row.get(f"{name}_std") for row in rows]
    values = [row.get(name) for row in rows]
    numbers = [float(one) for one in (*values, *spreads) if isinstance(one, Real)]
    digits = max((_needed(number) for number in numbers), default=0)
    return [
        _text(value, digits) + ("" if spread is None else f" ± {_text(spread, digits)}")
        for value, spread in zip(values, spreads, strict=True)
    ]


def _needed(number: float) -> int:
    """Digits after the point that a number needs, up to the limit."""
    return next((n for n in range(DIGITS) if round(number, n) == round(number, DIGITS)), DIGITS)


def _text(value: object, digits: int) -> str:
    if isinstance(value, float):
        return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)
