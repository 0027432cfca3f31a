"""Consistency of a result file: its run, its fingerprints, and a summary that fits its arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from flbench.engine.options import EXACT, EngineOptions
from flbench.errors import UserError
from flbench.metrics import computed
from flbench.results.fields import first_problem
from flbench.results.schema import Result
from flbench.run.composition import MethodStack
from flbench.run.spec import RunSpec
from flbench.suite import Suite

Curve = list[float | None]
Found = Iterator[tuple[str, float | None]]
CLOSE = 1e-5
"""Allowed difference from a recomputed number; curves and losses have six decimals."""
ROUNDED = 1.5e-6
"""Entries of curves that differ by less may be rounded from equal numbers."""
WAYS = ("down", "up", "peer")


def job_of(result: Result, out: Path) -> RunSpec:
    """The specification of the run that a result describes; its plugins are not loaded.

    Args:
        out: folder of the result files.

    Raises:
        UserError: its settings are not valid for a suite.
    """
    table = {**result.suite, "summary": "", "dataset": result.dataset}
    try:
        suite = Suite.model_validate({**table, "target": result.summary.get("target")})
    except ValidationError as error:
        field, _, what = first_problem(error, table).partition(": ")
        raise UserError(f"'suite.{field.strip(chr(39))}': {what}") from None
    precision = result.environment.get("precision", EXACT)
    return RunSpec(
        suite=suite,
        method=MethodStack((), result.method),
        seed=result.seed,
        data_root=Path(),
        out=out,
        engine=EngineOptions(precision=precision),
        tuning=result.tuning,
    )


def as_written(result: Result) -> str:
    """The canonical text of a result as it was read, without fields that its file lacks."""
    table = result.model_dump(exclude_unset=True)
    lines = (f"{json.dumps(key)}: {_compact(table[key])}" for key in sorted(table))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))


def sound(path: Path, result: Result) -> None:
    """Refuse an inconsistent result.

    Raises:
        UserError: its fingerprints do not fit its settings, or its numbers contradict each other;
            the first fault.
    """
    for fault in (*unmarked(result), *contradictions(result)):
        raise UserError(f"{path}: {fault} (flbench submit --check lists everything)")


def unmarked(result: Result) -> Iterator[str]:
    """Fingerprints and names that do not fit the settings, a line for each."""
    try:
        job = job_of(result, Path())
    except UserError as error:
        yield str(error)
        return
    own = {key: value for key, value in result.suite.items() if key != "paper"}
    if own != job.suite.settings():
        yield f"'suite': {departures(own, job.suite.settings())} is expected of its settings"
    for name, mark in (("suite", job.suite.hash()), ("config", job.fingerprint)):
        told = getattr(result.fingerprint, name)
        if told != mark:
            yield f"'fingerprint.{name}': {mark} expected of its settings, got {told}"
    names = "+".join(plugin.name for plugin in result.method.plugins)
    if names != result.method.name:
        yield f"'method.name': {names} expected, its plugins, got {result.method.name}"


def departures(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """The keys in which two tables differ, in one line.

    Example:
        >>> departures({"rounds": 2, "clients": 9}, {"rounds": 3, "clients": 9})
        'rounds 2, not 3'
    """
    keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
    return ", ".join(f"{key} {one.get(key)!r:.60}, not {other.get(key)!r:.60}" for key in keys)


def contradictions(result: Result) -> Iterator[str]:
    """Contradictions between the numbers of a result, a line for each.

    If lengths are wrong, nothing else is checked.
    """
    shape = list(_shape(result))
    if shape:
        yield from shape
        return
    for name, expected in recount(result).items():
        came = result.summary.get(name, expected)
        if not _close(came, expected):
            yield f"'summary.{name}': {_shown(expected)} expected by its arrays, got {_shown(came)}"
    shown, accuracy = result.summary.get("round"), result.summary["accuracy_mean"]
    for round_, value in enumerate(result.curves["accuracy"], start=1):
        if round_ == shown and not _close(value, accuracy):
            what = f"{_shown(accuracy)} expected in round {shown}, as in 'summary.accuracy_mean'"
            yield f"'curves.accuracy': {what}, got {_shown(value)}"
    for way in WAYS:
        total, last = sum(result.bytes.get(way, {}).values()), result.curves[f"bytes_{way}"][-1]
        if total != last:
            yield f"'bytes.{way}': {last} expected, the last of 'curves.bytes_{way}', got {total}"
    moved = sum(sum(items.values()) for items in result.bytes.values())
    if sum(result.clients.bytes) != moved:
        at = sum(result.clients.bytes)
        yield f"'clients.bytes': {moved} expected in all, as in 'bytes', got {at}"


def _shape(result: Result) -> Iterator[str]:
    """Curves and arrays that are missing, or do not fit the suite's rounds and clients."""
    try:
        suite = job_of(result, Path()).suite
    except UserError as error:
        yield str(error)
        return
    needed = ("accuracy", *(f"bytes_{way}" for way in WAYS))
    for name in needed:
        if name not in result.curves:
            yield f"'curves.{name}': field required"
    for name, curve in result.curves.items():
        if len(curve) != suite.rounds:
            yield f"'curves.{name}': {suite.rounds} rounds expected, got {len(curve)}"
        elif name in needed and curve[-1] is None:
            yield f"'curves.{name}': a number expected in the last round"
    clients = len(result.clients.test)
    if clients != suite.training_clients:
        yield f"'clients': {suite.training_clients} expected in training, got {clients}"
    if not all(result.clients.test) or (result.unseen and not all(result.unseen.test)):
        yield "'clients.test': at least one test sample of each client expected"
    if not result.membership:
        yield "'membership': the groups of at least one round expected"


def recount(result: Result) -> dict[str, float | None]:
    """Recompute the summary of a result from its curves, clients and groups.

    Returns:
        Name in the summary -> number; None where there is none. What needs the models or the data
        (calibration, wrong members, how labels are spread) is left out.
    """
    return {**computed(result.outcome()), **dict(_rounds(result))}


def _rounds(result: Result) -> Found:
    """The round that is reported, and the accuracies of single rounds."""
    curves, found = result.curves, result.summary
    measured = {at + 1: value for at, value in enumerate(curves["accuracy"]) if value is not None}
    rounds, best = max(measured), _chosen(curves, min(measured))
    validated = result.suite.get("headline", "last") == "validation"
    yield "round", _nearest(found.get("round"), best) if validated else rounds
    yield "accuracy_last", measured[rounds]
    yield (
        "accuracy_chosen",
        _nearest(found.get("accuracy_chosen"), [measured[at] for at in best if at in measured]),
    )
    if "accuracy_fine_tuned" in found:
        yield "accuracy_fine_tuned", (curves.get("accuracy_fine_tuned") or [None])[-1]


def _chosen(curves: Mapping[str, Curve], first: int) -> list[int]:
    """The rounds that validation may have chosen, as curves are rounded to six decimals.

    Without validation, it is the first evaluated round.
    """
    curve = curves.get("accuracy_validation", [])
    known = {at + 1: value for at, value in enumerate(curve) if value is not None}
    best = max(known.values(), default=0.0)
    return [round_ for round_, value in known.items() if value >= best - ROUNDED] or [first]


def _nearest(told: float | None, possible: Sequence[float]) -> float | None:
    """The possible value that is nearest to the value in the file."""
    return min(possible, key=lambda value: abs(value - (told or 0.0)), default=None)


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= CLOSE * max(1.0, abs(other))


def _shown(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.6g}"
