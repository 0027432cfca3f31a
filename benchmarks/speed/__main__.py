"""`python -m flbench_benchmarks.speed [PART]...` (`flbench speed`): the speed benchmarks.

Every part is measured in a process of its own (`flbench_benchmarks.speed.measure`), which writes
one JSON file. This module imports no torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from flbench.cli.main import guarded
from flbench.errors import DEBUG, FlbenchError, Interrupted, UnknownName, UserError
from flbench.results.files import refuse_unwritable, write_atomically

from .tables import PAGE, PARTS, is_complete, page_with_tables, read_part, section

MEASURE = "flbench_benchmarks.speed.measure"
"""The module that measures one part, run with `python -m`."""
ENDING = 10.0
"""Seconds that it has to end when it is interrupted."""


def speed(
    parts: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help=f"of {', '.join(PARTS)}")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder whose speed/ the files are in")] = Path(
        "leaderboard"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="measure smaller workloads, to try the command")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="measure other frameworks as well")
    ] = True,
    env_root: Annotated[
        Path, typer.Option(help="folder of the environments of other frameworks")
    ] = Path("~/.cache/flbench/speed"),
    force: Annotated[
        bool, typer.Option("--force", help="measure parts again that are complete")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help=f"measure nothing; write the tables into {PAGE}")
    ] = False,
) -> None:
    """Measure how fast flbench is; parts whose files are complete are not measured again."""
    chosen, folder = parts or list(PARTS), out / "speed"
    for part in chosen:
        if part not in PARTS:
            raise UnknownName("part", part, PARTS, listed="there are")
    if table:
        write_atomically(PAGE, page_with_tables(PAGE, folder).encode())
        print(f"wrote {PAGE}")
        return
    for part in chosen:
        file = folder / f"{part}.json"
        if force or not is_complete(file, quick, peers):
            refuse_unwritable(file)
            print(f"measuring {part}", file=sys.stderr)
            arguments = [part, str(folder), "--env-root", str(env_root.expanduser().absolute())]
            arguments += ["--quick"] if quick else []
            arguments += [] if peers else ["--no-peers"]
            measure(arguments)
        print(section(read_part(file)))


def measure(arguments: Sequence[str]) -> None:
    """Measure a part in a process of its own.

    Args:
        arguments: of `python -m flbench_benchmarks.speed.measure`; the part comes first.

    Raises:
        UserError: the process failed.
        Interrupted: the user interrupted it.
    """
    with subprocess.Popen([sys.executable, "-m", MEASURE, *arguments]) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:  # the process heard it too, and removes its files
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)
            process.kill()
            raise Interrupted(
                "interrupted; finished parts are kept, type the same command to go on"
            ) from None
    if code:
        raise UserError(f"part '{arguments[0]}' failed; its error is printed above")


def main() -> None:
    """Run the command; an error is printed in one line."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(speed)
    try:
        app(prog_name="flbench speed")
    except FlbenchError as error:
        if os.environ.get(DEBUG):
            traceback.print_exception(error)
        print(f"flbench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    sys.exit(guarded(main))
