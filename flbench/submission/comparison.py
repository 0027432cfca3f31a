"""Compare a result with that of a replay: every field that both, or one of them, have.

Each field is compared as its mark says (`results/marks.py`). Where both were computed alike, all
that is judged has equal bytes; elsewhere numbers are within the limits of their kind. The distance
of two numbers is |a - b| / max(1, |a|, |b|): absolute for shares such as accuracies, relative for
bytes and counts. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel

from flbench.metrics import churn, curve_kind, table_of
from flbench.results.difference import relative_distance
from flbench.results.marks import KINDS, How, Mark
from flbench.results.schema import YOUNGER, Result, ScoreMatrix
from flbench.submission.verification import computed_otherwise
from flbench.tasks import Task

ROUNDING = 1e-12
"""One client of 100 that is elsewhere is a share of .01, computed as .010000000000000009."""
PARTS = {
    "suite": "settings", "dataset": "settings", "task": "settings", "method": "settings",
    "seed": "settings", "fingerprint": "settings", "tuning": "settings",
    "suite_plugins": "settings",
    "clients": "clients", "own": "clients", "client_metrics": "metrics of clients",
    "unseen": "unseen clients",
    "membership": "groups", "bytes": "what was sent", "reads": "what was sent",
}  # fmt: skip
"""The parts of fields in what a person reads; others have the name of the field."""
CURVES = {"bytes": "bytes by round", "loss": "loss by round"}
"""The parts of curves but those of the headline, by the kind of their numbers."""
OTHERS = "other numbers by round"


@dataclass(frozen=True)
class Deviation:
    """A number, text or array that differs, or that the file lacks.

    Attributes:
        where: its name in the file.
        kind: see `KINDS`.
        mean: distance on average; infinite where there is none.
        most: distance of the numbers that are furthest apart.
        lacking: the file lacks it, as files of its version may.
    """

    where: str
    kind: str
    mean: float
    most: float
    lacking: bool = False

    def agrees(self, tolerance: float) -> bool:
        """Whether it is within the limits of its kind."""
        return self.lacking or self.excess(tolerance) <= 0

    def excess(self, tolerance: float) -> float:
        """How far it is beyond the limits, negative within them."""
        kind = KINDS[self.kind]
        apart = (self.mean, kind.mean), (self.most, kind.most)
        return max(_over(far, limit * tolerance) for far, limit in apart)


def _over(far: float, limit: float) -> float:
    return -1.0 if math.isinf(limit) else far - limit - ROUNDING


@dataclass(frozen=True)
class Part:
    """The comparison of one part of two results.

    Attributes:
        entries: what differs, or the file lacks.
        alike: whether both were computed alike, so that equal bytes are expected.
    """

    name: str
    entries: Sequence[Deviation]
    alike: bool

    @property
    def different(self) -> list[Deviation]:
        """The entries that are in both, or that the file must have."""
        return [entry for entry in self.entries if not entry.lacking]

    @property
    def same(self) -> bool:
        """Whether nothing differs of what the file has."""
        return not self.different

    def agrees(self, tolerance: float) -> bool:
        """Whether the parts are equal, or were not computed alike and are within the limits."""
        return self.same or (not self.alike and all(e.agrees(tolerance) for e in self.entries))

    def line(self, tolerance: float) -> str:
        """The comparison in one line."""
        said, lacking = self._said(tolerance), [one.where for one in self.entries if one.lacking]
        if not lacking:
            return f"{self.name}: {said}"
        return f"{self.name}: {said}; not judged, as the file lacks it: {', '.join(lacking)}"

    def _said(self, tolerance: float) -> str:
        if self.same:
            return "same bytes"
        worst = max(self.different, key=lambda entry: (entry.excess(tolerance), entry.most))
        kind, where = KINDS[worst.kind], f" ({worst.where})"
        if self.alike:
            return f"differs{_by(worst.most)}, the same bytes are expected{where}"
        if math.isinf(kind.mean):
            return f"differs, which is not judged elsewhere{where}"
        if worst.agrees(tolerance):
            return f"within tolerance, {worst.mean:.4f}{where}"
        if _over(worst.mean, kind.mean * tolerance) > 0:
            return f"differs{_by(worst.mean)}, allowed are {kind.mean * tolerance:g}{where}"
        limit = f"allowed are {kind.most * tolerance:g} in one place"
        return f"differs{_by(worst.most)}, {limit}{where}"


def _by(distance: float) -> str:
    return "" if math.isinf(distance) else f" by {distance:{'.4f' if distance > 1e-4 else '.0e'}}"


@dataclass(frozen=True)
class _Pair:
    """Two results, and how many rounds of them are compared."""

    claimed: Result
    again: Result
    rounds: int

    @property
    def whole(self) -> bool:
        """Whether these are all rounds."""
        return bool(self.rounds == self.claimed.suite["rounds"])

    def judges(self, mark: Mark) -> bool:
        """Whether a field is compared after so many rounds."""
        return mark.how != "not" and (self.whole or not mark.whole)

    def missing(self, where: str, file_has: bool) -> Deviation:
        """What is in one of them only; fields of a field that is younger are younger, too."""
        younger = YOUNGER.get(self.claimed.schema_version, frozenset())
        lacking = not file_has and any(
            where == one or where.startswith(f"{one}.") for one in younger
        )
        return Deviation(where, "exact", math.inf, math.inf, lacking)


def compare(claimed: Result, again: Result, rounds: int) -> list[Part]:
    """Compare all fields of a result with those of a re-run.

    The end of the run is compared only if the re-run has all rounds.
    """
    pair = _Pair(claimed, again, rounds)
    alike = not computed_otherwise(claimed, again)
    fields = [field for field in Result.model_fields if pair.judges(mark_of(Result, field))]
    task = claimed.headline
    parts = [part for field in fields for part in _parts(field, task)]
    found: dict[str, list[Deviation]] = {part: [] for part in parts}
    for field in fields:
        for entry in _field(pair, "", claimed, again, field):
            found[_part(entry.where, task)].append(entry)
    return [Part(name, entries, alike) for name, entries in found.items()]


def _parts(field: str, task: Task) -> Iterable[str]:
    """The parts in which a person reads of a field of a result."""
    if field != "curves":
        return (PARTS.get(field, field),)
    return (_by_round(task), *CURVES.values(), OTHERS)


def _by_round(task: Task) -> str:
    return f"{task.heading} by round"


def _part(where: str, task: Task) -> str:
    """The part of something in a result."""
    field, _, name = where.replace(",", ".").partition(".")
    if field != "curves":
        return PARTS.get(field, field)
    if name == task.headline or name.startswith(f"{task.headline}_"):
        return _by_round(task)
    return CURVES.get(curve_kind(name), OTHERS)


def mark_of(model: type[BaseModel], field: str) -> Mark:
    """How a field is compared.

    Raises:
        ValueError: it has no mark, or several.
    """
    (mark,) = (one for one in model.model_fields[field].metadata if isinstance(one, Mark))
    return mark


def _field(
    pair: _Pair, above: str, one: BaseModel, other: BaseModel, field: str
) -> Iterator[Deviation]:
    """Compare one field of a result, or of a part of one."""
    mark, where = mark_of(type(one), field), f"{above}{field}"
    mine, theirs = getattr(one, field), getattr(other, field)
    if not pair.judges(mark) or mine == theirs:
        return
    if mine is None or theirs is None:
        yield pair.missing(where, file_has=theirs is None)
    elif mark.how == "sums":
        yield _per_sample(where, one, other, field, mark.kind)
    elif mark.how == "fields":
        yield from _fields(pair, where, mine, theirs)
    else:
        yield from COMPARERS[mark.how](pair, where, mine, theirs)


def _fields(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    """Compare the fields of models, and of lists and tables of them."""
    if isinstance(mine, BaseModel) and isinstance(theirs, BaseModel):
        for field in type(mine).model_fields:
            yield from _field(pair, f"{where}.", mine, theirs, field)
        return
    one, other = _named(mine), _named(theirs)
    for key in {**one, **other}:
        if key not in one or key not in other:
            yield pair.missing(f"{where}.{key}", file_has=key in one)
        else:
            yield from _fields(pair, f"{where}.{key}", one[key], other[key])


def _named(models: object) -> Mapping[object, BaseModel]:
    if isinstance(models, Mapping):
        return models
    assert isinstance(models, Sequence)
    return dict(enumerate(models))


def _equal(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    yield Deviation(where, "exact", math.inf, math.inf)


def _apart(where: str, kind: str, distances: Iterable[float]) -> Deviation:
    """An entry of distances; none means that the two are not as long as each other."""
    found = [*distances] or [math.inf]
    return Deviation(where, kind, sum(found) / len(found), max(found))


def _distances(one: Sequence[float | None], other: Sequence[float | None]) -> list[float]:
    """Distances of what was measured; none where one of the two is longer."""
    if len(one) != len(other):
        return []
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if (a, b) != (None, None)]
    return [relative_distance(a, b) for a, b in pairs]


def _curves(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    """Compare the rounds that were played, of every curve of either."""
    one, other = (
        {name: curve[: pair.rounds] for name, curve in result.curves.items()}
        for result in (pair.claimed, pair.again)
    )
    for name in {**one, **other}:
        if name in one and name in other:
            if one[name] != other[name]:
                yield _apart(
                    f"{where}.{name}", curve_kind(name), _distances(one[name], other[name])
                )
        elif pair.whole or any(value is not None for value in one.get(name, [0])):
            yield pair.missing(f"{where}.{name}", file_has=name in one)


def _summary(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    """Compare every number of either summary."""
    one, other = pair.claimed.summary, pair.again.summary
    kinds = {metric.name: metric.kind for metric in table_of(pair.again.outcome())}
    for name in {**one, **other}:
        if name not in one or name not in other:
            yield pair.missing(f"{where}.{name}", file_has=name in one)
        elif one[name] != other[name]:
            distances = _distances([one[name]], [other[name]])
            yield _apart(f"{where}.{name}", kinds.get(name, "exact"), distances)


def _per_sample(where: str, one: BaseModel, other: BaseModel, field: str, kind: str) -> Deviation:
    """Compare sums over the test samples of clients, for each sample."""
    test = np.array(vars(one)["test"])
    if test.tolist() != vars(other)["test"]:
        return Deviation(where, kind, math.inf, math.inf)
    judged = test > 0
    mine, theirs = (np.array(getattr(of, field))[judged] / test[judged] for of in (one, other))
    return _apart(where, kind, _distances(mine.tolist(), theirs.tolist()))


def _bytes(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    """Compare bytes of clients, or by direction and item; what one lacks was not sent there."""
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        for key in {**mine, **theirs}:
            one, other = mine.get(key), theirs.get(key)
            if one is None or other is None:
                yield pair.missing(f"{where}.{key}", file_has=other is None)
            elif isinstance(one, Mapping):
                yield from _bytes(pair, f"{where}.{key}", one, other)
            elif one != other:
                yield _apart(f"{where}.{key}", "bytes", _distances([one], [other]))
    else:
        yield from _values(pair, where, mine, theirs)


def _values(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    """Compare one number of each client."""
    assert isinstance(mine, Sequence)
    assert isinstance(theirs, Sequence)
    yield _apart(where, "clients", _distances(mine, theirs))


def _groups(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    """Compare groups: the share of clients in another group, under the best matching of names.

    In every round, and once more in the last one, of which tables report the groups.
    """
    one, other = (
        _labels(result.memberships(), pair.rounds) for result in (pair.claimed, pair.again)
    )
    if one == other:
        return
    moved = [0.0 if a == b else _regrouped(a, b) for a, b in zip(one, other, strict=True)]
    yield _apart(where, "groups", moved)
    yield _apart(f"{where}, last round", "groups", moved[-1:])


def _labels(changes: Sequence[tuple[int, Sequence[int]]], rounds: int) -> list[Sequence[int]]:
    """Group of each client in each round; empty before the first evaluation."""
    found: list[Sequence[int]] = []
    for round_ in range(1, rounds + 1):
        known = [labels for at, labels in changes if at <= round_]
        found.append(known[-1] if known else ())
    return found


def _regrouped(one: Sequence[int], other: Sequence[int]) -> float:
    """Share of clients that are elsewhere; to be in no group is no group's other name."""
    if len(one) != len(other):
        return math.inf
    mine, theirs = np.array(one), np.array(other)
    return max(churn(mine, theirs), float(np.mean((mine < 0) != (theirs < 0))))


def _scores(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    """Compare matrices of scores, in units of the span of their values."""
    assert isinstance(mine, ScoreMatrix)
    assert isinstance(theirs, ScoreMatrix)
    about = [one.model_dump(exclude={"low", "high", "cells"}) for one in (mine, theirs)]
    a, b = mine.values(), theirs.values()
    known = ~np.isnan(a)
    if about[0] != about[1] or not np.array_equal(known, ~np.isnan(b)):
        yield Deviation(where, "exact", math.inf, math.inf)
        return
    span = max(mine.high - mine.low, theirs.high - theirs.low) or 1.0
    yield _apart(where, "clients", (np.abs(a - b)[known] / span).tolist() or [0.0])


def _notes(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    """Compare what the method noted in the rounds that were played, name by name."""
    one, other = (
        [note for note in result.notes if note["round"] <= pair.rounds]
        for result in (pair.claimed, pair.again)
    )
    for name in dict.fromkeys(note["name"] for note in (*one, *other)):
        a, b = ([note for note in notes if note["name"] == name] for notes in (one, other))
        if a != b:
            yield _apart(f"{where}.{name}", "notes", _leaves(a, b))
    if [note["name"] for note in one] != [note["name"] for note in other]:
        yield Deviation(where, "exact", math.inf, math.inf)  # in another order


def _leaves(one: object, other: object) -> Iterator[float]:
    """Distances of all numbers in two lists or tables; infinite where they are unlike."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        for key in one:
            yield from _leaves(one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for pair in zip(one, other, strict=True):
            yield from _leaves(*pair)
    elif one == other:
        yield 0.0
    else:
        numbers = [type(value) in (int, float) for value in (one, other)]
        yield relative_distance(one, other) if all(numbers) else math.inf  # type: ignore[arg-type]


def _reported(pair: _Pair, where: str, mine: object, theirs: object) -> Iterator[Deviation]:
    yield Deviation(where, "reported", math.inf, math.inf)


COMPARERS: Mapping[How, Callable[[_Pair, str, object, object], Iterator[Deviation]]] = {
    "equal": _equal,
    "curves": _curves,
    "summary": _summary,
    "bytes": _bytes,
    "values": _values,
    "groups": _groups,
    "scores": _scores,
    "notes": _notes,
    "reported": _reported,
}
