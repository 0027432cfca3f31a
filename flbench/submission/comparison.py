"""Compare two results of one run, part by part.

The distance of two numbers is |a - b| / max(1, |a|, |b|): absolute for shares such as accuracies,
relative for bytes and counts. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from flbench.metrics import churn
from flbench.results.difference import relative_distance
from flbench.results.schema import Clients, Result, Unseen
from flbench.submission.consistency import recount

Curve = Sequence[float | None]
Changes = Sequence[tuple[int, Sequence[int]]]
Entry = TypeVar("Entry")
ROUNDING = 1e-12
"""One client of 100 that is elsewhere is a share of .01, computed as .010000000000000009."""


@dataclass(frozen=True)
class Part:
    """The comparison of one part of two results.

    Attributes:
        distance: None = a difference is reported but allowed.
        where: the entry with the largest distance.
    """

    name: str
    same: bool
    distance: float | None = None
    where: str = ""

    def agrees(self, tolerance: float) -> bool:
        """Whether the parts are equal, within the tolerance, or may differ."""
        return self.same or self.distance is None or self.distance <= tolerance + ROUNDING

    def line(self, tolerance: float) -> str:
        """The comparison in one line."""
        where = f" ({self.where})" if self.where else ""
        if self.same:
            return f"{self.name}: same bytes"
        if self.distance is None:
            return f"{self.name}: differs, which is not judged{where}"
        if self.agrees(tolerance):
            return f"{self.name}: within tolerance, {self.distance:.4f}{where}"
        return f"{self.name}: differs by {self.distance:.4f}, allowed are {tolerance:g}{where}"


def compare(claimed: Result, again: Result, rounds: int) -> list[Part]:
    """Compare a result with that of a re-run; parts that an older file lacks are left out.

    The end of the run is compared only if the re-run has all rounds.
    """
    nothing: list[float | None] = [None] * rounds
    curves = {
        name: (curve[:rounds], again.curves.get(name, nothing)[:rounds])
        for name, curve in claimed.curves.items()
    }
    parts = [
        _part(
            f"{kind} by round",
            {name: pair for name, pair in curves.items() if _kind(name) == kind},
            _mean_distance,
        )
        for kind in ("accuracy", "bytes", "other numbers")
    ]
    parts.append(_groups(claimed.memberships(), again.memberships(), rounds))
    return parts + (list(_end_of_run(claimed, again)) if rounds == claimed.suite["rounds"] else [])


def _kind(curve: str) -> str:
    return next((kind for kind in ("accuracy", "bytes") if curve.startswith(kind)), "other numbers")


def _part(
    name: str, pairs: Mapping[str, tuple[Entry, Entry]], distance: Callable[[Entry, Entry], float]
) -> Part:
    """Compare named entries: the largest distance of those that differ."""
    found = {key: distance(one, other) for key, (one, other) in pairs.items() if one != other}
    worst = max(found, key=lambda key: found[key], default="")
    return Part(name, not found, found.get(worst, 0.0), worst)


def _mean_distance(one: Curve, other: Curve) -> float:
    """Mean distance over the measured rounds."""
    if len(one) != len(other):
        return math.inf
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if (a, b) != (None, None)]
    return sum(relative_distance(a, b) for a, b in pairs) / max(1, len(pairs))


def _groups(one: Changes, other: Changes, rounds: int) -> Part:
    """Compare groups: mean share of clients in another group, under the best matching."""
    mine, theirs = _labels(one, rounds), _labels(other, rounds)
    pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a != b]
    return Part("groups", not pairs, sum(_regrouped(a, b) for a, b in pairs) / rounds)


def _labels(changes: Changes, rounds: int) -> list[Sequence[int]]:
    """Group of each client in each round; empty before the first evaluation."""
    found: list[Sequence[int]] = []
    for round_ in range(1, rounds + 1):
        known = [labels for at, labels in changes if at <= round_]
        found.append(known[-1] if known else ())
    return found


def _regrouped(one: Sequence[int], other: Sequence[int]) -> float:
    return churn(np.array(one), np.array(other)) if len(one) == len(other) else math.inf


def _end_of_run(claimed: Result, again: Result) -> Iterator[Part]:
    """Compare what only a complete run has."""
    yield _arrays("clients", claimed.clients, again.clients, ("correct",))
    yield from _asked(claimed, again)
    if claimed.unseen is None or again.unseen is None:
        yield Part("unseen clients", claimed.unseen is again.unseen, math.inf)
    else:
        names = ("correct", "correct_tuned")
        yield _arrays("unseen clients", claimed.unseen, again.unseen, names)
    mine, theirs = _sent(claimed), _sent(again)
    sent = {key: (mine.get(key), theirs.get(key)) for key in sorted({*mine, *theirs})}
    yield _part("what was sent", sent, relative_distance)
    # what can be recounted is computed from the parts above
    rest = sorted(claimed.summary.keys() - recount(claimed).keys())
    numbers = {key: (claimed.summary[key], again.summary.get(key)) for key in rest}
    yield _part("summary", numbers, relative_distance)
    reported = [name for name in ("scores", "notes", "warnings") if getattr(claimed, name)]
    different = [name for name in reported if getattr(claimed, name) != getattr(again, name)]
    yield Part("what was noted", not different, None, ", ".join(different))


def _asked(claimed: Result, again: Result) -> Iterator[Part]:
    """Compare metrics that were asked for beside accuracy: mean distance over clients."""
    theirs = again.client_metrics or {}
    pairs = {
        label: (one.values, theirs[label].values if label in theirs else [])
        for label, one in (claimed.client_metrics or {}).items()
    }
    if pairs:
        yield _part("metrics of clients", pairs, _mean_distance)


def _sent(result: Result) -> dict[str, int]:
    """Bytes by direction and item."""
    return {f"{way} {key}": n for way, items in result.bytes.items() for key, n in items.items()}


def _arrays(
    name: str, one: Clients | Unseen, other: Clients | Unseen, names: tuple[str, ...]
) -> Part:
    """Compare arrays by client: mean difference of accuracies."""
    fields = [key for key in type(one).model_fields if getattr(one, key) is not None]
    different = [key for key in fields if getattr(one, key) != getattr(other, key)]
    if "test" in different:
        return Part(name, same=False, distance=math.inf, where="test")
    pairs = [(getattr(one, key), getattr(other, key)) for key in names]
    judged = np.array(one.test) > 0
    far = [
        float(np.mean(np.abs(np.subtract(a, b))[judged] / np.array(one.test)[judged]))
        for a, b in pairs
    ]
    return Part(name, not different, max(far), ", ".join(different))
