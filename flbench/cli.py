"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from flbench import __version__
from flbench.check import check
from flbench.diff import diff
from flbench.errors import FlbenchError, Interrupted, ProcessDied, UserError
from flbench.leaderboard.command import leaderboard
from flbench.new import new
from flbench.plot import plot
from flbench.reproduce import reproduce
from flbench.running import Out, Root, Settings, read_settings, run
from flbench.show import show
from flbench.speed import speed
from flbench.strangers import DEBUG
from flbench.submit import submit
from flbench.sweep import PASSES_ON, sweep
from flbench.sync import sync
from flbench.tune import tune
from flbench.verify import verify

app = typer.Typer(
    help="Benchmark suite for personalised and clustered federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(run)
app.command(context_settings=PASSES_ON)(sweep)
app.command()(check)
app.command()(new)
app.command()(speed)
app.command()(reproduce)
app.command()(tune)
app.command()(diff)
app.command()(leaderboard)
app.command()(plot)
app.command()(sync)
app.command()(submit)
app.command()(verify)
app.add_typer(show, name="show")


def main() -> None:
    """Entry point of the console script: one clear line for what the person can mend."""
    try:
        app()
    except FlbenchError as error:
        if os.environ.get(DEBUG):
            traceback.print_exception(error)
        print(f"flbench: {error}", file=sys.stderr)
        if isinstance(error, ProcessDied):  # threads that talked to the dead cannot be joined
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(error.exit_code)
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


@app.command("list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, suites, datasets, models, partitions, studies, papers, sinks"
        ),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="methods or suites as a page of docs/")
    ] = False,
    load: Annotated[
        bool, typer.Option("--load", help="import each as well, in a process apart")
    ] = False,
) -> None:
    """List what is installed, and what of it is broken; nothing is imported unless asked for."""
    from flbench.catalogue import cards, listing, page, plain
    from flbench.errors import UnknownName
    from flbench.gazette import suites_page
    from flbench.registry import KINDS, entries

    if kind and kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    kinds = [kind] if kind else KINDS
    tried = None
    if load:
        from flbench import trial

        tried = trial.tried([entry for one in kinds for entry in entries(one).values()])
    if markdown:
        pages = {"methods": lambda: page(cards()), "suites": suites_page}
        if kind not in pages:
            raise UserError("--markdown describes methods or suites: type flbench list methods")
        print(pages[kind](), end="")
    elif json:
        import json as text

        print(text.dumps({one: plain(one, tried) for one in kinds}, indent=2))
    else:
        for one in kinds:
            print("\n".join(listing(one, bool(kind), tried)))


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
    chosen = read_settings(settings or [])
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
