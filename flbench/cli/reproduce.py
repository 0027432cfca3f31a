"""`flbench reproduce`: run what is missing of a paper's table and print ours beside the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import (
    MOST_SEEDS,
    Executor,
    Out,
    Portable,
    PrecisionOption,
    Root,
    SettingsOption,
    Threads,
    Workers,
    read_settings,
    read_workers,
)
from flbench.engine.machine.portable import limit
from flbench.engine.options import EngineOptions
from flbench.errors import UnknownName, UserError
from flbench.sweeps.request import Cell, RunRequest
from flbench.terminal.lines import tell

if TYPE_CHECKING:
    from flbench.papers.paper import Paper, PaperTable
    from flbench.papers.reproduction import Plan, ReproducedValue
    from flbench.sweeps.launchers import Outcome
    from flbench.terminal.console import SweepProgress


def reproduce(
    paper: Annotated[str, typer.Argument(help="a paper (flbench list papers), or a TOML file")],
    table: Annotated[
        list[str] | None, typer.Option(help="number of a table; repeatable [default: all]")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help="small; large: the paper's data, less of the rest; paper: as it did it"),
    ] = "small",
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_SEEDS, help="seeds 0..N-1 [default: those of the paper's file]"
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="this data set alone")] = None,
    suite: Annotated[str | None, typer.Option(help="this suite alone")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="row of the tables; repeatable [default: all]")
    ] = None,
    settings: SettingsOption = None,
    data_root: Root = None,
    out: Out = Path("flbench-results"),
    executor: Executor = "auto",
    threads: Threads = 1,
    portable: Portable = False,
    precision: PrecisionOption = "32-true",
    workers: Workers = "auto",
    no_run: Annotated[bool, typer.Option("--no-run", help="only compare what is there")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="the paper's page of docs/, from what is there")
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="with --markdown: write the page's figures there, too"),
    ] = None,
) -> None:
    """Run what is missing of a paper's tables; print ours beside the paper's, with a verdict."""
    if portable:
        limit()
    from flbench.papers.paper import SCALES, load_paper
    from flbench.terminal.console import SweepProgress

    card = load_paper(paper)
    if scale not in SCALES:
        raise UnknownName("scale", scale, SCALES, listed="there are")
    chosen = tables_asked(card, table, dataset, suite, method or ())
    progress, number = SweepProgress(), read_workers(workers)
    request = RunRequest(
        settings=read_settings(settings),
        dataset=dataset,
        data_root=data_root,
        out=out,
        engine=EngineOptions(
            executor=executor, threads=threads, portable=portable, precision=precision
        ),
    )
    if (no_run or markdown) and out != RunRequest.out and not out.is_dir():
        raise UserError(f"--out {out}: expected a folder of results, there is none: check the path")
    if figures is not None and not markdown:
        raise UserError("--figures writes the figures of a page: give --markdown too")
    if markdown:
        if table or seeds or dataset or suite or method or scale != "small":
            raise UserError(
                "--markdown writes the whole page: drop --table, --scale, --seeds, --dataset,"
                " --suite and --method"
            )
        print_page(card, RunRequest(settings=request.settings, out=out), progress, figures)
        return
    with progress.importing():
        from flbench.papers.reproduction import planned, refuse_unknown
        from flbench.sweeps.sweep import run_missing
        from flbench.sweeps.workers import prepare_workers, run_in_workers

    refuse_unknown(request.settings, chosen.values())
    if not no_run:
        prepare_workers(number)
    plans = {name: planned(grid, scale, request, seeds, progress) for name, grid in chosen.items()}
    every = [cell for part in plans.values() for plan in part for cell in plan.cells]
    launch = partial(run_in_workers, progress=progress, workers=number)
    outcomes = {} if no_run else run_missing(every, progress, launch)
    compare_all(card, plans, outcomes, scale)
    if code := max((outcome.code for outcome in outcomes.values()), default=0):
        raise typer.Exit(code)


def tables_asked(
    card: Paper,
    names: Sequence[str] | None,
    dataset: str | None,
    suite: str | None = None,
    methods: Sequence[str] = (),
) -> dict[str, PaperTable]:
    """The tables of a paper by number, or all, with one suite and some methods alone.

    Raises:
        UnknownName: the paper has no such table, or none of them has the data set, the suite or a
            method.
    """
    chosen = {name: card.table(name) for name in names or card.tables}
    for what, wanted, field in (
        ("data set", [dataset] if dataset else [], "datasets"),
        ("suite", [suite] if suite else [], "suites"),
        ("row", methods, "methods"),
    ):
        known = {name for grid in chosen.values() for name in getattr(grid, field)}
        for one in wanted:
            if one not in known:
                raise UnknownName(f"{what} of '{card.name}'", one, known, listed="there are")
    return {
        name: grid.model_copy(
            update={
                "suites": [one for one in grid.suites if suite in (None, one)],
                "methods": [one for one in grid.methods if not methods or one in methods],
            }
        )
        for name, grid in chosen.items()
    }


def print_page(
    card: Paper, request: RunRequest, progress: SweepProgress, figures: Path | None
) -> None:
    """Print the paper's page of docs/; write its figures into a folder, if one is given."""
    from flbench.papers.claims import StoredResults
    from flbench.papers.drawings import drawings
    from flbench.papers.page import page
    from flbench.results.files import write_atomically

    if figures is not None:
        for name, svg in drawings(card, StoredResults.of(card, request, progress)):
            write_atomically(figures / name, svg)
    print(page(card, request, progress), end="")


def compare_all(
    card: Paper,
    plans: Mapping[str, Sequence[Plan]],
    outcomes: Mapping[Cell, Outcome],
    scale: str,
) -> None:
    """Print the tables of a paper that were played, and how many numbers have which verdict."""
    from flbench.papers.reproduction import findings, in_words

    total: Counter[str] = Counter()
    for name, planned in plans.items():
        found = findings(card.table(name), planned, outcomes)
        total.update(in_words(one.verdict, scale) for one in found)
        _print(card, card.table(name), found, scale)
    counts = ", ".join(f"{count} {what}" for what, count in total.items())
    tell(f"{sum(total.values())} numbers: {counts or 'none is printed for this data set'}")


def _print(card: Paper, grid: PaperTable, found: Sequence[ReproducedValue], scale: str) -> None:
    """A table per suite and data set that was run, a line for each that was not."""
    from flbench.papers.rank_agreement import rank_agreement
    from flbench.papers.reproduction import COLUMNS, by_part, cells
    from flbench.terminal.tables import print_rows

    tell(f"{card.name}, {grid.caption}: {grid.measured(grid.judged)}, scale {scale}")
    for (suite, dataset), rows in by_part(found).items():
        if any(one.results for one in rows):
            shown = [dict(zip(COLUMNS, cells(one, scale), strict=True)) for one in rows]
            print_rows(f"{suite} on {dataset}", shown)
            if (order := rank_agreement(rows)) is not None:
                tell(f"order of the methods: Kendall's tau {order}")
        else:
            reasons = dict.fromkeys(one.why for one in rows)
            tell(f"{suite} on {dataset}: not run: {'; '.join(reasons)}")
