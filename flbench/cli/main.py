"""The command line. Large packages are imported only by the commands that need them."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from flbench import __version__
from flbench.cli.artifact import artifact
from flbench.cli.check import check
from flbench.cli.compare import compare
from flbench.cli.data import data
from flbench.cli.diff import diff
from flbench.cli.export import export
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
from flbench.engine.processes.own_process import defer_imports
from flbench.errors import (
    DEBUG,
    FlbenchError,
    Interrupted,
    ProcessDied,
    escaped,
    is_interruption,
    machine_error,
)
from flbench.terminal.lines import tell


class Commands(TyperGroup):
    """The commands; what is wrong with the words of one is one line, whatever they hold."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as the library has it
        """Read the words of a command and call it."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
                raise
            if hasattr(error, "format_message"):  # a usage error, which the library prints
                takes = self.takes(ctx.invoked_subcommand, getattr(error, "option_name", ""))
                error.message = escaped(f"{error.message}{takes}")  # type: ignore[attr-defined]
            raise

    def takes(self, command: str | None, option: str) -> str:
        """What an option of a command takes, to be added to what is wrong with it; "" = unknown."""
        found = self.commands.get(command or "")
        for one in found.params if found else ():
            if option in one.opts and (told := getattr(one, "help", "")):
                return f" {option}: {told}"
        return ""


app = typer.Typer(
    cls=Commands,
    help="Benchmark suite for personalised and clustered federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (run, sweep, list_, data, study, check, new):
    app.command(command.__name__.strip("_"))(command)
for command in (speed, compare):
    app.command(context_settings=PASSES_ON)(command)
for command in (reproduce, tune, diff, export, leaderboard, plot, sync):
    app.command()(command)
for command in (submit, verify, artifact):
    app.command()(command)
app.add_typer(show, name="show")


def main() -> None:
    """Entry point of the console script; an error of the user is printed in one line."""
    if sys.platform == "win32":
        sys.exit("flbench: expected Linux or macOS, got Windows; install it in WSL")
    defer_imports()
    heed_interruptions()
    atexit.register(leave_objects)
    for stream in (sys.stdout, sys.stderr):  # a terminal may lack characters that are printed
        if isinstance(stream, TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")
    sys.exit(guarded(app))


def guarded(command: Callable[[], object]) -> int:
    """Run a command whose output may fail, as of `head -1`. Returns the exit code."""
    output, errors = NamedStream(sys.stdout, "standard output"), TolerantStream(sys.stderr)
    with redirect_stdout(cast("TextIO", output)), redirect_stderr(cast("TextIO", errors)):
        return exit_code(command) or exit_code(lambda: write_rest(output, errors))


def leave_objects() -> None:
    """At the end: what is left ends with the process, so Python need not look for cycles.

    If triton was imported it must, or nanobind prints what has not been freed.
    """
    if "triton" in sys.modules:
        gc.unfreeze()
    else:
        gc.freeze()


def exit_code(command: Callable[[], object]) -> int:
    """Run a command; what it raises is printed in one line. Returns the exit code."""
    try:
        command()
    except SystemExit as stop:
        if stop.__context__ is not None and is_interruption(stop.__context__):
            return report(Interrupted("interrupted"))  # the library ends it without a word
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BrokenPipeError:
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if is_interruption(error):
            return report(Interrupted("interrupted"))
        if isinstance(error, FlbenchError):
            return report(error)
        if (found := machine_error(error)) is None:
            raise
        found.__cause__ = error
        return report(found)
    return 0


def report(error: FlbenchError) -> int:
    """Print an error in one line; returns its exit code."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    tell(f"flbench: {error}", errors=True)
    if isinstance(error, ProcessDied):  # threads that wait for the dead process cannot be joined
        with suppress(OSError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)
    return error.exit_code


def write_rest(output: NamedStream, errors: TolerantStream) -> None:
    """Write what is not written yet, and whether messages were lost."""
    if errors.lost is not None:
        reason = machine_error(errors.lost)
        lost = f"flbench: messages were lost, as standard error could not be written: {reason}"
        output.write(f"{escaped(lost)}\n")
    output.flush()


class NamedStream:
    """Standard output that may fail: the error has a name, and what comes after it is dropped."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is not written yet."""
        self._attempt(self._stream.flush)

    def _attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        error.filename = self._name
        raise error


class TolerantStream(NamedStream):
    """Standard error that may fail: what cannot be written is lost, and the command goes on.

    Attributes:
        lost: why something was lost; None = nothing was.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, "standard error")
        self.lost: OSError | None = None

    def _failed(self, error: OSError) -> None:
        self.lost = error


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
