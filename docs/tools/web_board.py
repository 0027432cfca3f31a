"""Sphinx extension: the leaderboard's web page, at `board/index.html` of the site.

It has the tables of the site's pages, and is linked where these are explained and listed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

from repository_links import copy
from sphinx.application import Sphinx

from flbench.leaderboard.audited import with_audits
from flbench.leaderboard.headings import with_headings
from flbench.leaderboard.html import PAGE, html
from flbench.leaderboard.links import linked
from flbench.leaderboard.table import Link, Table, tables
from flbench.results.audits import LOG, read_audits

BOARD = "leaderboard"
PLACE = f"board/{PAGE}"
LINK = f'<a href="../{PLACE}">{PLACE}</a>'
LISTED_AFTER = "# Leaderboard\n"


def add_link(app: Sphinx, docname: str, source: list[str]) -> None:
    """Link the page from the explanation of the leaderboard, and from its list of tables."""
    if docname == "docs/leaderboard":
        source[0] = source[0].replace(f"`{PLACE}`", LINK)
    elif docname == f"{BOARD}/README":
        line = f"\nAll tables on one page, with the runs of each row: {LINK}.\n"
        source[0] = source[0].replace(LISTED_AFTER, LISTED_AFTER + line, 1)


def site_link(link: Link) -> Link:
    """A link of a row, which leads from the board to the repository, as one from the page.

    Example:
        >>> site_link(("paper", "../docs/methods.md#cfl"))
        ('paper', '../docs/methods.html#cfl')
        >>> site_link(("code", "../plugins/cfl.py"))
        ('code', '../files/plugins/cfl.py')
    """
    text, target = link
    path, mark, place = target.partition("#")
    if not path.startswith("../"):
        return link
    if path.endswith(".md"):
        return text, f"{path[:-3]}.html{mark}{place}"
    return text, f"../files/{path[3:]}{mark}{place}"


def on_site(found: list[Table]) -> list[Table]:
    """Tables whose rows have links as on the site."""
    return [
        replace(
            table,
            rows=tuple(replace(row, links=tuple(map(site_link, row.links))) for row in table.rows),
        )
        for table in found
    ]


def write_board(app: Sphinx, error: Exception | None) -> None:
    """Write the page and its rows, and copy the files that rows lead to."""
    if error is not None or app.builder.format != "html":
        return
    board, site = Path(app.srcdir) / BOARD, Path(app.outdir)
    results, log = board / "results", board / LOG
    found = on_site(with_audits(linked(with_headings(tables(results)), board), log))
    files = html(found, f"../files/{BOARD}/results", read_audits(log))
    for name, data in files.items():
        path = site / PurePosixPath(PLACE).parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for row in (row for table in found for row in table.rows):
        wanted = [Path(BOARD, "results", file) for file in row.files]
        wanted += [
            Path(target.removeprefix("../files/"))
            for _, target in row.links
            if target.startswith("../files/")
        ]
        for path in wanted:
            copy(app, path)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", add_link)
    app.connect("build-finished", write_board)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
