"""Rows of plain data, as studies have them, as a table of texts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Real

DIGITS = 4
BESIDE = ("_std", "_seeds")
"""How the names end of what stands in the column of another."""


def as_table(
    rows: Sequence[Mapping[str, object]],
) -> tuple[list[tuple[str, bool]], list[list[str]]]:
    """Headings, each with whether its column holds words, and the cells of each row.

    A column per key in the order of the rows, without lists and tables; `name_std` is the deviation
    of `name`, `name_seeds` how many of the `seeds` have it, and both stand in its column. Numbers
    of a column have the same number of digits, as many as are needed, at most four.

    Example:
        >>> as_table([{"n": 0.5, "loss": 0.123456, "loss_std": 0.01}, {"n": 10.0, "loss": None}])
        ([('n', False), ('loss', False)], [['0.5', '0.1235 ± 0.0100'], ['10.0', '-']])
        >>> as_table([{"seeds": 3, "s": 0.5, "s_seeds": 2}])[1]
        [['3', '0.5 (2 of 3)']]
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    keys = {k: None for k in keys if not any(isinstance(r.get(k), (list, dict)) for r in rows)}
    names = [
        key
        for key in keys
        if not any(key.removesuffix(end) in keys.keys() - {key} for end in BESIDE)
    ]
    columns = [_column(name, rows) for name in names]
    texts = [(name, any(isinstance(row.get(name), str) for row in rows)) for name in names]
    return texts, [list(cells) for cells in zip(*columns, strict=True)]


def _stands_beside(key: str, keys: Collection[str]) -> bool:
    """Whether what a key holds stands in the column of another."""
    return any(key.endswith(end) and key.removesuffix(end) in keys for end in BESIDE)


def _column(name: str, rows: Sequence[Mapping[str, object]]) -> list[str]:
    """The cells of a column."""
    spreads = [row.get(f"{name}_std") for row in rows]
    values = [row.get(name) for row in rows]
    numbers = [float(one) for one in (*values, *spreads) if isinstance(one, Real)]
    digits = max((_needed(number) for number in numbers), default=0)
    few = [row.get(f"{name}_seeds") for row in rows]
    return [
        _text(value, digits)
        + ("" if spread is None else f" ± {_text(spread, digits)}")
        + ("" if known is None else f" ({known} of {row.get('seeds')})")
        for row, value, spread, known in zip(rows, values, spreads, few, strict=True)
    ]


def _needed(number: float) -> int:
    """Digits after the point that a number needs, up to the limit."""
    return next((n for n in range(DIGITS) if round(number, n) == round(number, DIGITS)), DIGITS)


def _text(value: object, digits: int) -> str:
    if isinstance(value, float):
        return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)
