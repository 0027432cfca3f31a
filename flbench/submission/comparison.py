"""Agreement: how far two results of one run are apart, part by part.

One measure for every number: |a - b| / max(1, |a|, |b|). Shares, such as accuracies, are compared
as they are, bytes and counts relative to their size. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flbench.metrics import churn
from flbench.results.difference import relative_distance
from flbench.results.schema import Clients, Result, Unseen
from flbench.submission.consistency import recount

Numbers = Mapping[str, float | None]


Curve = Sequence[float | None]


Changes = Sequence[tuple[int, Sequence[int]]]


@dataclass(frozen=True)
class Part:
    """One part of a result, as the file has it and as it came out again.

    Attributes:
        name: what is compared.
        same: whether the two are equal.
        distance: how far they are apart; None = it is told, not judged.
        where: of what is not equal, the farthest.
    """

    name: str
    same: bool
    distance: float | None = None
    where: str = ""

    def agrees(self, tolerance: float) -> bool:
        """Whether it is the same, or near enough, or not judged."""
        return self.same or self.distance is None or self.distance <= tolerance

    def told(self, tolerance: float) -> str:
        """A line."""
        where = f" ({self.where})" if self.where else ""
        if self.same:
            return f"{self.name}: same bytes"
        if self.distance is None:
            return f"{self.name}: differs, which is not judged{where}"
        if self.agrees(tolerance):
            return f"{self.name}: within tolerance, {self.distance:.4f}{where}"
        return f"{self.name}: differs by {self.distance:.4f}, allowed are {tolerance:g}{where}"


def compare(claimed: Result, again: Result, rounds: int) -> list[Part]:
    """The parts of a result beside those of the same run, played again.

    What the file lacks, being of an older version, is not asked.

    Args:
        claimed: what the file says.
        again: what came out.
        rounds: how many were played; what stands at the end of a run is compared only if all were.
    """
    names = {
        kind: [name for name in claimed.curves if name.startswith(kind)]
        for kind in ("accuracy", "bytes")
    }
    others = [name for name in claimed.curves if not name.startswith(tuple(names))]
    parts = [
        _curves(f"{kind} by round", claimed, again, rounds, some)
        for kind, some in {**names, "other numbers": others}.items()
    ]
    parts.append(_groups(claimed.memberships(), again.memberships(), rounds))
    return parts + (list(_ends(claimed, again)) if rounds == claimed.suite["rounds"] else [])


def _curves(name: str, claimed: Result, again: Result, rounds: int, names: Iterable[str]) -> Part:
    """Some curves: the largest mean distance over the rounds that were measured."""
    nothing: list[float | None] = [None] * rounds
    pairs = {
        key: (claimed.curves[key][:rounds], again.curves.get(key, nothing)[:rounds])
        for key in names
    }
    return _part(name, {key: _mean_apart(a, b) for key, (a, b) in pairs.items() if a != b})


def _mean_apart(one: Curve, other: Curve) -> float:
    if len(one) != len(other):
        return math.inf
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if (a, b) != (None, None)]
    return sum(relative_distance(a, b) for a, b in pairs) / max(1, len(pairs))


def _part(name: str, found: Mapping[str, float]) -> Part:
    """A part of which some things differ, by their distances."""
    worst = max(found, key=lambda key: found[key], default="")
    return Part(name, not found, found.get(worst, 0.0), worst)


def _groups(one: Changes, other: Changes, rounds: int) -> Part:
    """The share of clients in another group, under the best matching, on average over rounds."""
    mine, theirs = _labels(one, rounds), _labels(other, rounds)
    pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a != b]
    return Part("groups", not pairs, sum(_moved(a, b) for a, b in pairs) / rounds)


def _labels(changes: Changes, rounds: int) -> list[Sequence[int]]:
    """Everybody's group in each round; nothing before the first evaluation."""
    found: list[Sequence[int]] = []
    for round_ in range(1, rounds + 1):
        known = [labels for at, labels in changes if at <= round_]
        found.append(known[-1] if known else ())
    return found


def _moved(one: Sequence[int], other: Sequence[int]) -> float:
    return churn(np.array(one), np.array(other)) if len(one) == len(other) else math.inf


def _ends(claimed: Result, again: Result) -> Iterator[Part]:
    """What only a run that came to its end has."""
    yield _arrays("clients", claimed.clients, again.clients, ("correct",))
    if claimed.unseen is None or again.unseen is None:
        yield Part("unseen clients", claimed.unseen is again.unseen, math.inf)
    else:
        names = ("correct", "correct_tuned")
        yield _arrays("unseen clients", claimed.unseen, again.unseen, names)
    mine, theirs = _sent(claimed), _sent(again)
    yield _numbers("what was sent", mine, theirs, {*mine, *theirs})
    rest = claimed.summary.keys() - recount(claimed).keys()  # the others follow from what is above
    yield _numbers("summary", claimed.summary, again.summary, rest)
    told = [name for name in ("scores", "notes", "warnings") if getattr(claimed, name)]
    unlike = [name for name in told if getattr(claimed, name) != getattr(again, name)]
    yield Part("what was noted", not unlike, None, ", ".join(unlike))


def _sent(result: Result) -> dict[str, int]:
    """Bytes by way and item."""
    return {f"{way} {key}": n for way, items in result.bytes.items() for key, n in items.items()}


def _arrays(
    name: str, one: Clients | Unseen, other: Clients | Unseen, names: tuple[str, ...]
) -> Part:
    """Arrays by client: the mean difference of the shares of right answers."""
    fields = [key for key in type(one).model_fields if getattr(one, key) is not None]
    unlike = [key for key in fields if getattr(one, key) != getattr(other, key)]
    if "test" in unlike:
        return Part(name, same=False, distance=math.inf, where="test")
    far = {key: _shares(getattr(one, key), getattr(other, key), one.test) for key in names}
    return Part(name, not unlike, max(far.values()), ", ".join(unlike))


def _shares(one: Sequence[int], other: Sequence[int], judged: Sequence[int]) -> float:
    """Mean over clients of how far their accuracies are apart."""
    return float(np.mean(np.abs(np.subtract(one, other)) / np.array(judged)))


def _numbers(name: str, one: Numbers, other: Numbers, names: Iterable[str]) -> Part:
    """A table of numbers: the largest distance."""
    unlike = {key for key in names if one.get(key) != other.get(key)}
    return _part(
        name, {key: relative_distance(one.get(key), other.get(key)) for key in sorted(unlike)}
    )
