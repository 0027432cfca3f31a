"""Links of a row: to its plugins' source, paper and package. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from flbench.leaderboard.table import Link, Table, TableRow
from flbench.plugin.method_info import method_info
from flbench.plugin.registry import Entry, entries
from flbench.results.schema import Plugin

OWN = "flbench"
"""The distribution whose source lies beside the leaderboard."""
ADDRESS = re.compile(r"https?://[\w.~:/?#@%+=&-]+", re.ASCII)
ARXIV = re.compile(r"arXiv[ :](\d{4}\.\d{4,5})")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
SOURCES = ("source", "source code", "repository", "code", "homepage")
"""Labels of a package's URLs that lead to its source, the best first."""


def linked(found: Sequence[Table], out: Path | None = None) -> list[Table]:
    """Tables whose rows have links.

    Args:
        found: the tables.
        out: folder of the pages: what lies in the repository around it is linked; None = a page
            that may be anywhere, with full addresses only.
    """
    return [replace(table, rows=tuple(_linked(row, out) for row in table.rows)) for table in found]


def _linked(row: TableRow, out: Path | None) -> TableRow:
    several = len(row.plugins) > 1
    links: list[Link] = []
    for plugin in row.plugins:
        of = f" of {plugin.name}" if several else ""
        links += [(f"{what}{of}", target) for what, target in _links(plugin, out)]
    return replace(row, links=tuple(links))


def _links(plugin: Plugin, out: Path | None) -> Iterator[Link]:
    """Text and target of a plugin's links; the target is a URL, or a path from the page."""
    entry = installed_entry(plugin.name, plugin.distribution)
    if plugin.distribution == OWN:
        yield from _own_links(plugin, entry, out)
        return
    if url := _source_url(plugin.distribution):
        yield "code", url
    paper = ARXIV.search(method_info(entry).paper) if entry else None
    if paper:
        yield "paper", f"https://arxiv.org/abs/{paper[1]}"
    if NAME.fullmatch(plugin.distribution):
        yield "package", f"https://pypi.org/project/{plugin.distribution}/"


def installed_entry(name: str, distribution: str) -> Entry | None:
    """The installed method of that name, if it is of that distribution."""
    entry = entries("methods").get(name)
    return entry if entry is not None and entry.distribution == distribution else None


def _own_links(plugin: Plugin, entry: Entry | None, out: Path | None) -> Iterator[Link]:
    """Links to files of the repository that the pages lie in."""
    if entry is None or out is None:
        return
    module = entry.module().rpartition(".")[2]
    for what, file, place in (
        ("code", f"plugins/{module}.py", ""),
        ("paper", "docs/methods.md", f"#{plugin.name}"),
        ("package", "README.md", ""),
    ):
        if (out.absolute().parent / file).is_file():
            yield what, f"../{file}{place}"


def _source_url(distribution: str) -> str:
    """Where an installed package says that its source is; "" = not installed, or not said."""
    try:
        lines = metadata(distribution).get_all("Project-URL") or []
    except (PackageNotFoundError, ValueError):
        return ""
    found = {}
    for line in lines:
        label, _, url = str(line).partition(",")
        found[label.strip().lower()] = url.strip()
    urls = [found[label] for label in SOURCES if ADDRESS.fullmatch(found.get(label, ""))]
    return urls[0] if urls else ""


@cache
def departs_of(name: str, distribution: str) -> str:
    """In what an installed plugin is not its paper's; "" where it is, or nothing is known."""
    entry = installed_entry(name, distribution)
    return method_info(entry).departs if entry else ""
