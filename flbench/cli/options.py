"""Options that several commands share, and what the values of some of them mean."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from flbench.core.parameters import parse
from flbench.engine.machine.portable import limit
from flbench.engine.options import EngineOptions, size
from flbench.errors import UserError
from flbench.sweeps.request import RunRequest

SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a parameter of a method, suite or study"),
]
Root = Annotated[
    Path | None,
    typer.Option(help="where data sets lie [default: $FLBENCH_DATA, else ~/.cache/flbench]"),
]
Out = Annotated[Path, typer.Option(help="folder of the result files")]
Results = Annotated[Path, typer.Option(help="folder of result files")]
COMMITTED = Path("leaderboard/results")
"""The result files of the repository, in a clone of it."""
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        help="metric of each client beside accuracy, such as f1 or auroc:average=weighted;"
        " repeat, or separate by commas",
    ),
]
MOST_SEEDS = 10_000
"""A cell is made for each of them before the first one is run."""
Workers = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="runs at once, each in a process of its own; auto: as many as CPUs and memory hold",
    ),
]
Executors = Literal["auto", "sequential", "vectorised", "fastest"]
Executor = Annotated[Executors, typer.Option(help="how clients train")]
Portable = Annotated[
    bool,
    typer.Option("--portable", help="the same bits on every x86-64 processor with AVX2; CPUs only"),
]
Threads = Annotated[int, typer.Option(min=1, max=1024, help="CPU threads of torch")]


def run_request(
    plugin: Annotated[
        list[str],
        typer.Option(
            "--plugin",
            "-p",
            help="method, or methods joined by + ; repeat, or separate by commas",
        ),
    ],
    suite: Annotated[
        list[str],
        typer.Option("--suite", "-s", help="suite or TOML file; repeat, or separate by commas"),
    ],
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**53, help="run this one seed [default: 0]")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MOST_SEEDS, help="run seeds 0..N-1")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="rounds, instead of the suite's")
    ] = None,
    settings: SettingsOption = None,
    preset: Annotated[
        str | None, typer.Option(help="a method's named parameters, such as its paper's")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="data set, instead of the suite's")] = None,
    offline: Annotated[
        bool,
        typer.Option("--offline-data", help="of each suite, the data set that needs no files"),
    ] = False,
    data_root: Root = None,
    out: Out = Path("flbench-results"),
    executor: Executor = "auto",
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...")] = "auto",
    devices: Annotated[
        int, typer.Option(min=1, help="devices of each machine, one process on each")
    ] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="machines")] = 1,
    precision: Annotated[
        str, typer.Option(help="of forward and backward passes: 32-true or bf16-mixed")
    ] = "32-true",
    compiled: Annotated[
        bool, typer.Option("--compile", help="let torch.compile translate the network")
    ] = False,
    bank_budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="memory for models and uploads, such as 8GB; more go to a file"
            " [default: half of what is free]",
        ),
    ] = None,
    threads: Threads = 1,
    energy: Annotated[
        bool,
        typer.Option("--energy", help="estimate the energy of the run: needs flbench[energy]"),
    ] = False,
    portable: Portable = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the checkpoint")] = False,
    changed_source: Annotated[
        bool,
        typer.Option(
            "--changed-source",
            help="with --resume: go on although code, torch, --threads or --compile have changed;"
            " the result says so",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="recompute a complete result")] = False,
    sink: Annotated[
        list[str] | None,
        typer.Option("--sink", help="where to report as well, such as wandb; repeatable"),
    ] = None,
    metric: Metrics = None,
) -> RunRequest:
    """The request that the options of `flbench run` make: its arguments are these options."""
    if seed is not None and seeds is not None:
        raise typer.BadParameter("--seed names one seed, --seeds N runs 0..N-1: give one of them")
    for option, given in (("--plugin", plugin), ("--suite", suite)):
        if not names(given):
            raise typer.BadParameter(f"{option} expects a name, got '{' '.join(given)}'")
    if offline and dataset is not None:
        raise typer.BadParameter("--offline-data chooses the data set of each suite: no --dataset")
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
        engine=EngineOptions(
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
        ),
        resume=resume,
        changed_source=changed_source,
        force=force,
        sinks=names(sink or []),
        metrics=names(metric or []),
    )


def takes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `flbench run`, before its own, as one argument `request`."""
    shared = list(inspect.signature(run_request, eval_str=True).parameters.values())
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def typed(**values: object) -> None:
        mine = {one.name: values.pop(one.name) for one in own}
        request = run_request(**values)  # type: ignore[arg-type]
        if request.engine.portable:
            limit()
        command(request, **mine)

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    return typed


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
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"--set expects KEY=VALUE, got '{pair}'")
        found[key.strip()] = parse(value.strip())
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
