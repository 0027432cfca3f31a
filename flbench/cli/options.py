"""Options that several commands share, and what the values of some of them mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.core.parameters import parse

if TYPE_CHECKING:
    from flbench.sweeps.request import RunRequest

Plugins = Annotated[
    list[str],
    typer.Option(
        "--plugin", "-p", help="method, or methods joined by + ; repeat, or separate by commas"
    ),
]
Suites = Annotated[
    list[str],
    typer.Option("--suite", "-s", help="suite or TOML file; repeat, or separate by commas"),
]
Seed = Annotated[int | None, typer.Option(min=0, help="run this one seed [default: 0]")]
Seeds = Annotated[int | None, typer.Option(min=1, help="run seeds 0..N-1")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a parameter of a method, suite or study"),
]
Preset = Annotated[
    str | None, typer.Option(help="a method's named parameters, such as its paper's")
]
Rounds = Annotated[int | None, typer.Option(min=1, help="rounds, instead of the suite's")]
DatasetName = Annotated[str | None, typer.Option(help="data set, instead of the suite's")]
Root = Annotated[
    Path | None,
    typer.Option(help="where data sets lie [default: $FLBENCH_DATA, else ~/.cache/flbench]"),
]
Out = Annotated[Path, typer.Option(help="folder of the result files")]
Executor = Annotated[str, typer.Option(help="auto, sequential or vectorised")]
Accelerator = Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...")]
Devices = Annotated[int, typer.Option(min=1, help="devices of each machine, one process on each")]
Nodes = Annotated[int, typer.Option(min=1, help="machines")]
Precision = Annotated[
    str, typer.Option(help="of forward and backward passes: 32-true or bf16-mixed")
]
Compile = Annotated[bool, typer.Option("--compile", help="let torch.compile translate the network")]
BankBudget = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="memory for models, such as 8GB; more go to a file [default: half]"
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of torch")]
Resume = Annotated[bool, typer.Option("--resume", help="go on from the checkpoint")]
Force = Annotated[bool, typer.Option("--force", help="recompute a complete result")]
Sinks = Annotated[
    list[str] | None,
    typer.Option("--sink", help="where to report as well, such as wandb; repeatable"),
]


def run_request(
    *,
    plugin: list[str],
    suite: list[str],
    seed: int | None,
    seeds: int | None,
    settings: list[str] | None,
    sink: list[str] | None,
    bank_budget: str | None,
    compiled: bool,
    executor: str,
    accelerator: str,
    devices: int,
    nodes: int,
    precision: str,
    threads: int,
    **same: Any,  # noqa: ANN401 - options that `RunRequest` takes as they are
) -> RunRequest:
    """The request that the options of `flbench run` make."""
    from flbench.engine.options import EngineOptions, size
    from flbench.sweeps.request import RunRequest

    if seed is not None and seeds is not None:
        raise typer.BadParameter("--seed names one seed, --seeds N runs 0..N-1: give one of them")
    engine = EngineOptions(
        executor=executor,
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        precision=precision,
        compile=compiled,
        bank_budget=None if bank_budget is None else size(bank_budget),
        threads=threads,
    )
    return RunRequest(
        methods=names(plugin),
        suites=names(suite),
        seeds=(seed or 0,) if seeds is None else tuple(range(seeds)),
        settings=read_settings(settings or []),
        sinks=names(sink or []),
        engine=engine,
        **same,
    )


def names(values: Sequence[str]) -> tuple[str, ...]:
    """Names given one by one, or several separated by commas."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def read_settings(pairs: Sequence[str]) -> dict[str, object]:
    """`--set key=value` pairs, values read as TOML."""
    found: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"--set expects KEY=VALUE, got '{pair}'")
        found[key.strip()] = parse(value.strip())
    return found
