"""Sphinx extension: the navigation is made of the lists of links that readers see.

In `docs/index.md` each section is a part of the site, and each link of its list is a page of that
part. In a page that lists the pages beside it (`leaderboard/README.md`), each linked page is below
it. So no page needs a `toctree` directive, which a code-hosting site shows as a block of code.
"""

from __future__ import annotations

import posixpath
import re

from sphinx.application import Sphinx

LISTS = ("leaderboard/README",)
"""Pages other than the index that the pages they link are below."""
SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
ENTRY = re.compile(r"^- \[([^]]+)\]\(([^)#:]+)\.(?:md|ipynb)\)", re.MULTILINE)
BESIDE = re.compile(r"\]\(([\w.-]+)\.md[)#]")


def toctree(entries: list[str], *options: str) -> str:
    """A hidden table of contents."""
    return "\n".join(["\n", "```{toctree}", ":hidden:", *options, "", *entries, "```\n"])


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append what the lists of a page say to that page."""
    if docname == app.config.root_doc:
        for title, body in SECTION.findall(source[0]):
            folder = posixpath.dirname(docname)
            entries = [
                f"{text} </{posixpath.normpath(posixpath.join(folder, path))}>"
                for text, path in ENTRY.findall(body)
            ]
            source[0] += toctree(entries, f":caption: {title}")
    elif docname in LISTS:
        source[0] += toctree(list(dict.fromkeys(BESIDE.findall(source[0]))))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", add_navigation)
    return {"parallel_read_safe": True}
