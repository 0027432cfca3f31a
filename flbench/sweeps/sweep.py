"""Sweeps: every method on every suite with every seed, cell by cell (`flbench sweep`).

What is complete is not run again, so a sweep that was stopped goes on when the same is typed again.
A launcher (`launchers.py`) plays the cells, or their commands are printed for somebody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.errors import Interrupted, UnknownName, UserError
from flbench.sweeps.launchers import (
    COMPLETE,
    DONE,
    FAILED,
    SKIPPED,
    Cell,
    Outcome,
    Played,
    run_locally,
)
from flbench.sweeps.request import jobs_of, names, options, read_settings, words

if TYPE_CHECKING:
    from flbench.run.spec import RunSpec
    from flbench.terminal.console import SweepProgress


LAUNCHERS = ("local", "ray", "print")


Outcomes = dict[Cell, Outcome]


def cells_of(
    overview: SweepProgress,
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


def recalled(job: RunSpec) -> Outcome | None:
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


def play(cells: Sequence[Cell], overview: SweepProgress) -> Outcomes:
    """Play here whatever is not complete; cells that ask for the same are played once."""
    first: dict[Path, Cell] = {}
    same = {cell: first.setdefault(cell.job.path, cell) for cell in cells}
    known = {one: outcome for one in first.values() if (outcome := recalled(one.job)) is not None}
    waiting = [one for one in first.values() if one not in known]
    if waiting:
        known = watched(list(first.values()), known, run_locally(waiting), overview)
    return {cell: known[one] for cell, one in same.items()}


def watched(
    cells: list[Cell], known: Outcomes, played: Played, overview: SweepProgress
) -> Outcomes:
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
