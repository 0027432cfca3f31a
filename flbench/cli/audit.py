"""`flbench audit`: run result files again that were drawn at random, and keep a log of that."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flbench.cli.options import COMMITTED, Results, Root, Workers, refuse_no_folder
from flbench.cli.verify import OtherExecutor, Tolerance, verify_all
from flbench.errors import UserError
from flbench.submission.verification import TOLERANCE
from flbench.terminal.lines import tell


def audit(
    sample: Annotated[int, typer.Option(min=1, help="number of result files")] = 20,
    methods: Annotated[
        int | None,
        typer.Option(min=1, help="of at least so many methods, and each of another row"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the lot")] = 0,
    most_seconds: Annotated[
        float | None, typer.Option(min=0, help="only what takes no longer, by the files")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="play only the first rounds, at least until one is evaluated",
            show_default="all",
        ),
    ] = None,
    results: Results = COMMITTED,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="where lines are appended [default: audits.jsonl beside --results]"
        ),
    ] = None,
    data_root: Root = None,
    tolerance: Tolerance = TOLERANCE,
    executor: OtherExecutor = None,
    workers: Workers = "auto",
) -> None:
    """Run result files again that were audited least, drawn at random, and append to a log.

    Exit code 1 where one does not agree. The leaderboard shows when a row was last audited.
    """
    from flbench.datasets import data_root as locate
    from flbench.results.audits import LOG, read_audits
    from flbench.results.files import read_results
    from flbench.submission.auditing import at_hand, draw, expected_seconds
    from flbench.submission.verification import first_rounds

    if methods is not None and methods > sample:
        raise UserError(f"--methods {methods}: expected at most --sample, {sample}")
    refuse_no_folder(results)
    target = log or results.parent / LOG
    found = list(read_results(results))
    here = at_hand(found, locate(data_root))
    paths = draw(here, read_audits(target), sample, seed, most_seconds, rounds, methods)
    expected = sum(expected_seconds(result, rounds) for path, result in found if path in paths)
    lack = len(found) - len(here)
    others = f"; {lack} lack their data or device here" if lack else ""
    line = f"{len(paths)} of {len(here)} result files{others}; they took {expected:.0f} s"
    tell(line)
    wanted = partial(first_rounds, most=rounds)
    verify_all(
        paths,
        [target],
        results,
        wanted,
        data_root,
        tolerance,
        False,
        again=True,
        executor=executor,
        workers=workers,
    )
