"""How two results differ: settings, plugins, seeds, code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flbench.results.schema import Result

TOLERANCE = 0.01
"""How far two runs of one thing may part on two machines: see docs/submitting.md."""
SHARED_MARKS = ("data", "partition", "initial_weights", "cohorts")
"""Fingerprints that are equal in all results of a suite and seed."""
DifferenceKind = Literal["table", "row", "run", "machine"]
MEANINGS: dict[DifferenceKind, str] = {
    "table": "they cannot share a table",
    "row": "two rows of one table",
    "run": "two runs of one row",
    "machine": "the same run, computed elsewhere or otherwise",
}
"""The first kind that is found counts."""


@dataclass(frozen=True)
class Difference:
    """One field that differs, and what that makes of the two results."""

    kind: DifferenceKind
    field: str
    one: object
    other: object


def differences(one: Result, other: Result) -> list[Difference]:
    """Everything that differs and is set rather than measured, the gravest first."""
    found: list[Difference] = []

    def compare(kind: DifferenceKind, name: str, part: Callable[[Result], object]) -> None:
        unequal = _unequal(name, part(one), part(other))
        found.extend(Difference(kind, field, a, b) for field, a, b in unequal)

    compare("table", "dataset", lambda result: result.dataset)
    compare("table", "task", lambda result: result.headline.name)
    compare("table", "suite", lambda result: {**result.suite, "paper": ""})  # it is no setting
    for mark in SHARED_MARKS if one.seed == other.seed else ("data",):  # no seed changes these
        compare("table", f"fingerprint.{mark}", attrgetter(f"fingerprint.{mark}"))
    compare("row", "method", lambda result: result.method.name)
    if one.method.name == other.method.name:
        compare("row", "params", lambda result: result.method.params)
    compare("row", "plugins", _plugins)
    compare("row", "tuning", lambda result: result.tuning.model_dump() if result.tuning else {})
    compare("row", "precision", lambda result: result.environment.get("precision", "32-true"))
    compare("run", "seed", lambda result: result.seed)
    compare("machine", "environment", lambda result: result.environment)
    return found


def verdict(found: Sequence[Difference]) -> str:
    """What the differences make of two results."""
    kinds = {difference.kind for difference in found}
    return next((text for kind, text in MEANINGS.items() if kind in kinds), "the same run")


def unlike(one: Result, other: Result, found: Sequence[Difference]) -> str:
    """Of what should be the same run, the parts of the files that differ all the same."""
    if any(difference.kind != "machine" for difference in found):
        return ""
    parts = different_parts(one, other)
    return f"; but these differ: {', '.join(parts)}" if parts else ", with the same numbers"


def different_parts(one: Result, other: Result) -> list[str]:
    """The parts of two files of one run that differ, but for its status, times and environment."""
    ignored = ("status", "seconds", "environment")
    names = [name for name in type(one).model_fields if name not in ignored]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def _plugins(result: Result) -> dict[str, str]:
    return {
        plugin.name: f"{plugin.distribution} {plugin.version}" for plugin in result.method.plugins
    }


def _unequal(name: str, one: object, other: object) -> Iterator[tuple[str, object, object]]:
    """Leaves at which two values differ, by dotted name; None = not there."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from _unequal(f"{name}.{key}", one.get(key), other.get(key))
    elif one != other:
        yield name, one, other


def relative_distance(one: float | None, other: float | None) -> float:
    """How far two numbers are apart; infinitely, if only one is there.

    Example:
        >>> relative_distance(0.25, 0.5), relative_distance(90, 100), relative_distance(None, None)
        (0.25, 0.1, 0.0)
    """
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    return abs(one - other) / max(1.0, abs(one), abs(other))
