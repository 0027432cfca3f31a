"""The board: every file of the leaderboard, as a pure function of result files and findings."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from flbench.errors import UserError
from flbench.leaderboard.across import parts_of, ranked_blocks
from flbench.leaderboard.audited import with_audits
from flbench.leaderboard.headings import with_headings
from flbench.leaderboard.kept_figures import KeptFigures
from flbench.leaderboard.links import linked
from flbench.leaderboard.pages import MARK, index, overview, page_of, suite_page
from flbench.leaderboard.table import is_alone, tables, tables_of
from flbench.leaderboard.table_figures import SHOWCASE, Drawing, across, drawings, showcase
from flbench.leaderboard.who_wins import who_wins
from flbench.results.audits import LOG
from flbench.results.files import slug

INDEX = "README.md"
OVERVIEW = "overview.md"
FINDINGS = "findings.md"
FIGURES = "figures"
HEAD = 400
"""Characters of a page in which it says that it was generated."""
MARKS = {".md": MARK, ".html": "<title>flbench leaderboard</title>"}
"""What a generated page has there, by its kind."""


def board(
    results: Path,
    out: Path,
    draw: bool = True,
    suites: Collection[str] = (),
    drawn: KeptFigures | None = None,
) -> dict[str, bytes]:
    """Files of the leaderboard, by their path below `out`; of that, only `findings.md` is read.

    The log of audits is read too, which lies beside the folder of the results.

    All files; or, if suites are named, what belongs to these suites. If figures are
    not drawn, pages show those that lie in `out` already. With `drawn`, a figure that would be
    drawn from the same as before is taken from the folder.

    Raises:
        UserError: files that cannot be read, or cannot share a table; or suites, a page; or a suite
            is named that has no results.
    """
    found = with_headings(tables(results))
    shown = with_audits(linked(tables_of(found, suites, results), out), results.parent / LOG)
    files: dict[str, bytes] = {}

    def there(wanted: Sequence[Drawing]) -> list[Drawing]:
        """Those that can be drawn, or lie there already."""
        kept = []
        for one in wanted:
            path = f"{FIGURES}/{one.name}"
            picture = None if not draw else drawn.picture(one) if drawn else one.draw()
            if picture is not None:
                files[path] = picture
            if path in files or (not draw and (out / path).is_file()):
                kept.append(one)
        return kept

    way = Path(os.path.relpath(results, out)).as_posix()
    for suite in dict.fromkeys(table.suite for table in shown):
        own = [table for table in shown if table.suite == suite]
        if page_of(suite) in files:
            raise UserError(
                f"{results}: two suites would share the page {page_of(suite)}, one of them"
                f" '{suite}'; give one another name"
            )
        pictures = {one.title: there(drawings(one, is_alone(one, found))) for one in own}
        files[page_of(suite)] = suite_page(own, way, pictures).encode()
    if not suites:
        findings, wins = out / FINDINGS, who_wins(shown)
        text = findings.read_text(encoding="utf-8") if findings.is_file() else ""
        files[INDEX] = index(shown, text, wins).encode()
        ranked = ranked_blocks(shown)
        count = sum(len(row.results) for table in shown for row in table.rows)
        pictures_of_all = there([*across(ranked), *showcase(shown)])
        files[OVERVIEW] = overview(shown, parts_of(shown), pictures_of_all, count, wins).encode()
    return dict(sorted(files.items()))


def is_overview(name: str) -> bool:
    """Whether a file depends on the rows of all tables.

    Such files are generated again after rows have been added, not with each of them.
    """
    return name in (INDEX, OVERVIEW) or ("--" not in name and name.endswith(".svg"))


def may_be_older(out: Path, name: str) -> bool:
    """Whether a file may be one of the overview from before some rows, which nobody wrote over."""
    page = out / name
    by_hand = page.suffix == ".md" and page.is_file() and MARK not in _head(page)
    return is_overview(name) and not by_hand


def refuse_by_hand(out: Path, names: Iterable[str]) -> None:
    """Refuse to write over pages that a person wrote; `names` are those of files below `out`.

    Raises:
        UserError: one of these pages is there, and was not generated.
    """
    for name in names:
        page, mark = out / name, MARKS.get(Path(name).suffix)
        if mark is not None and page.is_file() and mark not in _head(page):
            raise UserError(
                f"{page} was not written by flbench leaderboard: expected a folder without such a"
                " page; name another one with --out, or move the page away"
            )


def _head(page: Path) -> str:
    return page.read_text(encoding="utf-8", errors="replace")[:HEAD]


def _leftovers(out: Path, files: Mapping[str, bytes], suites: Collection[str]) -> list[str]:
    """Files below `out` that were generated once and are no part of the board any more.

    If suites are named, their figures alone: a table has another name when its suite gets another.
    `one--more` is a suite of its own beside `one`, if it has a page.
    """
    found = [path for path in sorted(() if suites else out.glob("*.md")) if MARK in _head(path)]
    of_all = ("*--*.svg", "critical-difference*.svg", SHOWCASE)
    for pattern in [f"{slug(suite)}--*.svg" for suite in suites] or of_all:
        found += sorted((out / FIGURES).glob(pattern))
    others = [path.stem for path in out.glob("*--*.md") if suites and path.name not in files]
    names = [
        path.relative_to(out).as_posix()
        for path in found
        if not any(path.name.startswith(f"{other}--") for other in others)
    ]
    return [name for name in names if name not in files]


def differences(
    out: Path,
    files: Mapping[str, bytes],
    figures: bool = True,
    whole: bool = True,
    suites: Collection[str] = (),
) -> dict[str, list[str]]:
    """What is not as it should be: "missing", "differ" and "left over", with their files.

    `figures` says whether figures are among the files, `whole` whether the
    files are all of the leaderboard, so that no others should lie there; if not, no other figures
    of `suites` should.
    """
    left = _leftovers(out, files, suites) if whole or suites else []
    missing = [name for name in files if not (out / name).is_file()]
    changed = [
        name
        for name, data in files.items()
        if name not in missing and (out / name).read_bytes() != data
    ]
    left = [name for name in left if figures or name.endswith(".md")]
    found = {"missing": missing, "differ": changed, "left over": left}
    return {what: names for what, names in found.items() if names}
