"""The commands that run methods on suites: `flbench run`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.engine.processes import company
from flbench.errors import Diverged, Interrupted, MissingData, ProcessDied, Undefined

if TYPE_CHECKING:
    from flbench.results.schema import Result
    from flbench.run.spec import Job
    from flbench.terminal.console import Console

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
Root = Annotated[
    Path | None,
    typer.Option(help="where data sets lie [default: $FLBENCH_DATA, else ~/.cache/flbench]"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a parameter of a method, suite or study"),
]
Preset = Annotated[
    str | None, typer.Option(help="a method's named parameters, such as its paper's")
]
Out = Annotated[Path, typer.Option(help="folder of the result files")]


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

    with company(devices, nodes):
        console = Console()
        run_all(jobs_of(console, **context.params), console)


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """What the words after `flbench run` say, as `jobs_of` takes it; wrong ones are refused."""
    return dict(_parser().make_context("flbench run", list(arguments)).params)


@cache
def _parser() -> Any:  # noqa: ANN401 - a command of the click that typer is built on
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(run)
    return typer.main.get_command(app)


def jobs_of(
    console: Console,
    *,
    plugin: list[str],
    suite: list[str],
    seed: int | None,
    seeds: int | None,
    rounds: int | None,
    settings: list[str] | None,
    preset: str | None,
    dataset: str | None,
    data_root: Path | None,
    out: Path,
    resume: bool,
    force: bool,
    sink: list[str] | None,
    compiled: bool,
    bank_budget: str | None,
    **engine: Any,  # noqa: ANN401 - options that `Engine` takes as they are
) -> list[Job]:
    """The jobs that options of `flbench run` ask for, each once."""
    if seed is not None and seeds is not None:
        raise typer.BadParameter("--seed names one seed, --seeds N runs 0..N-1: give one of them")
    methods, chosen = names(plugin), read_settings(settings or [])
    with console.waiting("importing torch and lightning"):
        from flbench.datasets import data_root as locate
        from flbench.engine.options import Engine, size
        from flbench.plugin.registry import find
        from flbench.run.composition import compose, without_preset
        from flbench.run.settings import suite_overrides
        from flbench.run.spec import Job
        from flbench.suite import load_suite

        for method in without_preset(preset, methods) if preset is not None else ():
            console.say(f"{method} has no preset '{preset}': it runs with its defaults")
        composed = [compose(method, chosen, preset) for method in methods]
        import flbench.run.runner  # noqa: F401 - so that the wait is over when this block is

    overrides = suite_overrides(chosen, methods)
    if rounds is not None:
        overrides["rounds"] = rounds
    budget = None if bank_budget is None else size(bank_budget)
    sinks = {name: find("sinks", name).load()() for name in names(sink or [])}
    sinks["console"] = console
    jobs = [
        Job(
            suite=load_suite(name, dataset, overrides),
            method=method,
            seed=number,
            data_root=locate(data_root),
            out=out,
            engine=Engine(compile=compiled, bank_budget=budget, **engine),
            resume=resume,
            force=force,
            sinks=tuple(sinks.items()),
            say=console.say,
        )
        for name in names(suite)
        for method in composed
        for number in (range(seeds) if seeds is not None else [seed or 0])
    ]
    return list({job.path: job for job in jobs}.values())


def run_all(jobs: list[Job], console: Console) -> None:
    """Run the jobs in turn; one that diverges, is undefined or lacks data stops no other."""
    from functools import lru_cache

    from flbench.federation.loading import load_dataset
    from flbench.run.runner import run_job, settle
    from flbench.terminal.tables import print_table

    load = lru_cache(maxsize=1)(load_dataset)
    finished: list[tuple[Path, Result]] = []
    diverged: Diverged | None = None
    undefined: Undefined | MissingData | None = None
    try:
        for job in jobs:
            try:
                job, data = settle(job, load)
                finished.append((job.path, run_job(job, data)))
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


def names(values: Sequence[str]) -> list[str]:
    """Names given one by one, or several separated by commas."""
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def read_settings(pairs: list[str]) -> dict[str, object]:
    """`--set key=value` pairs, values read as TOML."""
    from flbench.core.parameters import parse

    found: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"--set expects KEY=VALUE, got '{pair}'")
        found[key.strip()] = parse(value.strip())
    return found


def _how_to_go_on(checkpoint: Path) -> str:
    if not checkpoint.is_file():
        return " before the first round was complete; nothing is kept"
    again = shlex.join(arg for arg in sys.argv[1:] if arg not in ("--resume", "--force"))
    return f"; the last whole round is kept, go on with: flbench {again} --resume"
