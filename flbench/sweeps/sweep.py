"""Sweeps: run cells, show what becomes of each, and sum it up.

What is complete is not run again, so a sweep that was stopped goes on when the same is typed again.
If several processes play one sweep in one folder, each cell is run by one of them, and all of them
end with all results. `launchers.py` runs the cells.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.errors import Interrupted, UserError
from flbench.sweeps.launchers import (
    COMPLETE,
    DONE,
    ELSEWHERE,
    FAILED,
    SKIPPED,
    Outcome,
    OutcomeGenerator,
    run_locally,
    stoppable,
)
from flbench.sweeps.request import Cell

if TYPE_CHECKING:
    from flbench.run.spec import RunSpec
    from flbench.terminal.console import SweepProgress

Outcomes = Mapping[Cell, Outcome]
Launch = Callable[[Sequence[Cell]], OutcomeGenerator]
Hear = Callable[[Cell, Outcome], object]
"""Called with each cell and its outcome, as it comes."""
LOOK = 2.0
"""Seconds until it is looked again whether another process still computes a cell."""


def recalled(specs: Iterable[RunSpec]) -> Iterator[Outcome | None]:
    """What became of each cell earlier; None = it must be run.

    A complete result of other data than are there now is a failed cell; each data set is looked at
    once. That a method is not defined counts, unless there is a result of another seed beside it.
    """
    from flbench.run.same_data import data_digests

    digests = cache(data_digests)
    return (_recalled(spec, digests) for spec in specs)


def _recalled(spec: RunSpec, digests: Callable[[str, Path], tuple[str, ...]]) -> Outcome | None:
    """What became of one cell."""
    from flbench.results.files import read_result, skip_path
    from flbench.run.runner import has_result
    from flbench.run.same_data import refuse_other_result

    if spec.force:
        return None
    if has_result(spec):
        try:
            result = read_result(spec.path)
            refuse_other_result(spec, result, digests)
            return Outcome(COMPLETE, path=spec.path, result=result)
        except UserError as error:
            return Outcome(FAILED, str(error), error.exit_code)
    reason = skip_path(spec.path)
    if reason.is_file() and not any(spec.path.parent.glob("seed-*.json")):
        return Outcome(SKIPPED, f"not defined, see {reason}")
    return None


def run_missing(
    cells: Sequence[Cell],
    progress: SweepProgress,
    launch: Launch = run_locally,
    hear: Hear = lambda cell, outcome: None,
) -> dict[Cell, Outcome]:
    """Run whatever is not complete; every cell with its outcome. What asks for the same runs once.

    Raises:
        Interrupted: the person, or a batch system, stops it.
    """
    from flbench.run.run_folder import tidy

    first: dict[Path, Cell] = {}
    same = {cell: first.setdefault(cell.spec.path, cell) for cell in cells}
    recall = zip(first.values(), recalled(one.spec for one in first.values()), strict=True)
    outcomes = {one: known for one, known in recall if known is not None}
    for folder in {one.spec.path.parent for one in outcomes}:
        tidy(folder)
    waiting = [one for one in first.values() if one not in outcomes]
    for one, outcome in outcomes.items():
        hear(one, outcome)
    if cells:
        progress.tell(f"{summary(outcomes.values(), len(first))}; {len(waiting)} to run")
        notes = sorted({*_lacking(outcomes), *_unusable(outcomes)})
        for line in (*_computed_before(waiting), *notes):
            progress.tell(line)
    if waiting:
        running = run_or_wait(waiting, launch, progress.tell)
        outcomes |= _shown(running, outcomes, len(first), progress, hear)
    return {cell: outcomes[one] for cell, one in same.items()}


def run_or_wait(
    cells: Sequence[Cell], launch: Launch, tell: Callable[[str], None]
) -> OutcomeGenerator:
    """Run cells; those that other processes compute come last, when these have ended."""
    from flbench.run.run_folder import in_progress

    ready, elsewhere, told = list(cells), dict[Cell, Path](), 0
    while ready or elsewhere:
        if ready:
            with closing(launch(ready)) as running:
                for cell, outcome in running:
                    if outcome.what == ELSEWHERE and outcome.path is not None:
                        elsewhere[cell] = outcome.path
                    else:
                        yield cell, outcome
        else:
            with stoppable():
                time.sleep(LOOK)
        ready = []
        ended = [cell for cell, path in elsewhere.items() if not in_progress(path)]
        for cell, known in zip(ended, recalled(cell.spec for cell in ended), strict=True):
            del elsewhere[cell]
            if known is not None:
                yield cell, known
            else:
                ready.append(cell)
        if elsewhere and not ready and told != len(elsewhere):
            told = len(elsewhere)
            tell(f"waiting for cells that other processes compute: {told}")


def _lacking(known: Outcomes) -> Iterator[str]:
    """What to type where complete results lack metrics that are asked for."""
    for cell, outcome in known.items():
        if outcome.result is not None and (names := cell.spec.lacking(outcome.result)):
            yield f"complete cells are without {', '.join(names)}; --force computes them again"


def _unusable(known: Outcomes) -> Iterator[str]:
    """Why results that are there cannot be used."""
    for cell, outcome in known.items():
        if outcome.what == FAILED:
            yield f"{cell.title}: {outcome.why}"


def _computed_before(waiting: Sequence[Cell]) -> Iterator[str]:
    """A line on the cells that have a result of another version of their method."""
    from flbench.results.files import read_result
    from flbench.run.other_versions import file_of_another_version

    found, read = list[Path](), cache(read_result)  # cells lie beside the same files
    for cell in waiting:
        with suppress(UserError):  # a damaged file is none of theirs
            path = file_of_another_version(cell.spec, read)
            found += [] if path is None else [path]
    if found:
        yield (
            f"{len(found)} of them have a result of another version of their method, such as"
            f" {found[0]}: it stays, and a row is of one version"
        )


def _shown(
    running: OutcomeGenerator, known: Outcomes, total: int, progress: SweepProgress, hear: Hear
) -> dict[Cell, Outcome]:
    """What becomes of the cells that run, shown as it comes."""
    found: dict[Cell, Outcome] = {}
    try:
        progress.open(Counter(one.what for one in known.values()), total)
        with closing(running):
            for cell, outcome in running:
                found[cell] = outcome
                progress.finished(cell.title, outcome.what, end_of_line(outcome))
                hear(cell, outcome)
    except KeyboardInterrupt:
        kept = sum(one.result is not None for one in (*known.values(), *found.values()))
        forced = any(cell.request.force for cell in (*known, *found))
        raise Interrupted(
            f"interrupted; {kept} of {total} cells are complete and kept, begun ones go on"
            " from their last whole round: type the same again"
            + (" (without --force, which begins anew)" if forced else "")
        ) from None
    finally:
        progress.close()
    return found


def end_of_line(outcome: Outcome) -> str:
    """The rest of the line of a finished cell."""
    from flbench.metrics import HEADLINE
    from flbench.terminal.console import headline_text, span

    if outcome.result is None:
        return f": {outcome.what}, {outcome.why}"
    task = outcome.result.headline
    value = outcome.result.summary.get(task.named(HEADLINE))
    shown = headline_text(task, "-" if value is None else f"{value:.3f}")
    took = "by another process" if outcome.what == COMPLETE else span(outcome.seconds)
    return f"  {shown}  {took}"


def summary(outcomes: Iterable[Outcome], total: int) -> str:
    """`24 cells: 20 done, 2 were complete, 1 skipped, 1 failed`."""
    counts = Counter(one.what for one in outcomes)
    parts = [f"{counts[what]} {what}" for what in (DONE, COMPLETE, SKIPPED, FAILED) if counts[what]]
    return f"{total} cells: {', '.join(parts) or 'none is complete'}"
