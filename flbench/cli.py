"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench import __version__
from flbench.errors import Diverged, FlbenchError, Interrupted, MissingData, Undefined, UserError
from flbench.show import show

if TYPE_CHECKING:
    from flbench.job import Job
    from flbench.results import Result
    from flbench.sinks.console import Console

Root = Annotated[
    Path | None,
    typer.Option(help="where data sets lie [default: $FLBENCH_DATA, else ~/.cache/flbench]"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a parameter of a method, suite or study"),
]
Out = Annotated[Path, typer.Option(help="folder of the result files")]

app = typer.Typer(
    help="Benchmark suite for personalised and clustered federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(show, name="show")


def main() -> None:
    """Entry point of the console script: one clear line for what the person can mend."""
    try:
        app()
    except FlbenchError as error:
        print(f"flbench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("flbench: interrupted", file=sys.stderr)
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        sys.exit(1)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def run(
    plugin: Annotated[
        list[str],
        typer.Option(
            "--plugin", "-p", help="method, or methods joined by + ; repeat, or separate by commas"
        ),
    ],
    suite: Annotated[
        list[str],
        typer.Option("--suite", "-s", help="suite or TOML file; repeat, or separate by commas"),
    ],
    seed: Annotated[int | None, typer.Option(min=0, help="run this one seed [default: 0]")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="run seeds 0..N-1")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="rounds, instead of the suite's")
    ] = None,
    settings: Settings = None,
    preset: Annotated[
        str | None, typer.Option(help="a method's named parameters, such as its paper's")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="data set, instead of the suite's")] = None,
    data_root: Root = None,
    out: Out = Path("flbench-results"),
    executor: Annotated[str, typer.Option(help="auto, sequential or vectorised")] = "auto",
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda, mps, ...")] = "auto",
    devices: Annotated[int, typer.Option(min=1, help="devices")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the checkpoint")] = False,
    force: Annotated[bool, typer.Option("--force", help="recompute a complete result")] = False,
    sink: Annotated[
        list[str] | None, typer.Option(help="where to report as well, such as wandb; repeatable")
    ] = None,
) -> None:
    """Run methods on suites and write one result file per method, suite and seed."""
    if seed is not None and seeds is not None:
        raise typer.BadParameter("--seed names one seed, --seeds N runs 0..N-1: give one of them")
    methods, chosen = _split(plugin), _settings(settings or [])
    from flbench.sinks.console import Console

    console = Console()
    with console.waiting("importing torch and lightning"):
        from flbench.datasets import data_root as locate
        from flbench.job import Job
        from flbench.methods import compose, suite_overrides, without_preset
        from flbench.registry import find
        from flbench.suite import load_suite

        for method in without_preset(preset, methods) if preset is not None else ():
            console.say(f"{method} has no preset '{preset}': it runs with its defaults")
        methods_named = [compose(method, chosen, preset) for method in methods]
        import flbench.runner  # noqa: F401 - so that the wait is over when this block is

    overrides = suite_overrides(chosen, methods)
    if rounds is not None:
        overrides["rounds"] = rounds
    sinks = {name: find("sinks", name).load()() for name in _split(sink or [])}
    sinks["console"] = console
    jobs = [
        Job(
            suite=load_suite(name, dataset, overrides),
            method=method,
            seed=number,
            data_root=locate(data_root),
            out=out,
            executor=executor,
            accelerator=accelerator,
            devices=devices,
            threads=threads,
            resume=resume,
            force=force,
            sinks=tuple(sinks.items()),
            say=console.say,
        )
        for name in _split(suite)
        for method in methods_named
        for number in (range(seeds) if seeds is not None else [seed or 0])
    ]
    _run_all(list({job.path: job for job in jobs}.values()), console)


def _run_all(jobs: list[Job], console: Console) -> None:
    """Run the jobs in turn; one that diverges, is undefined or lacks data stops no other."""
    from functools import lru_cache

    from flbench.leaderboard.terminal import print_table
    from flbench.runner import load_dataset, run_job, settle

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
    finally:
        console.close()
        if finished:
            print_table(finished)
    if diverged is not None:
        raise diverged
    if undefined is not None and not finished:
        raise undefined


@app.command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(help="methods, suites, datasets, models, partitions, studies or sinks")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="methods or suites as a page of docs/")
    ] = False,
) -> None:
    """List what is installed; nothing of it is imported."""
    from flbench.catalogue import cards, listing, page, plain
    from flbench.errors import UnknownName
    from flbench.gazette import suites_page
    from flbench.registry import KINDS

    if kind and kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    if markdown:
        pages = {"methods": lambda: page(cards()), "suites": suites_page}
        if kind not in pages:
            raise UserError("--markdown describes methods or suites: type flbench list methods")
        print(pages[kind](), end="")
    elif json:
        import json as text

        print(text.dumps({one: plain(one) for one in ([kind] if kind else KINDS)}, indent=2))
    else:
        for one in [kind] if kind else KINDS:
            print("\n".join(listing(one, details=bool(kind))))


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="a data set; none = all of them")] = "",
    data_root: Root = None,
    check: Annotated[bool, typer.Option("--check", help="load it and compare it")] = False,
    fetch: Annotated[bool, typer.Option("--fetch", help="download its files first")] = False,
) -> None:
    """Say which data sets are there; check them; fetch the files of one."""
    from flbench.datasets import data_root as locate
    from flbench.datasets import survey

    survey(locate(data_root), name, check, fetch)


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="a study (flbench list studies), or a TOML file")],
    seeds: Annotated[int, typer.Option(min=1, help="seeds 0..N-1")] = 1,
    settings: Settings = None,
    dataset: Annotated[str | None, typer.Option(help="data set, instead of the study's")] = None,
    data_root: Root = None,
    out: Out = Path("flbench-results"),
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="go on from a checkpoint")] = False,
    force: Annotated[bool, typer.Option("--force", help="compute complete cells again")] = False,
) -> None:
    """Run a study: a grid of runs, or a measurement; cells that are complete are not run again."""
    chosen = _settings(settings or [])
    from flbench.sinks.console import Console

    console = Console()
    with console.waiting("importing torch and lightning"):
        from flbench.datasets import data_root as locate
        from flbench.leaderboard.terminal import print_rows
        from flbench.study import Request, run_study
    root, say = locate(data_root), console.say
    sinks = (("console", console),)
    request = Request(seeds, root, out, chosen, dataset, force, resume, threads, sinks, say)
    try:
        rows = run_study(name, request)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; complete cells are kept, type the same again") from None
    finally:
        console.close()
    print_rows(name, rows)


@app.command()
def leaderboard(
    results: Annotated[Path, typer.Option(help="folder of result files")] = Path(
        "leaderboard/results"
    ),
    out: Annotated[Path, typer.Option(help="folder of the pages")] = Path("leaderboard"),
    check: Annotated[bool, typer.Option("--check", help="only say whether it is current")] = False,
) -> None:
    """Generate the leaderboard from result files."""
    from flbench.leaderboard import page
    from flbench.results import write_atomically

    text, target = page(results), out / "README.md"
    if not check:
        write_atomically(target, text.encode())
        print(f"wrote {target}")
    elif not target.is_file() or target.read_text(encoding="utf-8") != text:
        raise UserError(f"{target} is not what {results} gives; run flbench leaderboard")


def _split(values: list[str]) -> list[str]:
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def _settings(pairs: list[str]) -> dict[str, object]:
    """`--set key=value` pairs, values read as TOML."""
    from flbench.parameters import parse

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
