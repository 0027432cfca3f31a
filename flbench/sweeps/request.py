"""RunRequest: what a person asks for, as plain values; `resolve` makes it a list of cells.

`run`, `sweep`, `study`, `tune`, `reproduce` and the workers of a Ray cluster share it. A cell is
one method on one suite with one seed. What a person types to run a cell is written from its request
and is never read back.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.core.setting_text import written
from flbench.engine.options import EngineOptions
from flbench.errors import BadParameter
from flbench.results.kept_files import KeepOptions

if TYPE_CHECKING:
    from flbench.results.schema import Tuning
    from flbench.run.composition import LoadedMethod, MethodStack
    from flbench.run.spec import RunSpec
    from flbench.suite import Suite
    from flbench.terminal.console import Console


KEPT = {"models": "save-models", "predictions": "save-predictions", "checkpoint": "keep-checkpoint"}
"""Field of `KeepOptions` -> the option by which a person sets it."""


@dataclass(frozen=True)
class RunRequest:
    """Every method on every suite with every seed; the options of `flbench run`.

    Attributes:
        methods: names, or names joined by "+".
        suites: names, or paths of TOML files.
        data_root: where data sets lie; None = $FLBENCH_DATA, else ~/.cache/flbench.
        sinks: names of listeners, beside the console.
        metrics: metrics of each client beside those of the suites, as they are typed.
        tuning: how the settings were found, if they were searched for.
        keep: what runs keep beside their results.
        offline: run each suite on its data set that needs no files (`Suite.offline_dataset`).

    Raises:
        BadParameter: a data set is named beside `offline`.
    """

    methods: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, object] = field(default_factory=dict)
    preset: str | None = None
    rounds: int | None = None
    dataset: str | None = None
    data_root: Path | None = None
    out: Path = Path("flbench-results")
    engine: EngineOptions = field(default_factory=EngineOptions)
    resume: bool = False
    force: bool = False
    sinks: tuple[str, ...] = ()
    tuning: Tuning | None = None
    metrics: tuple[str, ...] = ()
    offline: bool = False
    changed_source: bool = False
    keep: KeepOptions = field(default_factory=KeepOptions)

    def __post_init__(self) -> None:
        named = {"--dataset ": self.dataset, "--set dataset=": self.settings.get("dataset")}
        for option, dataset in named.items():
            if self.offline and dataset is not None:
                typed = f"{option}{dataset}"
                raise BadParameter(
                    f"--offline-data chooses the data set of each suite: leave out {typed}"
                )

    @property
    def root(self) -> Path:
        """The folder in which data sets are searched."""
        from flbench.datasets import data_root

        return data_root(self.data_root)

    def to_json(self) -> str:
        """The request as text, for another process."""
        table = {one.name: getattr(self, one.name) for one in fields(self)}
        table |= {"engine": asdict(self.engine), "keep": asdict(self.keep)}
        table["tuning"] = None if self.tuning is None else self.tuning.model_dump()
        return json.dumps(table, default=str)

    @classmethod
    def from_json(cls, text: str) -> RunRequest:
        """The request that `to_json` wrote."""
        from flbench.results.schema import Tuning

        table = json.loads(text)
        for name in ("methods", "suites", "seeds", "sinks", "metrics"):
            table[name] = tuple(table[name])
        table["data_root"] = None if table["data_root"] is None else Path(table["data_root"])
        table["out"] = Path(table["out"])
        table["engine"] = EngineOptions(**table["engine"])
        table["keep"] = KeepOptions(**table["keep"])
        table["tuning"] = None if table["tuning"] is None else Tuning(**table["tuning"])
        return cls(**table)


@dataclass(frozen=True, eq=False)
class Cell:
    """One method on one suite with one seed: the request for it alone, and its run.

    Attributes:
        note: what distinguishes it from others with the same title, in messages.
    """

    request: RunRequest
    spec: RunSpec
    note: str = ""

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return f"{self.spec.title}, {self.note}" if self.note else self.spec.title

    @property
    def command(self) -> str:
        """What a person types to run this cell alone."""
        return command(self.request)


@dataclass(frozen=True)
class AskedMethod:
    """A method that was asked for, with its parameters.

    Attributes:
        preset: that of the request, or None if the method has none of this name.
    """

    loaded: LoadedMethod
    composed: MethodStack
    preset: str | None


def resolve(
    request: RunRequest, console: Console, load: Callable[[str], LoadedMethod] | None = None
) -> list[Cell]:
    """The cells of a request, each once; whatever is wrong with it is refused here.

    Methods are found, imported and composed once. A cell keeps the settings and the preset that
    concern it, and no others: alone, it would refuse what is meant for another method.

    Args:
        console: prints what a person should know, and listens to the runs.
        load: imports methods; several requests may share one that remembers them.

    Raises:
        UserError: a name that is not installed, or a setting that does not fit.
    """
    with console.importing():
        from flbench.run import runner  # noqa: F401 - so that the wait is over after this block
        from flbench.run.composition import joined, load_method
        from flbench.run.energy import refuse_without_meter
        from flbench.run.result import refuse_unfit

        refuse_without_meter(request.engine)
        methods = _asked_methods(request, console.say, load or cache(load_method))
    overrides = _overrides(request, methods)
    sinks = {name: build_sink(name) for name in request.sinks} | {"console": console}
    cells: dict[Path, Cell] = {}
    for name in request.suites:
        suite, dataset = _asked_suite(name, request, overrides)
        for method in methods:
            joined(suite, method.composed)  # before anything runs
            narrow = _narrowed(request, name, dataset, method)
            for seed in request.seeds:
                one = replace(narrow, seeds=(seed,))
                spec = _spec(one, suite, method.composed, sinks, console.say)
                refuse_unfit(spec)
                cells.setdefault(spec.path, Cell(one, spec))
    return list(cells.values())


def superseded(cells: Sequence[Cell]) -> list[str]:
    """A line for each suite of some cells that another one takes the place of."""
    suites = {cell.spec.suite.name: cell.spec.suite.superseded_by for cell in cells}
    return [f"suite '{old}' is superseded by '{new}'" for old, new in suites.items() if new]


def suite_of(
    request: RunRequest, say: Callable[[str], None]
) -> tuple[Suite, tuple[tuple[str, object], ...]]:
    """The suite of a request, with all that is asked for, and who else answers hooks on it.

    It is what `resolve` gives to runs; the request may name no method, or one.

    Raises:
        UserError: a name that is not installed, or a setting that does not fit.
    """
    from flbench.run.composition import layers_of, load_method

    methods = _asked_methods(request, say, load_method)
    (name,) = request.suites
    suite, _ = _asked_suite(name, request, _overrides(request, methods))
    own = [layer for method in methods for layer in method.composed.layers]
    return suite, layers_of(suite, own)


def _overrides(request: RunRequest, methods: Sequence[AskedMethod]) -> dict[str, object]:
    """What a request sets of its suites: dotted field -> value."""
    from flbench.run.composition import suite_overrides

    overrides = suite_overrides(request.settings, [method.loaded for method in methods])
    if request.rounds is not None:
        asked = overrides.setdefault("rounds", request.rounds)
        if asked != request.rounds:
            raise BadParameter(
                f"--rounds {request.rounds} and --set rounds={written(asked)}: give one of them"
            )
    return overrides


def _asked_methods(
    request: RunRequest, say: Callable[[str], None], load: Callable[[str], LoadedMethod]
) -> list[AskedMethod]:
    """The methods of a request; `say` hears of those that have no such preset."""
    from flbench.run.composition import without_preset

    methods = [load(name) for name in request.methods]
    without = [] if request.preset is None else without_preset(request.preset, methods)
    for name in without:
        say(f"{name} has no preset '{request.preset}': it runs with its defaults")
    return [
        AskedMethod(
            method,
            method.compose(request.settings, request.preset),
            None if method.text in without else request.preset,
        )
        for method in methods
    ]


def _asked_suite(
    name: str, request: RunRequest, overrides: Mapping[str, object]
) -> tuple[Suite, str | None]:
    """A suite with the metrics that are asked for, and the data set that is typed for it."""
    from flbench.client_metrics.torchmetrics_classes import refuse_unsaid_average
    from flbench.engine.client_metrics import find_metric
    from flbench.suite import load_suite, metric_of

    suite, dataset = load_suite(name, request.dataset, overrides), request.dataset
    if request.offline and suite.offline_dataset:
        dataset = suite.offline_dataset
        suite = load_suite(name, dataset, overrides)
    metrics = *suite.metrics, *map(metric_of, request.metrics)
    for metric in metrics:
        refuse_unsaid_average(metric.name, metric.params)
        find_metric(metric, None)  # before anything runs
    return suite.model_copy(update={"metrics": metrics}), dataset


def _narrowed(
    request: RunRequest, suite: str, dataset: str | None, method: AskedMethod
) -> RunRequest:
    """What one method on one suite needs of a request."""
    settings = {k: v for k, v in request.settings.items() if concerns(k, method.loaded)}
    return replace(
        request,
        methods=(method.loaded.text,),
        suites=(suite,),
        dataset=dataset,
        offline=False,
        settings=settings,
        preset=method.preset,
    )


def _spec(
    request: RunRequest,
    suite: Suite,
    method: MethodStack,
    sinks: Mapping[str, object],
    say: Callable[[str], None],
) -> RunSpec:
    """The run of a request for one cell."""
    from flbench.run.spec import RunSpec

    (seed,) = request.seeds
    return RunSpec(
        suite=suite,
        method=method,
        seed=seed,
        data_root=request.root,
        out=request.out,
        engine=request.engine,
        tuning=request.tuning,
        resume=request.resume,
        changed_source=request.changed_source,
        force=request.force,
        keep=request.keep,
        sinks=tuple(sinks.items()),
        say=say,
    )


def build_sink(name: str) -> object:
    """A sink; its constructor runs as third-party code.

    Raises:
        UnknownName: no installed package has this sink.
        PluginError: it cannot be imported, or its constructor raises.
    """
    from flbench.plugin.isolation import produced
    from flbench.plugin.registry import find, load_entry

    return produced(name, f"sink '{name}'", object, load_entry(find("sinks", name)))


def concerns(key: str, method: LoadedMethod) -> bool:
    """Whether a setting is the suite's, or a parameter of this method."""
    from flbench.suite import suite_field

    return suite_field(key) is not None or any(one.field(key) for one in method.plugins)


def command(request: RunRequest) -> str:
    """What a person types for a request; of seeds it names one, or how many there are."""
    return shlex.join(["flbench", "run", *_arguments(request)])


def _arguments(request: RunRequest) -> Iterator[str]:
    named: list[tuple[str, Sequence[str]]] = [
        ("--plugin", request.methods),
        ("--suite", request.suites),
        ("--set", [f"{key}={written(value)}" for key, value in request.settings.items()]),
        ("--preset", [] if request.preset is None else [request.preset]),
        ("--metric", request.metrics),
        ("--sink", request.sinks),
    ]
    for option, values in named:
        for value in values:
            yield from (option, value)
    if len(request.seeds) == 1:
        yield from ("--seed", str(request.seeds[0]))
    else:
        yield from ("--seeds", str(len(request.seeds)))
    usual, engine = vars(EngineOptions()), vars(request.engine)
    plain: dict[str, object] = {
        "rounds": request.rounds,
        "dataset": request.dataset,
        "data-root": request.data_root,
        "out": None if request.out == RunRequest.out else request.out,
        **{
            key: value
            for key, value in engine.items()
            if value != usual[key] and not isinstance(value, bool)
        },
    }
    for name, given in plain.items():
        if given is not None:
            yield from (f"--{name.replace('_', '-')}", str(given))
    flags = {"offline-data": request.offline}
    flags |= {key: value for key, value in engine.items() if isinstance(value, bool)}
    flags |= {KEPT[key]: value for key, value in vars(request.keep).items()}
    flags |= {"force": request.force, "resume": request.resume}
    flags["changed-source"] = request.changed_source
    yield from (f"--{name}" for name, wanted in flags.items() if wanted)
