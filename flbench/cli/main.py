"""The command line. Large packages are imported only by the commands that need them."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from flbench import __version__
from flbench.cli.check import check
from flbench.cli.data import data
from flbench.cli.diff import diff
from flbench.cli.interruption import heed_interruptions
from flbench.cli.leaderboard import leaderboard
from flbench.cli.list import list_
from flbench.cli.new import new
from flbench.cli.plot import plot
from flbench.cli.reproduce import reproduce
from flbench.cli.run import run
from flbench.cli.show import show
from flbench.cli.speed import PASSES_ON, speed
from flbench.cli.study import study
from flbench.cli.submit import submit
from flbench.cli.sweep import sweep
from flbench.cli.sync import sync
from flbench.cli.tune import tune
from flbench.cli.verify import verify
from flbench.errors import DEBUG, FlbenchError, Interrupted, ProcessDied

app = typer.Typer(
    help="Benchmark suite for personalised and clustered federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (run, sweep, list_, data, study, check, new):
    app.command(command.__name__.strip("_"))(command)
app.command(context_settings=PASSES_ON)(speed)
for command in (reproduce, tune, diff, leaderboard, plot, sync, submit, verify):
    app.command()(command)
app.add_typer(show, name="show")


def main() -> None:
    """Entry point of the console script; an error of the user is printed in one line."""
    heed_interruptions()
    try:
        app()
    except FlbenchError as error:
        if os.environ.get(DEBUG):
            traceback.print_exception(error)
        print(f"flbench: {error}", file=sys.stderr)
        if isinstance(
            error, ProcessDied
        ):  # threads that wait for the dead process cannot be joined
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
