"""The board: every file of the leaderboard, as a pure function of result files and findings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from flbench.errors import UserError
from flbench.leaderboard.links import linked
from flbench.leaderboard.pages import MARK, index, page_of, suite_page
from flbench.leaderboard.statistics import blocks
from flbench.leaderboard.table import is_alone, tables
from flbench.leaderboard.table_figures import Drawing, across, drawings

INDEX = "README.md"
FINDINGS = "findings.md"
FIGURES = "figures"
HEAD = 400
"""Characters of a page in which it says that it was generated."""


def board(results: Path, out: Path, draw: bool = True) -> dict[str, bytes]:
    """Every file of the leaderboard, by its path below `out`; of that, only `findings.md` is read.

    If figures are not drawn, pages show those that lie in `out` already.

    Raises:
        UserError: files that cannot be read, or cannot share a table; or suites, a page.
    """
    found = linked(tables(results), out)
    files: dict[str, bytes] = {}

    def there(wanted: Sequence[Drawing]) -> list[Drawing]:
        """Those that can be drawn, or lie there already."""
        kept = []
        for one in wanted:
            path = f"{FIGURES}/{one.name}"
            if draw and (picture := one.draw()) is not None:
                files[path] = picture
            if path in files or (not draw and (out / path).is_file()):
                kept.append(one)
        return kept

    pictures = {table.title: there(drawings(table, is_alone(table, found))) for table in found}
    way = Path(os.path.relpath(results, out)).as_posix()
    for suite in dict.fromkeys(table.suite for table in found):
        own = [table for table in found if table.suite == suite]
        if page_of(suite) in files:
            raise UserError(
                f"{results}: two suites would share the page {page_of(suite)}, one of them"
                f" '{suite}'; give one another name"
            )
        files[page_of(suite)] = suite_page(own, way, pictures).encode()
    findings = out / FINDINGS
    text = findings.read_text(encoding="utf-8") if findings.is_file() else ""
    ranked = blocks(
        {
            table.title: {row.method: row.mean for row in table.ranked if row.default}
            for table in found
        }
    )
    files[INDEX] = index(found, ranked, text, there(across(ranked))).encode()
    return dict(sorted(files.items()))


def _leftovers(out: Path, files: Mapping[str, bytes]) -> list[str]:
    """Files below `out` that were generated once and are no part of the board any more."""
    found = [
        path
        for path in sorted(out.glob("*.md"))
        if MARK in path.read_text(encoding="utf-8", errors="replace")[:HEAD]
    ]
    for pattern in ("*--*.svg", "critical-difference*.svg"):
        found += sorted((out / FIGURES).glob(pattern))
    names = [path.relative_to(out).as_posix() for path in found]
    return [name for name in names if name not in files]


def differences(out: Path, files: Mapping[str, bytes], whole: bool = True) -> dict[str, list[str]]:
    """What is not as it should be: "missing", "differ" and "left over", each with its files.

    `whole` says whether figures are among the files of the board.
    """
    missing = [name for name in files if not (out / name).is_file()]
    differ = [
        name
        for name, data in files.items()
        if name not in missing and (out / name).read_bytes() != data
    ]
    left = [name for name in _leftovers(out, files) if whole or name.endswith(".md")]
    found = {"missing": missing, "differ": differ, "left over": left}
    return {what: names for what, names in found.items() if names}
