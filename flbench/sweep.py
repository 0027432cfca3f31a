"""Sweeps: every method on every suite with every seed, cell by cell (`flbench sweep`).

What is complete is not run again, so a sweep that was stopped goes on when the same is typed again.
A launcher (`launchers.py`) plays the cells, or their commands are printed for somebody else.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.errors import Interrupted, UnknownName, UserError
from flbench.launchers import (
    COMPLETE,
    DONE,
    FAILED,
    SKIPPED,
    Cell,
    Outcome,
    Played,
    locally,
    on_ray,
)
from flbench.running import (
    Plugins,
    Preset,
    Seed,
    Seeds,
    Settings,
    Suites,
    jobs_of,
    names,
    options,
    read_settings,
)

if TYPE_CHECKING:
    from flbench.run.spec import Job
    from flbench.terminal.console import Overview

LAUNCHERS = ("local", "ray", "print")
PASSES_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""How the command must be registered: what it does not know itself is for `flbench run`."""

Outcomes = dict[Cell, Outcome]


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
    from flbench.terminal.console import Overview

    overview = Overview()
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
    played = on_ray(waiting, workers, address) if far else locally(waiting)
    conclude(watched(cells, known, played, overview), overview)


def words(
    plugin: Sequence[str],
    suite: Sequence[str],
    settings: Sequence[str],
    preset: str | None,
    others: Sequence[str],
) -> tuple[str, ...]:
    """What to type after `flbench run`."""
    named = {"--plugin": plugin, "--suite": suite, "--set": settings}
    found = [word for option, values in named.items() for one in values for word in (option, one)]
    return (*found, *(() if preset is None else ("--preset", preset)), *others)


def cells_of(
    overview: Overview,
    plugin: Sequence[str],
    suite: Sequence[str],
    seeds: Sequence[int],
    settings: Sequence[str],
    preset: str | None,
    others: Sequence[str],
) -> list[Cell]:
    """The cells of a grid that is known to be right as a whole, each once.

    A cell is given the settings and the preset that concern it, and no others: alone, it would
    refuse what is meant for another method.
    """
    from flbench.run.composition import without_preset

    methods = names(plugin)
    lacking = without_preset(preset, methods) if preset is not None else []
    found: dict[Path, Cell] = {}
    for name in names(suite):
        for method in methods:
            own = [pair for pair in settings if concerns(pair, method)]
            asked = None if method in lacking else preset
            for seed in seeds:
                rest = ("--seed", str(seed), *others, "--resume")
                arguments = words([method], [name], own, asked, rest)
                (job,) = jobs_of(overview, **options(arguments))
                found.setdefault(job.path, Cell(arguments, job))
    return list(found.values())


def concerns(pair: str, method: str) -> bool:
    """Whether a `--set` pair is the suite's, or a parameter of this method."""
    from flbench.run.settings import suite_overrides

    try:
        suite_overrides(read_settings([pair]), [method])
    except UnknownName:
        return False
    return True


def recalled(job: Job) -> Outcome | None:
    """What became of a job earlier; None = it must be run.

    That a method is not defined counts, unless there is a result of another seed beside it.
    """
    from flbench.results.files import read_result, skip_path

    if job.force:
        return None
    if job.path.is_file():
        try:
            return Outcome(COMPLETE, path=job.path, result=read_result(job.path))
        except UserError as error:
            return Outcome(FAILED, str(error), error.exit_code)
    reason = skip_path(job.path)
    if reason.is_file() and not any(job.path.parent.glob("seed-*.json")):
        return Outcome(SKIPPED, f"not defined, see {reason}")
    return None


def play(cells: Sequence[Cell], overview: Overview) -> Outcomes:
    """Play here whatever is not complete; cells that ask for the same are played once."""
    first: dict[Path, Cell] = {}
    same = {cell: first.setdefault(cell.job.path, cell) for cell in cells}
    known = {one: outcome for one in first.values() if (outcome := recalled(one.job)) is not None}
    waiting = [one for one in first.values() if one not in known]
    if waiting:
        known = watched(list(first.values()), known, locally(waiting), overview)
    return {cell: known[one] for cell, one in same.items()}


def watched(cells: list[Cell], known: Outcomes, played: Played, overview: Overview) -> Outcomes:
    """What becomes of all cells, shown as it comes.

    Raises:
        Interrupted: the person, or a batch system, stops it.
    """
    outcomes = dict(known)
    try:
        overview.tell(f"{summary(known.values(), len(cells))}; {len(cells) - len(known)} to run")
        overview.open(Counter(one.what for one in known.values()), len(cells))
        with closing(played):
            for cell, outcome in played:
                outcomes[cell] = outcome
                overview.finished(cell.job.title, outcome.what, told(outcome))
    except KeyboardInterrupt:
        kept = sum(one.result is not None for one in outcomes.values())
        forced = (
            " (without --force, which begins anew)" if any(cell.job.force for cell in cells) else ""
        )
        raise Interrupted(
            f"interrupted; {kept} of {len(cells)} cells are complete and kept, begun ones go on"
            f" from their last whole round: type the same again{forced}"
        ) from None
    finally:
        overview.close()
    return {cell: outcomes[cell] for cell in cells}


def told(outcome: Outcome) -> str:
    """The rest of the line of a finished cell."""
    from flbench.terminal.console import span

    if outcome.result is None:
        return f": {outcome.what}, {outcome.why}"
    accuracy = outcome.result.summary.get("accuracy_mean")
    shown = "-" if accuracy is None else f"{accuracy:.3f}"
    return f"  accuracy {shown}  {span(outcome.seconds)}"


def summary(outcomes: Iterable[Outcome], total: int) -> str:
    """`24 cells: 20 done, 2 were complete, 1 skipped, 1 failed`."""
    counts = Counter(one.what for one in outcomes)
    parts = [f"{counts[what]} {what}" for what in (DONE, COMPLETE, SKIPPED, FAILED) if counts[what]]
    return f"{total} cells: {', '.join(parts) or 'none is complete'}"


def conclude(outcomes: Outcomes, overview: Overview) -> None:
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
