"""Consistency of a result file: its run, its fingerprints, and a summary that fits its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path

from pydantic import ValidationError

from flbench.client_metrics.torchmetrics_classes import checked_params, is_class
from flbench.engine.options import EXACT, EngineOptions
from flbench.errors import UserError
from flbench.metrics import EPOCHS, GREY_LENET, JUDGED, NEAR, TIME, WAYS, computed, flis_compat
from flbench.plugin.registry import entries
from flbench.results.difference import relative_distance
from flbench.results.schema import SCHEMA, YOUNGER, Result, first_problem
from flbench.run.composition import MethodStack
from flbench.run.spec import RunSpec
from flbench.suite import Suite
from flbench.tasks import Task, TaskName

CLOSE = 1e-5
"""Allowed difference from a recomputed number; curves and losses have six decimals."""
MEASURED = (
    "accuracy_validation", "ari", "groups", "slowest_down", "train_loss", EPOCHS,
)  # fmt: skip
"""Curves that every run has, though no number may be in them."""
NEEDED = ("selection_error", "selection_false_positives", "selection_false_negatives")
"""Numbers of every summary that follow from no array."""
OF_CLASSES = ("ece", "kld")
"""Those that a summary has beside them where samples have classes."""
SHARE, AMOUNT = (0.0, 1.0), (0.0, inf)
BOUNDS = {
    "accuracy": SHARE, "map": SHARE, "micro-f1": SHARE, "ari": (-1.0, 1.0), "r2": (-inf, 1.0),
    "rmse": AMOUNT, "groups": AMOUNT, "bytes": AMOUNT, "slowest": AMOUNT, "selection": AMOUNT,
    EPOCHS: AMOUNT, TIME: AMOUNT,
}  # fmt: skip
"""The least and the greatest number of curves, by their names or how these begin before a `_`."""
CUMULATIVE = ("bytes", EPOCHS, TIME)
"""Those that never fall."""
ROUNDED = 1.5e-6
"""Entries of curves that differ by less may be rounded from equal numbers."""


def job_of(result: Result, out: Path) -> RunSpec:
    """The specification of the run that a result describes; its plugins are not loaded.

    Raises:
        UserError: its settings are not valid for a suite, or its names are those of no folder.
    """
    for field, name in (("suite.name", result.suite["name"]), ("method.name", result.method.name)):
        if "/" in name or name.startswith("."):  # they are folders, where a run writes and reads
            expected = "a name without / and without a dot at its beginning expected"
            raise UserError(f"'{field}': {expected}, got {name!r}")
    asked = [
        {**one.params, "name": one.name}
        for one in (result.client_metrics or {}).values()
        if not one.plugin
    ]
    table = {**result.suite, "summary": "", "dataset": result.dataset, "metrics": asked}
    try:
        suite = Suite.model_validate({**table, "target": result.summary.get("target")})
    except ValidationError as error:
        field, what = first_problem(error, table)
        raise UserError(f"'suite.{field}': {what}") from None
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


def sound(path: Path, result: Result) -> None:
    """Refuse an inconsistent result.

    Raises:
        UserError: its fingerprints do not fit its settings, or its numbers contradict each other;
            the first fault.
    """
    for fault in faults(result):
        raise UserError(f"{path}: {fault} (flbench submit --check lists everything)")


def faults(result: Result) -> Iterator[str]:
    """Everything in a result that does not fit together, a line for each."""
    try:
        job = job_of(result, Path())
    except UserError as error:
        yield str(error)
        return
    yield from _marks(result, job)
    yield from _metrics(job.suite, result.headline.name)
    shape = list(_shape(result, job.suite))
    yield from shape or _numbers(result)


def _marks(result: Result, job: RunSpec) -> Iterator[str]:
    """Fingerprints and names that do not fit the settings."""
    own = {key: value for key, value in result.suite.items() if key != "paper"}
    if own != job.suite.settings():
        yield f"'suite': {departures(own, job.suite.settings())} is expected of its settings"
    for name, mark in (("suite", job.suite.hash()), ("config", job.fingerprint)):
        stated = getattr(result.fingerprint, name)
        if stated != mark:
            yield f"'fingerprint.{name}': {mark} expected of its settings, got {stated}"
    names = "+".join(plugin.name for plugin in result.method.plugins)
    if names != result.method.name:
        yield f"'method.name': {names} expected, its plugins, got {result.method.name}"


def _metrics(suite: Suite, task: TaskName) -> Iterator[str]:
    """Metrics that no file may ask for; of installed metrics only a run knows the parameters."""
    for one in suite.metrics:
        if is_class(one.name) and one.name not in entries("metrics"):
            try:
                checked_params(one.name, one.params, task)
            except UserError as error:
                yield f"'client_metrics': {error}"


def departures(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """The keys in which two tables differ, in one line.

    Example:
        >>> departures({"rounds": 2, "clients": 9}, {"rounds": 3, "clients": 9})
        'rounds 2, not 3'
    """
    keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
    return ", ".join(f"{key} {one.get(key)!r:.60}, not {other.get(key)!r:.60}" for key in keys)


def _shape(result: Result, suite: Suite) -> Iterator[str]:
    """Curves and arrays that are missing, or do not fit the suite's rounds and clients."""
    needed = [result.headline.headline, "loss", *(f"bytes_{way}" for way in WAYS)]
    if suite.clock is not None:
        needed.append(TIME)
    elif TIME in result.curves:
        yield f"'curves.{TIME}': nothing expected, as the suite has no clock"
    for name in (*needed, *map(result.headline.named, MEASURED)):
        if name not in result.curves and not _may_lack(result, f"curves.{name}"):
            yield f"'curves.{name}': field required"
    for name, curve in result.curves.items():
        if len(curve) != suite.rounds:
            yield f"'curves.{name}': {suite.rounds} rounds expected, got {len(curve)}"
        elif name in needed and curve[-1] is None:
            yield f"'curves.{name}': a number expected in the last round"
        else:
            yield from _curve(name, curve)
    yield from _evaluated(result, suite)
    clients = len(result.clients.test)
    if clients != suite.training_clients:
        yield f"'clients': {suite.training_clients} expected in training, got {clients}"
    judged = [n for at, n in enumerate(result.clients.test) if at not in result.not_judged]
    if (not all(judged) and not result.periods) or (result.unseen and not all(result.unseen.test)):
        yield "'clients.test': at least one test sample of each client expected"
    if not result.membership:
        yield "'membership': the groups of at least one round expected"


def _curve(name: str, curve: Sequence[float | None]) -> Iterator[str]:
    """The first number of a curve that there cannot be, if there is one."""
    for begins, (low, high) in BOUNDS.items():
        if name != begins and not name.startswith(f"{begins}_"):
            continue
        last = low
        for at, value in enumerate(curve):
            if value is None:
                continue
            if not last <= value <= high:
                what = f"{last:g} or more" if high == inf else f"{last:g} to {high:g}"
                yield f"'curves.{name}.{at}': {what} expected, got {_shown(value)}"
                return
            last = value if begins in CUMULATIVE else low


def _evaluated(result: Result, suite: Suite) -> Iterator[str]:
    """The first round whose headline is missing, or is there though it was not to be measured."""
    name = result.headline.headline
    for round_, value in enumerate(result.curves.get(name, ()), start=1):
        due = round_ % suite.eval_every == 0 or round_ == suite.rounds
        if due != (value is not None):
            what = "a number" if due else "null"
            yield f"'curves.{name}.{round_ - 1}': {what} expected, eval_every={suite.eval_every}"
            return


def _may_lack(result: Result, field: str) -> bool:
    """Whether files of a result's version may be without a field."""
    return field in YOUNGER.get(result.schema_version, ())


ASKED_FOR = {"suite_plugins": "plugins", "summary.seconds_to_final": "clock"}
"""Younger fields that results have only where their suite has a field."""


def younger(result: Result) -> Iterator[str]:
    """Fields that a result lacks though runs have them since, as files of its version may."""
    for field in sorted(YOUNGER[SCHEMA]):
        part, _, name = field.partition(".")
        there = getattr(result, part)
        needed = field not in ASKED_FOR or bool(result.suite.get(ASKED_FOR[field]))
        if needed and (there is None or (name and name not in there)):
            yield field


def _numbers(result: Result) -> Iterator[str]:
    """Contradictions between the numbers of a result whose curves and arrays are complete."""
    recounted, named = recount(result), result.headline.named
    for name in (*recounted, *NEEDED, *(() if result.task else OF_CLASSES)):
        if name not in result.summary and not _may_lack(result, f"summary.{name}"):
            yield f"'summary.{name}': field required"
    for name, expected in recounted.items():
        came = result.summary.get(name, expected)
        if relative_distance(came, expected) > CLOSE:
            yield f"'summary.{name}': {_shown(expected)} expected by its arrays, got {_shown(came)}"
    shown = result.summary.get("round")
    for drawn, mean in (("accuracy", JUDGED["served"]), ("accuracy_own", JUDGED["own"])):
        drawn, mean = named(drawn), named(mean)
        headline = result.summary.get(mean)
        for round_, value in enumerate(result.curves.get(drawn, ()), start=1):
            if round_ == shown and relative_distance(value, headline) > CLOSE:
                what = f"{_shown(headline)} expected in round {shown}, as in 'summary.{mean}'"
                yield f"'curves.{drawn}': {what}, got {_shown(value)}"
    if result.own is not None and (own := named("accuracy_own")) not in result.curves:
        yield f"'curves.{own}': field required, as there are own models"
    for way in {**dict.fromkeys(WAYS), **result.bytes}:
        curve = result.curves.get(f"bytes_{way}", [None])
        total, last = sum(result.bytes.get(way, {}).values()), curve[-1]
        if total != last:
            yield f"'bytes.{way}': {last} expected, the last of 'curves.bytes_{way}', got {total}"
    of_clients = [items for way, items in result.bytes.items() if way in (*WAYS, *NEAR)]
    moved = sum(sum(items.values()) for items in of_clients)
    at = sum(result.clients.bytes)
    items = sum(map(len, of_clients))  # each of them is bits rounded up to whole bytes
    ways = max(len(WAYS), len(of_clients))
    if not -max(1, items) < at - moved < max(1, ways * len(result.clients.bytes)):
        yield f"'clients.bytes': {moved} expected in all, as in 'bytes', got {at}"


def recount(result: Result) -> dict[str, float | None]:
    """Recompute the summary of a result from its curves, clients and groups.

    Returns:
        Name in the summary -> number; None where there is none. What needs the models or the data
        (calibration, wrong members, how labels are spread) is left out.
    """
    curves, found, task = result.curves, result.summary, result.headline
    drawn = enumerate(curves[task.headline], 1)
    measured = {at: value for at, value in drawn if value is not None}
    chosen = _chosen(curves.get(task.named("accuracy_validation"), []), task)
    best = chosen or [min(measured)]  # older files call the first round chosen where none was
    validated = result.suite.get("headline", "last") == "validation"
    recounted = computed(result.outcome())
    recounted["round"] = _nearest(found.get("round"), best) if validated else max(measured)
    recounted[task.named("accuracy_last")] = measured[max(measured)]
    headlines = [measured[round_] for round_ in best if round_ in measured]
    stated = found.get(task.named("accuracy_chosen"))
    if not chosen and stated is None:
        headlines = []
    recounted[task.named("accuracy_chosen")] = _nearest(stated, headlines)
    if (tuned := task.named("accuracy_fine_tuned")) in found:
        recounted[tuned] = (curves.get(tuned) or [None])[-1]
    if "megabits_to_target_flis" in found:  # a file does not say how large its network is
        cost = recounted.get("megabits_to_target")
        possible = [] if cost is None else [cost, flis_compat(cost, GREY_LENET)]
        recounted["megabits_to_target_flis"] = _nearest(found["megabits_to_target_flis"], possible)
    return recounted


def _chosen(curve: Sequence[float | None], task: Task) -> list[int]:
    """The rounds that validation may have chosen, as curves are rounded to six decimals."""
    known = {round_: value for round_, value in enumerate(curve, 1) if value is not None}
    best = (max if task.higher_is_better else min)(known.values(), default=0.0)
    return [round_ for round_, value in known.items() if task.gain(value, best) >= -ROUNDED]


def _nearest(stated: float | None, possible: Sequence[float]) -> float | None:
    """The possible value that is nearest to the value in the file."""
    return min(possible, key=lambda value: abs(value - (stated or 0.0)), default=None)


def _shown(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.6g}"
