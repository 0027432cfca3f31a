"""`flbench leaderboard`: write the leaderboard, or check that it is current."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from flbench.cli.options import COMMITTED, Results, board_command, refuse_no_folder
from flbench.errors import UserError
from flbench.terminal.lines import tell

SHOWN_NAMES = 5
"""Number of file names that a message shows."""


def leaderboard(
    results: Results = COMMITTED,
    out: Annotated[Path, typer.Option(help="folder of the pages")] = Path("leaderboard"),
    check: Annotated[bool, typer.Option("--check", help="only check that it is current")] = False,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="only the page and the figure of this suite (repeatable)"),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="draw; or leave figures as they are")
    ] = True,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="draw figures again that would be drawn from the same")
    ] = False,
    separate: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="ROW ROW",
            help="only say how many seeds would separate two rows; names as in column method",
        ),
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", help="the web page, index.html and tables/, and nothing else")
    ] = False,
) -> None:
    """Generate the leaderboard from result files: index, a page and figure per suite, overview."""
    refuse_no_folder(results)
    if separate:
        if check or html:
            raise UserError("--separate only prints: leave out --check and --html")
        _separate(results, separate, suite or [])
        return
    if html:
        if suite or redraw or not figures:
            raise UserError("--html writes the whole page: leave out other options but --check")
        _html(results, out, check)
        return
    from flbench.leaderboard.build import FIGURES, board, differences, refuse_by_hand
    from flbench.leaderboard.kept_figures import KeptFigures
    from flbench.results.files import files_below, write_atomically

    suites = suite or []
    drawn = KeptFigures(out / FIGURES) if figures and not (check or redraw) else None
    files = board(results, out, figures, suites, drawn)
    found = differences(out, files, figures, whole=not suites, suites=suites)
    if check:
        _check(found, results, out, suites)
        return
    left = found.get("left over", [])
    if left and not files_below(results, "seed-*.json"):
        raise UserError(
            f"{results} has no result files, and {out} has pages of some ({_shortened(left)}): give"
            " the folder of the results with --results"
        )
    new = {*found.get("missing", []), *found.get("differ", [])}
    refuse_by_hand(out, new)
    for name in sorted(new):
        write_atomically(out / name, files[name])
    for name in left:
        (out / name).unlink()
    if drawn is not None:
        drawn.save()
    removed = (
        f"removed {len(left)} of tables that are no more: {_shortened(left)}; " if left else ""
    )
    tell(f"{removed}wrote {len(new)} of {len(files)} files in {out}; the others are as they were")


def _check(
    found: Mapping[str, Sequence[str]], results: Path, out: Path, suites: Sequence[str]
) -> None:
    """Refuse what is not as it should be; files of the overview may be older, which is said."""
    from flbench.leaderboard.build import may_be_older

    wrong = {
        what: some
        for what, names in found.items()
        if (some := [name for name in names if not may_be_older(out, name)])
    }
    if wrong:
        changed = "; ".join(f"{what}: {_shortened(names)}" for what, names in wrong.items())
        words = board_command(suites, results, out)
        raise UserError(f"{out} is not what {results} gives; run {words} ({changed})")
    if older := [name for names in found.values() for name in names]:
        tell(f"older than the rows: {_shortened(older)}; a maintainer runs flbench leaderboard")


def _separate(results: Path, names: tuple[str, str], suites: list[str]) -> None:
    """Print what each table, of these suites if there are any, says of two rows."""
    from flbench.leaderboard.separation import separations
    from flbench.leaderboard.table import tables, tables_of

    for one in separations(tables_of(tables(results), suites, results), names):
        tell(*one.lines())


def _html(results: Path, out: Path, check: bool) -> None:
    """Write the web page and its tables, or check that they are current."""
    from flbench.leaderboard.audited import with_audits
    from flbench.leaderboard.build import differences, refuse_by_hand
    from flbench.leaderboard.headings import with_headings
    from flbench.leaderboard.html import FOLDER, PAGE, START, html
    from flbench.leaderboard.links import linked
    from flbench.leaderboard.table import tables
    from flbench.results.audits import LOG, read_audits
    from flbench.results.files import write_atomically

    log = results.parent / LOG
    found = with_audits(linked(with_headings(tables(results)), out), log)
    way = Path(os.path.relpath(results, out)).as_posix()
    files = html(found, way, read_audits(log))
    unlike = differences(out, files, whole=False)
    changed = [*unlike.get("missing", []), *unlike.get("differ", [])]
    left = [
        path
        for path in sorted((out / FOLDER).glob("*.js"))
        if f"{FOLDER}/{path.name}" not in files and path.read_bytes().startswith(START)
    ]
    page = out / PAGE
    if check and (changed or left):
        words = board_command((), results, out, "--html")
        raise UserError(f"{page} is not what {results} gives; run {words}")
    if check:
        tell(f"{page} is current")
        return
    refuse_by_hand(out, changed)
    for name in sorted(changed, key=lambda name: name == PAGE):  # the page last: it leads to them
        write_atomically(out / name, files[name])
    for path in left:
        path.unlink()
    tell(f"wrote {page} and {len(files) - 1} files of rows in {out / FOLDER}")


def _shortened(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{', '.join(names[:SHOWN_NAMES])}{more}"
