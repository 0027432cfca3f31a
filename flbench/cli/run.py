"""`flbench run`: run methods on suites and write one result file per method, suite and seed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import Out, Plugins, Preset, Root, Seed, Seeds, Settings, Suites
from flbench.engine.processes import rank_zero_output
from flbench.errors import Diverged, Interrupted, MissingData, ProcessDied, Undefined
from flbench.sweeps.request import jobs_of

if TYPE_CHECKING:
    from flbench.results.schema import Result
    from flbench.run.spec import RunSpec
    from flbench.terminal.console import Console


def run(
    context: typer.Context,
    plugin: Plugins,
    suite: Suites,
    seed: Seed = None,
    seeds: Seeds = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="rounds, instead of the suite's")
    ] = None,
    settings: Settings = None,
    preset: Preset = None,
    dataset: Annotated[str | None, typer.Option(help="data set, instead of the suite's")] = None,
    data_root: Root = None,
    out: Out = Path("flbench-results"),
    executor: Annotated[str, typer.Option(help="auto, sequential or vectorised")] = "auto",
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
            metavar="SIZE", help="memory for models, such as 8GB; more go to a file [default: half]"
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the checkpoint")] = False,
    force: Annotated[bool, typer.Option("--force", help="recompute a complete result")] = False,
    sink: Annotated[
        list[str] | None, typer.Option(help="where to report as well, such as wandb; repeatable")
    ] = None,
) -> None:
    """Run methods on suites and write one result file per method, suite and seed."""
    from flbench.terminal.console import Console

    with rank_zero_output(devices, nodes):
        console = Console()
        run_all(jobs_of(console, **context.params), console)


def run_all(jobs: list[RunSpec], console: Console) -> None:
    """Run the jobs in turn; one that diverges, is undefined or lacks data stops no other."""
    from functools import lru_cache

    from flbench.federation.loading import load_dataset
    from flbench.run.runner import execute, resolve_dataset
    from flbench.terminal.tables import print_table

    load = lru_cache(maxsize=1)(load_dataset)
    finished: list[tuple[Path, Result]] = []
    diverged: Diverged | None = None
    undefined: Undefined | MissingData | None = None
    try:
        for job in jobs:
            try:
                job, data = resolve_dataset(job, load)
                finished.append((job.path, execute(job, data)))
            except Diverged as error:
                console.say(f"{job.title}: {error}")
                diverged = error
            except (Undefined, MissingData) as error:
                if len(jobs) > 1:
                    console.say(f"{job.title}: skipped, {error}")
                undefined = error
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted{_how_to_go_on(job.checkpoint)}") from None
            except ProcessDied as error:
                raise ProcessDied(f"{error}{_how_to_go_on(job.checkpoint)}") from None
    finally:
        console.close()
        if finished:
            print_table(finished)
    if diverged is not None:
        raise diverged
    if undefined is not None and not finished:
        raise undefined


def _how_to_go_on(checkpoint: Path) -> str:
    if not checkpoint.is_file():
        return " before the first round was complete; nothing is kept"
    again = shlex.join(arg for arg in sys.argv[1:] if arg not in ("--resume", "--force"))
    return f"; the last whole round is kept, go on with: flbench {again} --resume"
