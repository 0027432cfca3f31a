"""Options that several commands share, and what the values of some of them mean."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flbench.core.setting_text import parse, written
from flbench.engine.machine.portable import limit
from flbench.engine.options import EngineOptions, size
from flbench.errors import UserError
from flbench.results.kept_files import KeepOptions
from flbench.sweeps.request import RunRequest

# --- what is run --------------------------------------------------------------------------------

PluginOption = Annotated[
    list[str],
    typer.Option(
        "--plugin", "-p", help="method, or methods joined by + ; repeat, or separate by commas"
    ),
]
SuiteOption = Annotated[
    list[str],
    typer.Option("--suite", "-s", help="suite or TOML file; repeat, or separate by commas"),
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, max=2**53, help="run this one seed [default: 0]")
]
MOST_SEEDS = 10_000
"""A cell is made for each of them before the first one is run."""
SeedsOption = Annotated[int | None, typer.Option(min=1, max=MOST_SEEDS, help="run seeds 0..N-1")]
RoundsOption = Annotated[int | None, typer.Option(min=1, help="rounds, instead of the suite's")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a parameter of a method, suite or study"),
]
PresetOption = Annotated[
    str | None, typer.Option(help="a method's named parameters, such as its paper's")
]
DatasetOption = Annotated[str | None, typer.Option(help="data set, instead of the suite's")]
OfflineOption = Annotated[
    bool, typer.Option("--offline-data", help="of each suite, the data set that needs no files")
]
Root = Annotated[
    Path | None,
    typer.Option(help="where data sets lie [default: $FLBENCH_DATA, else ~/.cache/flbench]"),
]
Out = Annotated[Path, typer.Option(help="folder of the result files")]

# --- what it is computed with: `engine/options.py` ----------------------------------------------

Executors = Literal["auto", "sequential", "vectorised"]
Executor = Annotated[Executors, typer.Option(help="how clients train")]
AcceleratorOption = Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...")]
DevicesOption = Annotated[
    int, typer.Option(min=1, help="devices of each machine, one process on each")
]
NodesOption = Annotated[int, typer.Option(min=1, help="machines")]
PrecisionOption = Annotated[
    str, typer.Option(help="of forward and backward passes: 32-true or bf16-mixed")
]
CompileOption = Annotated[
    bool, typer.Option("--compile", help="let torch.compile translate the network")
]
BankBudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="memory for models and uploads, such as 8GB; more go to a file"
        " [default: half of what is free]",
    ),
]
Threads = Annotated[int, typer.Option(min=1, max=1024, help="CPU threads of torch")]
EnergyOption = Annotated[
    bool, typer.Option("--energy", help="estimate the energy of the run: needs flbench[energy]")
]
Portable = Annotated[
    bool,
    typer.Option("--portable", help="the same bits on every x86-64 processor with AVX2; CPUs only"),
]
Workers = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="runs at once, each in a process of its own; auto: as many as CPUs and memory hold",
    ),
]

# --- what is there already, and what is told of runs --------------------------------------------

ResumeOption = Annotated[bool, typer.Option("--resume", help="go on from the checkpoint")]
ChangedSourceOption = Annotated[
    bool,
    typer.Option(
        "--changed-source",
        help="with --resume: go on although code, torch, --threads or --compile have changed;"
        " the result says so",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="recompute a complete result")]
SaveModels = Annotated[
    bool,
    typer.Option("--save-models", help="keep the models that serve clients, beside the result"),
]
SavePredictions = Annotated[
    bool,
    typer.Option(
        "--save-predictions", help="keep what they say of each test sample, beside the result"
    ),
]
KeepCheckpoint = Annotated[
    bool,
    typer.Option(
        "--keep-checkpoint",
        help="keep the last checkpoint beside the result: --resume with more --rounds goes on",
    ),
]
SinkOption = Annotated[
    list[str] | None,
    typer.Option("--sink", help="where to report as well, such as wandb; repeatable"),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        help="metric of each client beside accuracy, such as f1 or auroc:average=weighted;"
        " repeat, or separate by commas",
    ),
]
Results = Annotated[Path, typer.Option(help="folder of result files")]
COMMITTED = Path("leaderboard/results")
"""The result files of the repository, in a clone of it."""


def what_to_run(
    plugin: PluginOption,
    suite: SuiteOption,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    rounds: RoundsOption = None,
    settings: SettingsOption = None,
    preset: PresetOption = None,
    dataset: DatasetOption = None,
    offline: OfflineOption = False,
    data_root: Root = None,
    out: Out = Path("flbench-results"),
) -> RunRequest:
    """The request for methods, suites and seeds: its arguments are options of `flbench run`."""
    if seed is not None and seeds is not None:
        raise typer.BadParameter("--seed names one seed, --seeds N runs 0..N-1: give one of them")
    for option, given in (("--plugin", plugin), ("--suite", suite)):
        if not names(given):
            raise typer.BadParameter(f"{option} expects a name, got '{' '.join(given)}'")
    return RunRequest(
        methods=names(plugin),
        suites=names(suite),
        seeds=(seed or 0,) if seeds is None else tuple(range(seeds)),
        settings=read_settings(settings),
        preset=preset,
        rounds=rounds,
        dataset=dataset,
        offline=offline,
        data_root=data_root,
        out=out,
    )


def computed_with(
    executor: Executor = "auto",
    accelerator: AcceleratorOption = "auto",
    devices: DevicesOption = 1,
    nodes: NodesOption = 1,
    precision: PrecisionOption = "32-true",
    compiled: CompileOption = False,
    bank_budget: BankBudgetOption = None,
    threads: Threads = 1,
    energy: EnergyOption = False,
    portable: Portable = False,
) -> EngineOptions:
    """What runs are computed with: its arguments are options of `flbench run`."""
    return EngineOptions(
        executor=executor,
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        precision=precision,
        compile=compiled,
        bank_budget=None if bank_budget is None else size(bank_budget),
        threads=threads,
        energy=energy,
        portable=portable,
    )


def kept_beside(
    save_models: SaveModels = False,
    save_predictions: SavePredictions = False,
    keep_checkpoint: KeepCheckpoint = False,
) -> KeepOptions:
    """What runs keep beside their results: its arguments are options of `flbench run`."""
    return KeepOptions(save_models, save_predictions, keep_checkpoint)


def begun_and_reported(
    request: RunRequest,
    resume: ResumeOption = False,
    changed_source: ChangedSourceOption = False,
    force: ForceOption = False,
    sink: SinkOption = None,
    metric: Metrics = None,
) -> RunRequest:
    """The request with where runs begin and who hears of them: options of `flbench run`."""
    return replace(
        request,
        resume=resume,
        changed_source=changed_source,
        force=force,
        sinks=names(sink or []),
        metrics=names(metric or []),
    )


def takes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `flbench run`, before its own, as one argument `request`."""
    what, engine = parameters(what_to_run), parameters(computed_with)
    further, own = parameters(begun_and_reported)[1:], parameters(command)[1:]
    kept = parameters(kept_beside)

    def typed(**values: Any) -> None:  # noqa: ANN401 - options of all kinds
        def of(some: Sequence[inspect.Parameter]) -> dict[str, Any]:
            return {one.name: values[one.name] for one in some}

        request = replace(what_to_run(**of(what)), engine=computed_with(**of(engine)))
        request = replace(begun_and_reported(request, **of(further)), keep=kept_beside(**of(kept)))
        if request.engine.portable:
            limit()
        command(request, **of(own))

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    every = [*what, *engine, *further, *kept, *own]
    typed.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    return typed


def parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters of a function, with their annotations as objects."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def names(values: Sequence[str]) -> tuple[str, ...]:
    """Names given one by one, or several separated by commas."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def read_workers(text: str) -> int | None:
    """The number that `--workers` gives; None = auto."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) == 0:
        raise typer.BadParameter(f"--workers expects a number from 1, or auto, got '{text}'")
    return int(text)


def read_settings(pairs: Sequence[str] | None) -> dict[str, object]:
    """`--set key=value` pairs, values read as TOML.

    `run/composition.py` gives them to methods, `suite.py` to the suite.
    """
    found: dict[str, object] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        key, value = name.strip(), parse(text.strip())
        if not equals or not key:
            raise typer.BadParameter(f"--set expects KEY=VALUE, got '{pair}'")
        if found.setdefault(key, value) != value and written(found[key]) != written(value):
            raise typer.BadParameter(
                f"--set {key}={written(found[key])} and --set {pair.strip()}: give one of them"
            )
    return found


def board_command(suites: Iterable[str], results: Path, out: Path, *more: str) -> str:
    """What a person types to write the pages of suites, none = all; defaults are left out."""
    words = [f"--suite={name}" for name in sorted(set(suites))]
    words += [] if results == COMMITTED else ["--results", str(results)]
    words += [] if out == COMMITTED.parent else ["--out", str(out)]
    return shlex.join(["flbench", "leaderboard", *words, *more])


def refuse_no_folder(results: Path) -> None:
    """Refuse a folder of result files that is not there.

    Raises:
        UserError: it is not; says where there are some.
    """
    if not results.is_dir():
        raise UserError(
            f"--results: expected a folder of result files, there is no '{results}': a clone of the"
            f" repository has {COMMITTED}, your own runs are in flbench-results"
        )
