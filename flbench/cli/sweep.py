"""`flbench sweep`: run every method on every suite with every seed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import Plugins, Preset, Seed, Seeds, Settings, Suites
from flbench.errors import UnknownName, UserError
from flbench.sweeps.launchers import FAILED, run_locally, run_on_ray
from flbench.sweeps.request import jobs_of, options, words
from flbench.sweeps.sweep import LAUNCHERS, Outcomes, cells_of, recalled, summary, watched

if TYPE_CHECKING:
    from flbench.terminal.console import SweepProgress


PASSES_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""How the command must be registered: what it does not know itself is for `flbench run`."""


def sweep(
    context: typer.Context,
    plugin: Plugins,
    suite: Suites,
    seed: Seed = None,
    seeds: Seeds = None,
    settings: Settings = None,
    preset: Preset = None,
    launcher: Annotated[
        str, typer.Option(help="local, ray, or print (the commands, one a line)")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="ray: cells at once [default: as many as fit]")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="ray: a cluster [default: start one on this machine]")
    ] = None,
) -> None:
    """Run every method on every suite with every seed; what is complete is not run again.

    All other options of `flbench run` (--rounds, --dataset, --out, --executor, --threads, --force,
    ...) are taken as well and hold for every cell; `flbench run --help` explains them. A sweep
    that was stopped goes on when the same is typed again.
    """
    if launcher not in LAUNCHERS:
        raise UnknownName("launcher", launcher, LAUNCHERS, listed="there are")
    if launcher != "ray" and (workers or address):
        raise typer.BadParameter("--workers and --address belong to --launcher ray")
    from flbench.terminal.console import SweepProgress

    overview = SweepProgress()
    count = ["--seeds", str(seeds)] if seeds is not None else []
    one = ["--seed", str(seed)] if seed is not None else []
    chosen = words(plugin, suite, settings or [], preset, [*one, *count, *context.args])
    whole = jobs_of(overview, **options(chosen))  # refuses what is wrong, before anything starts
    if launcher != "print" and any(job.engine.devices * job.engine.nodes > 1 for job in whole):
        raise UserError(
            "--devices, --nodes: here a cell is one process; --launcher print gives the commands"
        )
    numbers = range(seeds) if seeds is not None else [seed or 0]
    cells = cells_of(overview, plugin, suite, numbers, settings or [], preset, context.args)
    known = {cell: outcome for cell in cells if (outcome := recalled(cell.job)) is not None}
    waiting = [cell for cell in cells if cell not in known]
    if launcher == "print":
        print("".join(f"{cell.command}\n" for cell in waiting), end="")
        overview.tell(f"{summary(known.values(), len(cells))}; {len(waiting)} to run")
        return
    far = launcher == "ray" and waiting
    played = run_on_ray(waiting, workers, address) if far else run_locally(waiting)
    conclude(watched(cells, known, played, overview), overview)


def conclude(outcomes: Outcomes, overview: SweepProgress) -> None:
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
    overview.tell(summary(outcomes.values(), len(outcomes)))
    for cell in failed:
        overview.tell(f"  failed: {cell.command}")
    code = max((outcomes[cell].code for cell in failed), default=0 if finished else 1)
    if code:
        raise typer.Exit(code)
