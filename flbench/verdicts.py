"""Verdicts: whether a number of a paper was found again."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Literal

from flbench.cards import Printed

Verdict = Literal["reproduced", "same ordering", "not reproduced", "not run"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "same ordering", "not reproduced", "not run")


def verdict(
    printed: Printed,
    ours: Mapping[str, list[float]],
    column: Mapping[str, Printed],
    tolerance: float,
) -> Verdict:
    """Judge one number.

    *Reproduced*: the mean over seeds is as near as the tolerance, or the paper's own deviation.
    *Same ordering*: it is not, but against every other method of its column that the paper sets
    apart by more than that, and that was run, ours is on the same side; at least one is needed.

    Args:
        printed: the number.
        ours: method -> our values by seed, of the same suite and data set.
        column: method -> what the paper prints there.
        tolerance: absolute of numbers up to 1, else a share of the printed number.
    """
    if not ours.get(printed.method):
        return "not run"
    found = mean(ours[printed.method])
    if abs(found - printed.value) <= margin(printed, tolerance):
        return "reproduced"
    others = [
        other
        for name, other in column.items()
        if ours.get(name)
        and abs(other.value - printed.value)
        > max(margin(other, tolerance), margin(printed, tolerance))
    ]
    agree = [
        (found - mean(ours[other.method])) * (printed.value - other.value) > 0 for other in others
    ]
    return "same ordering" if agree and all(agree) else "not reproduced"


def margin(printed: Printed, tolerance: float) -> float:
    """How far from a printed number is still the same.

    Example:
        >>> margin(Printed("suite", "data", "method", 0.5, std=0.05), 0.03)
        0.05
        >>> margin(Printed("suite", "data", "method", 40, std=None), 0.1)
        4.0
    """
    scale = 1.0 if abs(printed.value) <= 1 else abs(printed.value)
    return max(tolerance * scale, printed.std or 0.0)
