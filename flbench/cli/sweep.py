"""`flbench sweep`: run every method on every suite with every seed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import Workers, read_workers, takes_request
from flbench.errors import UnknownName, UserError
from flbench.sweeps.launchers import FAILED, run_on_ray
from flbench.sweeps.request import Cell, RunRequest, command, resolve, superseded
from flbench.sweeps.sweep import Outcomes, recalled, run_missing, summary

if TYPE_CHECKING:
    from flbench.terminal.console import SweepProgress

LAUNCHERS = ("local", "ray", "print")


@takes_request
def sweep(
    request: RunRequest,
    launcher: Annotated[
        str, typer.Option(help="local, ray, or print (the commands, one a line)")
    ] = "local",
    workers: Workers = "auto",
    address: Annotated[
        str | None, typer.Option(help="ray: a cluster [default: start one on this machine]")
    ] = None,
) -> None:
    """Run every method on every suite with every seed; what is complete is not run again.

    A cell is one method on one suite with one seed; all options of `flbench run` hold for every
    cell. A sweep that was stopped goes on when the same is typed again: cells begin at their
    checkpoints with or without --resume.
    """
    if launcher not in LAUNCHERS:
        raise UnknownName("launcher", launcher, LAUNCHERS, listed="there are")
    if launcher != "ray" and address:
        raise typer.BadParameter("--address belongs to --launcher ray")
    number = read_workers(workers)
    from flbench.sweeps.workers import prepare_workers, run_in_workers
    from flbench.terminal.console import SweepProgress

    progress = SweepProgress()
    if launcher != "print" and request.engine.devices * request.engine.nodes > 1:
        raise UserError(
            "--devices, --nodes: here a cell is one process; --launcher print gives the commands"
        )
    if launcher == "local":
        prepare_workers(number)
    cells = resolve(replace(request, resume=True), progress)
    for line in superseded(cells):
        progress.say(line)
    if launcher == "print":
        print_commands(cells, progress)
        return
    launch = partial(run_in_workers, progress=progress, workers=number)
    if launcher == "ray":
        launch = partial(run_on_ray, workers=number, address=address)
    conclude(run_missing(cells, progress, launch), progress)


def print_commands(cells: Sequence[Cell], progress: SweepProgress) -> None:
    """Print what to type for each cell that is not complete."""
    outcomes = dict(zip(cells, recalled(cell.spec for cell in cells), strict=True))
    known = [one for one in outcomes.values() if one is not None]
    waiting = [cell for cell, one in outcomes.items() if one is None]
    print("".join(f"{cell.command}\n" for cell in waiting), end="")
    progress.tell(f"{summary(known, len(cells))}; {len(waiting)} to run")


def conclude(outcomes: Outcomes, progress: SweepProgress) -> None:
    """Print the table, the summary and how to run failed cells again; exit as `run` would."""
    from flbench.terminal.tables import print_table

    finished = [
        (one.path, one.result)
        for one in outcomes.values()
        if one.path is not None and one.result is not None
    ]
    if finished:
        print_table(finished)
        sys.stdout.flush()
    failed = [cell for cell, one in outcomes.items() if one.what == FAILED]
    progress.tell(summary(outcomes.values(), len(outcomes)))
    for cell in failed:
        tuned = cell.request.tuning is not None  # no command of its own computes it
        spoilt = cell.spec.path.is_file()  # a result that cannot be used
        forced = replace(cell.request, resume=False, force=True) if spoilt else cell.request
        again = f"{cell.title}; type the same again" if tuned else command(forced)
        progress.tell(f"  failed: {again}")
    code = max((outcomes[cell].code for cell in failed), default=0 if finished else 1)
    if code:
        raise typer.Exit(code)
