"""`run_suite`, `run_suites`: what `flbench run` and `flbench sweep` do, called from Python.

A call becomes the typed request of the commands, so its files have the same bytes. With one worker,
the default, everything runs in the process and thread that calls: a debugger stops inside hooks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from flbench.engine.options import EngineOptions
from flbench.errors import (
    BadParameter,
    FlbenchError,
    Undefined,
    UnknownName,
    UserError,
    machine_error,
)
from flbench.plugin.registry import Entry, OwnObjects, offering
from flbench.results.kept_files import KeepOptions
from flbench.sweeps.launchers import SKIPPED, Outcome
from flbench.sweeps.request import Cell, RunRequest, concerns, resolve
from flbench.sweeps.suite_results import SuiteResults
from flbench.sweeps.sweep import run_missing
from flbench.terminal.console import SweepProgress

if TYPE_CHECKING:
    from flbench.core.dataset import Dataset
    from flbench.results.schema import Result


class RunOptions(TypedDict, total=False):
    """What `run_suite` and `run_suites` may be told beside methods, suites and seeds.

    Attributes:
        settings: a parameter of a method or a field of the suite -> its value, as `--set`.
        preset: a method's named parameters, such as its paper's.
        rounds: instead of the suite's.
        dataset: instead of the suite's: a name, or a `Dataset` of one's own.
        model: instead of the suite's network: a name, or a function of one's own (a class too) of
            a sample's shape and the number of classes.
        metrics: of each client beside those of the suite, such as "f1".
        sinks: names of sinks.
        data_root: folder of the data sets; None = $FLBENCH_DATA, else ~/.cache/flbench.
        out: folder of the result files, as `flbench run` writes them; what is complete there is
            read. None = no file is kept.
        force: compute again what is complete in `out`.
        save_models, save_predictions, keep_checkpoint: what is kept beside results; needs `out`.
        executor: how clients train: auto, sequential or vectorised.
        accelerator: auto, cpu, cuda, mps, ...
        precision: of forward and backward passes: 32-true or bf16-mixed.
        compile: let torch.compile translate the network.
        threads: CPU threads of torch.
        workers: runs at once, each in a process of its own if there are several; None = as many as
            CPUs and memory hold. 1 = all run here, in this thread.
    """

    settings: Mapping[str, object]
    preset: str | None
    rounds: int | None
    dataset: str | Dataset | None
    model: object
    metrics: Sequence[str]
    sinks: Sequence[str]
    data_root: str | Path | None
    out: str | Path | None
    force: bool
    save_models: bool
    save_predictions: bool
    keep_checkpoint: bool
    executor: str
    accelerator: str
    precision: str
    compile: bool
    threads: int
    workers: int | None


def run_suite(
    method: object, suite: str | Path, *, seed: int = 0, **options: Unpack[RunOptions]
) -> Result:
    """Run a method on a suite with one seed, as `flbench run` does.

    Progress is printed on standard error: bars in a terminal, lines elsewhere.

    Args:
        method: a name, or names joined by "+"; a pair of it and a table of its parameters; or an
            object of a plugin class of one's own, which no package need offer.
        suite: a name, or the path of a TOML file.
        seed: the seed of the run.
        options: see `RunOptions`.

    Returns:
        The content of the result file.

    Raises:
        UserError: a name is not installed, or a setting is not valid.
        Undefined: the method has no meaning on this suite.
        Diverged: a client's parameters left the finite numbers.
        FlbenchError: anything else; its text is one line.
    """
    (outcome,) = _run([method], [suite], [_whole("seed", seed)], options).values()
    if outcome.result is None:
        raise _error_of(outcome)
    return outcome.result


def run_suites(
    methods: Iterable[object],
    suites: Iterable[str | Path],
    *,
    seeds: int | Iterable[int] = 1,
    **options: Unpack[RunOptions],
) -> SuiteResults:
    """Run every method on every suite with every seed, as `flbench sweep` does.

    A run without a result stops no other: `SuiteResults.missing` says why.

    Args:
        methods: each as `run_suite` takes one.
        suites: names, or paths of TOML files.
        seeds: how many, from 0 on, or which.
        options: see `RunOptions`.

    Raises:
        UserError: a name is not installed, or a setting is not valid; nothing was run.
        FlbenchError: no run has a result; this is the first one's error.
    """
    methods, suites = _several("methods", methods), _several("suites", suites)
    outcomes = _run(methods, suites, _seeds(seeds), options)
    results = tuple(one.result for one in outcomes.values() if one.result is not None)
    if not results:
        raise _error_of(next(iter(outcomes.values())))
    missing = {cell.title: one.why for cell, one in outcomes.items() if one.result is None}
    return SuiteResults(results, missing)


# --- from a call to cells -------------------------------------------------------------------------


@dataclass(frozen=True)
class CalledMethod:
    """A method of a call: its name and parameters, and what is behind the name if it is own.

    `whole`: it is an object, which has all of its parameters, also those at their defaults.
    """

    name: str
    settings: Mapping[str, object] = field(default_factory=dict)
    own: OwnObjects = field(default_factory=dict)
    whole: bool = False


class CallProgress(SweepProgress):
    """Progress of a call. Importing leaves the signals and the memory of the process alone."""

    def importing(self) -> AbstractContextManager[object]:
        """Import without a word."""
        return nullcontext()


def _run(
    methods: Sequence[object],
    suites: Sequence[str | Path],
    seeds: Sequence[int],
    options: RunOptions,
) -> Mapping[Cell, Outcome]:
    """Run all that is asked for; every cell with its outcome.

    Raises:
        UserError: something of it is not valid; nothing was run.
    """
    for what, given in (("method", methods), ("suite", suites), ("seed", seeds)):
        if not given:
            raise BadParameter(f"{what}s: expected one {what} or more, got none")
    for suite in suites:
        if not isinstance(suite, str | Path):
            kind = type(suite).__name__
            raise BadParameter(f"suite: expected a name or the path of a TOML file, got a {kind}")
    options = _checked(options)
    called = [_called(method) for method in methods]
    request, own = _request(suites, seeds, options)
    own = {**own, **{key: one for method in called for key, one in method.own.items()}}
    workers = options.get("workers", 1)
    if own and workers != 1:
        raise BadParameter(
            f"workers: '{next(iter(own))[1]}' is an object of this process, which others do not"
            " have: give workers=1, or put it into a package (flbench new)"
        )
    with _kept_in(request, options.get("out")) as request, offering(own):
        progress = CallProgress()
        cells = _cells(request, called, progress)
        if names := [name for _, name in own]:
            progress.say(
                f"nobody else can run this again until it is published: {', '.join(names)}"
            )
        if workers == 1:
            return run_missing(cells, progress)
        from flbench.sweeps.workers import run_in_workers

        return run_missing(
            cells, progress, partial(run_in_workers, progress=progress, workers=workers)
        )


def _checked(options: RunOptions) -> RunOptions:
    """The options of a call, whole numbers as those of Python.

    Raises:
        UserError: there is no such option, or it is of another kind.
    """
    if unknown := sorted({*options} - {*RunOptions.__annotations__}):
        raise _unknown_option(unknown[0], options)
    settings = options.get("settings") or {}
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise BadParameter(
            f"settings: expected a table such as {{'lam': 0.1}}, got {settings!r:.80}"
        )
    found: dict[str, object] = {**options}
    if settings:
        found["settings"] = {key: _plain(value) for key, value in settings.items()}
    for what in ("metrics", "sinks"):
        names: Any = found.get(what)
        if isinstance(names, str):
            raise BadParameter(f"{what}: expected a list, got a text: give {names.split(',')}")
        if other := [one for one in names or () if not isinstance(one, str)]:
            raise BadParameter(f"{what}: expected names, got {other[0]!r:.80}")
    for what in ("out", "data_root"):
        if not isinstance(path := found.get(what), str | Path | None) or path == "":
            raise BadParameter(f"{what}: expected the path of a folder, got {path!r:.80}")
    for what in ("force", "save_models", "save_predictions", "keep_checkpoint", "compile"):
        if not isinstance(answer := found.get(what, False), bool):
            raise BadParameter(f"{what}: expected True or False, got {answer!r:.80}")
    for what in ("rounds", "threads", "workers"):
        if (number := found.get(what)) is not None:
            found[what] = _whole(what, number, least=1)
    return cast("RunOptions", found)


def _plain(value: object) -> object:
    """A value of the caller as one of Python: numbers of numpy and torch to their own digits.

    Example:
        >>> import numpy as np
        >>> _plain(np.float32(0.1)), _plain([np.int64(3), "a"])
        (0.1, [3, 'a'])
    """
    import numpy as np

    if hasattr(value, "detach") and getattr(value, "ndim", None) == 0:  # a tensor
        one = value.detach().cpu()
        is_short = one.dtype.is_floating_point and one.dtype.itemsize < 4  # numpy lacks some
        value = (one.float() if is_short else one).numpy()[()]
    if isinstance(value, np.floating):
        return float(str(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        found = map(_plain, value)
        return list(found) if isinstance(value, list) else tuple(found)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _unknown_option(name: str, options: Mapping[str, object]) -> UserError:
    """The error of an option that there is not: what to type instead."""
    from flbench.suite import suite_field

    if name in ("seed", "seeds"):
        return BadParameter(f"{name}: run_suite has seed=0; run_suites has seeds=4 or seeds=[0, 7]")
    if suite_field(name):
        return BadParameter(
            f"{name}: it is a field of the suite: give settings={{'{name}': {options[name]!r:.80}}}"
        )
    own = "a parameter of a method goes into settings={...}; there are"
    return UnknownName("option", name, RunOptions.__annotations__, listed=own)


def _several(what: str, given: object) -> list[Any]:
    """Methods or suites of a call.

    Raises:
        BadParameter: it is one name, or no list.
    """
    if isinstance(given, str | Path):
        names = str(given).split(",")
        raise BadParameter(f"{what}: expected a list, got a text: give {names}")
    if not isinstance(given, Iterable):
        raise BadParameter(f"{what}: expected a list, got {given!r:.80}")
    return list(given)


def _seeds(given: object) -> list[int]:
    """Seeds of a call: so many from 0 on, or those that are listed.

    Raises:
        BadParameter: it is neither.
    """
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return [_whole("seeds", one) for one in given]
    return list(range(_whole("seeds", given)))


def _whole(what: str, given: object, least: int = 0) -> int:
    """A whole number, also of numpy.

    Raises:
        BadParameter: it is none, or too small.
    """
    if isinstance(given, bool) or not isinstance(given, Integral) or int(given) < least:
        kind = f"{given!r:.80} ({type(given).__name__})"
        raise BadParameter(f"{what}: expected a whole number of at least {least}, got {kind}")
    return int(given)


def _called(method: object) -> CalledMethod:
    """A method of a call, as `run_suite` takes it.

    Raises:
        UserError: it is none.
    """
    names = method.split(",") if isinstance(method, str) else method
    if isinstance(names, list) and (len(names) > 1 or not isinstance(method, str)):
        raise BadParameter(f"method: expected one, got {method!r:.80}: run_suites takes a list")
    if isinstance(method, str):
        return CalledMethod(method)
    if isinstance(method, tuple):
        if len(method) != 2 or not isinstance(method[1], Mapping):
            raise BadParameter(
                f"method: expected a pair such as ('ditto', {{'lam': 0.1}}), got {method!r:.80}"
            )
        base = _called(method[0])
        own_settings = {key: _plain(one) for key, one in method[1].items()}
        return replace(base, settings={**base.settings, **own_settings})
    from flbench.plugin.own_objects import PACKAGE, own_method

    entry, kind = own_method(method)
    given = [] if method is kind else [one for one in fields(kind) if one.init]
    settings = {f"{entry.name}.{one.name}": _plain(getattr(method, one.name)) for one in given}
    own = {("methods", entry.name): (entry, kind)} if entry.distribution == PACKAGE else {}
    return CalledMethod(entry.name, settings, own, whole=method is not kind)


def _request(
    suites: Sequence[str | Path], seeds: Sequence[int], options: RunOptions
) -> tuple[RunRequest, OwnObjects]:
    """The request of a call without its methods, and the objects of its caller that it names."""
    from flbench.plugin.own_objects import own_dataset, own_model

    own: dict[tuple[str, str], tuple[Entry, object]] = {}
    settings, dataset = dict(options.get("settings") or {}), options.get("dataset")
    if dataset is not None and not isinstance(dataset, str):
        entry, load = own_dataset(dataset)
        own["datasets", entry.name], dataset = (entry, load), entry.name
    if (model := options.get("model")) is not None:
        if not isinstance(model, str):
            entry, _ = own_model(model)
            own["models", entry.name], model = (entry, model), entry.name
        settings["suite.model"] = model
    root = options.get("data_root")
    chosen = {one.name for one in fields(EngineOptions)} & {*options}
    return RunRequest(
        suites=tuple(map(str, suites)),
        seeds=tuple(seeds),
        settings=settings,
        preset=options.get("preset"),
        rounds=options.get("rounds"),
        dataset=dataset,
        data_root=None if root is None else Path(root),
        engine=EngineOptions(**{name: options[name] for name in chosen}),  # type: ignore[literal-required]
        resume=True,
        force=options.get("force", False),
        sinks=tuple(options.get("sinks", ())),
        metrics=tuple(options.get("metrics", ())),
        keep=KeepOptions(
            options.get("save_models", False),
            options.get("save_predictions", False),
            options.get("keep_checkpoint", False),
        ),
    ), own


@contextmanager
def _kept_in(request: RunRequest, out: str | Path | None) -> Iterator[RunRequest]:
    """The request with the folder of its files: one that ends with the block where none is given.

    Raises:
        BadParameter: something is to be kept, and no folder is given.
    """
    if out is not None:
        yield replace(request, out=Path(out))
        return
    if any(vars(request.keep).values()):
        raise BadParameter("save_models, save_predictions, keep_checkpoint: expected out='FOLDER'")
    with tempfile.TemporaryDirectory(prefix="flbench-") as folder:
        yield replace(request, out=Path(folder))


def _cells(
    request: RunRequest, methods: Sequence[CalledMethod], progress: SweepProgress
) -> list[Cell]:
    """The cells of all methods, each once; a setting concerns those that have it, as a preset does.

    Each method is a request of its own: two may be one class with other parameters.
    """
    from flbench.run.composition import load_method, suite_overrides, without_preset

    load = cache(load_method)
    loaded = [load(one.name) for one in methods]
    suite_overrides(request.settings, loaded)  # refuses what nobody has
    without = [] if request.preset is None else without_preset(request.preset, loaded)
    cells: dict[Path, Cell] = {}
    for one, method in zip(methods, loaded, strict=True):
        shared = {key: v for key, v in request.settings.items() if concerns(key, method)}
        if one.whole or len(methods) == 1:
            _refuse_two_values(shared, one)
        narrow = replace(
            request,
            methods=(one.name,),
            settings={**shared, **one.settings},
            preset=None if one.name in without else request.preset,
        )
        note = ", ".join(f"{key.rpartition('.')[2]}={v}" for key, v in one.settings.items())
        for cell in resolve(narrow, progress, load):
            cells.setdefault(cell.spec.path, replace(cell, note=note))
    return list(cells.values())


def _refuse_two_values(shared: Mapping[str, object], method: CalledMethod) -> None:
    """Refuse settings that give a parameter another value than the method of the call has.

    Raises:
        BadParameter: one does.
    """
    owners = {"", *method.name.split("+")}
    for key, value in shared.items():
        for own, other in method.settings.items():
            (owner, _, name), (mine, _, its) = key.rpartition("."), own.rpartition(".")
            is_parameter = name == its and {owner, mine} <= owners and "" in (owner, mine)
            if (key == own or is_parameter) and not _is_same(value, other):
                raise BadParameter(
                    f"settings={{'{key}': {value!r:.80}}} and {method.name} has"
                    f" {its}={other!r:.80}: give one of them"
                )


def _is_same(one: object, other: object) -> bool:
    """Whether two values of a setting are one, as 1 and 1.0 are, and nan and nan."""
    is_numbers = all(isinstance(value, int | float) for value in (one, other))
    return repr(one) == repr(other) or (is_numbers and one == other)


def _error_of(outcome: Outcome) -> FlbenchError:
    """The error of a run without a result, of flbench's own types.

    Frames of flbench are taken off it; those of a method are in its cause.
    """
    error = outcome.error
    if isinstance(error, FlbenchError):
        return error.with_traceback(None)
    if outcome.what == SKIPPED:
        return Undefined(outcome.why)
    found = None if error is None else machine_error(error)
    made = found or FlbenchError(outcome.why)
    made.__cause__ = error
    return made
