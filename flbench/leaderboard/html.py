"""The board as a web page that needs no server: one page, and a file for each table's rows.

A browser loads the rows of a table when a person opens it. They are scripts, since a page that was
opened from a file may load no other data.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from flbench.leaderboard.across import PageTable, parts_of
from flbench.leaderboard.grouping import cells_of
from flbench.leaderboard.kinds import by_kind
from flbench.leaderboard.markdown import ShownRows, rows_shown, settings_text
from flbench.leaderboard.pages import how_to_read
from flbench.leaderboard.row_details import AUDITS, details, runs_of
from flbench.leaderboard.signs import LEGEND, signs_of
from flbench.leaderboard.table import Table, TableRow
from flbench.leaderboard.who_wins import WhoWins, who_wins
from flbench.leaderboard.who_wins_html import kind_id, who_wins_html
from flbench.results.audits import Audit
from flbench.results.files import slug

PAGE = "index.html"
FOLDER = "tables"
"""The folder of the rows, beside the page."""
START = b"showTable("
"""What every file of rows begins with."""
KINDS = {"ranked": "", "reference": "r", "tuned": "t", "outdated": "o"}
"""Kinds of rows, and their letters in the page's list of names."""

Audits = Mapping[str, Sequence[Audit]]


@dataclass(frozen=True)
class Section:
    """A part of the page that can be opened.

    Attributes:
        name: its id, and the name of its file.
        title: heading.
        summary: one line beside the heading.
        about: lines that are shown before the rows.
        data: what its file holds (`page.js` draws it).
        suite: of a table.
        dataset: of a table.
    """

    name: str
    title: str
    summary: str
    about: tuple[str, ...]
    data: Mapping[str, Any]
    suite: str = ""
    dataset: str = ""

    @property
    def file(self) -> str:
        """Its file, beside the page."""
        return f"{FOLDER}/{self.name}.js"


def html(
    found: Sequence[Table], results: str = "results", audits: Sequence[Audit] = ()
) -> dict[str, bytes]:
    """The files of the page, by their path: every table, sortable, with filters.

    What comes from result files is escaped.

    Args:
        found: the tables.
        results: the way from the page to the folder of results.
        audits: the log of audits.
    """
    by_run: dict[str, list[Audit]] = {}
    for one in audits:
        by_run.setdefault(one.run, []).append(one)
    kinds = {
        kind: [_section(table, results, by_run) for table in own]
        for kind, own in by_kind(found).items()
    }
    parts = _parts(parts_of(found))
    files = {
        one.file: START + f"{_json(one.name)},{_json(one.data)});\n".encode()
        for one in (*(one for own in kinds.values() for one in own), *parts)
    }
    files[PAGE] = _page(kinds, parts, how_to_read(found), who_wins(found)).encode()
    return dict(sorted(files.items()))


def _page(
    kinds: Mapping[str, Sequence[Section]],
    parts: Sequence[Section],
    how: str,
    wins: WhoWins | None,
) -> str:
    style, script = _asset("page.css"), _asset("page.js")
    sections = [one for own in kinds.values() for one in own]
    legend = "; ".join(f"{sign} {text}" for sign, text in LEGEND.items())
    return Template(_asset("page.html")).substitute(
        style=style,
        style_hash=csp_source(style),
        wins=who_wins_html(wins) if wins else "<p>Too few methods share a table.</p>",
        how=_marked(how),
        legend=escape(legend),
        filters="\n".join(_filters(sections)),
        tables="\n".join(_tables_of(kind, own) for kind, own in kinds.items()),
        across="\n".join(map(_closed, parts)),
        names=_json(_names(sections)),
        script=script,
        script_hash=csp_source(script),
    )


def csp_source(text: str) -> str:
    """A text as a source of a Content-Security-Policy: this one may be in the page, no other."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """A value as JSON that may stand in a page and in a script."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _marked(text: str) -> str:
    """A text with *emphasis* and `code` as HTML."""
    parts = escape(text).split("*")
    text = "".join(f"<em>{part}</em>" if at % 2 else part for at, part in enumerate(parts))
    pieces = text.split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(pieces))


def _filters(sections: Sequence[Section]) -> list[str]:
    """The form: methods by name, one suite, one data set, kinds of rows."""
    lines = ['<form id="filters" aria-label="filters">']
    lines.append('<label>Method <input type="search" name="method" autocomplete="off"></label>')
    for name, values in (
        ("suite", sorted({one.suite for one in sections})),
        ("dataset", sorted({one.dataset for one in sections})),
    ):
        options = "".join(f"<option>{escape(value)}</option>" for value in values)
        shown = name.replace("dataset", "data set").capitalize()
        every = '<option value="">all</option>'
        lines.append(f'<label>{shown} <select name="{name}">{every}{options}</select></label>')
    for kind in ("reference", "tuned", "outdated"):
        lines.append(f'<label><input type="checkbox" name="{kind}" checked> {kind} rows</label>')
    return [*lines, "</form>"]


def _tables_of(kind: str, sections: Sequence[Section]) -> str:
    """The tables of a kind, which are shown when it is opened."""
    count = f"{len(sections)} table{'' if len(sections) == 1 else 's'}"
    return (
        f'<details class="kind" id="{escape(kind_id(kind))}"><summary><h2>'
        f'{escape(kind[:1].upper() + kind[1:])}</h2> <span class="dim">{count}</span></summary>\n'
        + "\n".join(map(_closed, sections))
        + "\n</details>"
    )


def _closed(one: Section) -> str:
    """A section whose rows are not loaded yet."""
    about = (
        f' data-suite="{escape(one.suite)}" data-dataset="{escape(one.dataset)}"'
        if one.suite
        else ""
    )
    lines = "".join(f'<p class="dim">{escape(line)}</p>' for line in one.about if line)
    return (
        f'<details id="{escape(one.name)}" data-file="{escape(one.file)}"{about}>'
        f"<summary><h3>{escape(one.title)}</h3>"
        f' <span class="dim">{escape(one.summary)}</span></summary>'
        f'{lines}<div class="rows"></div></details>'
    )


def _section(table: Table, results: str, audits: Audits) -> Section:
    """A suite on a data set: a table of rows at defaults, one of tuned and of outdated rows."""
    grids = [_grid(part, results, audits) for part in rows_shown(table, "html")]
    best = next((row for row in table.compared if row.rank is not None), None)
    task = table.task
    unit = "" if task.name == "classes" else f", {task.heading}"
    count = f"{len(table.rows)} row{'' if len(table.rows) == 1 else 's'}"
    count += ", newcomers" if table.joins_late else ""
    count += f"; superseded by {table.superseded_by}" if table.superseded_by else ""
    return Section(
        "--".join([slug(table.suite), slug(table.dataset), table.fingerprint]),
        table.shown,
        f"{count}; best ranked: {best.name}{unit} {best.mean:.4f}" if best else count,
        (
            f"Suite {table.title}." if table.heading else "",
            f"{settings_text(table)} {table.settings.get('paper') or ''}".strip(),
            f"To add a row: {table.command}" if table.command else "",
            *table.copies,
            *table.not_defined,
        ),
        {
            "results": results,
            "headline": task.heading,
            "runs": runs_of(task),
            "audits": AUDITS,
            "grids": grids,
        },
        table.suite,
        table.dataset,
    )


def _grid(part: ShownRows, results: str, audits: Audits) -> dict[str, Any]:
    """Rows of one kind, with what each opens to."""
    columns, lines = cells_of(part.rows, part.columns)
    headings = [heading for heading, _ in columns]
    return {
        "caption": part.caption,
        "name": headings.index("method"),
        "links": headings.index("links") if "links" in headings else -1,
        "columns": columns,
        "rows": [
            {
                "kind": _kind(row),
                "id": row.config,
                "cells": line,
                "signs": [[one.sign, one.text] for one in signs_of(row)],
                "about": details(row, results, audits),
            }
            for row, line in zip(part.rows, lines, strict=True)
        ],
    }


def _kind(row: TableRow) -> str:
    kind = "outdated" if row.outdated else "tuned" if row.tuning else "ranked"
    return "reference" if row.reference and kind == "ranked" else kind


def _names(sections: Sequence[Section]) -> dict[str, Any]:
    """The names of all rows, so that a filter can count what is not loaded.

    `names` is a list of names; `rows` has for each section a text with a place in that list and
    the kind (`KINDS`) of every row.
    """
    rows = {
        one.name: [
            (row["cells"][grid["name"]], KINDS[row["kind"]])
            for grid in one.data["grids"]
            for row in grid["rows"]
        ]
        for one in sections
    }
    names = sorted({name for found in rows.values() for name, _ in found})
    places = {name: place for place, name in enumerate(names)}
    coded = {
        key: " ".join(f"{places[name]}{kind}" for name, kind in found)
        for key, found in rows.items()
    }
    return {"names": names, "rows": coded}


def _parts(parts: Sequence[PageTable]) -> list[Section]:
    """What compares methods across tables; filters do not change it."""
    found: list[Section] = []
    for part in parts:
        grid = {
            "caption": part.caption,
            "name": 0,
            "links": -1,
            "columns": [[heading, place == 0] for place, heading in enumerate(part.headings)],
            "rows": [{"cells": [cell or "-" for cell in line]} for line in part.lines],
        }
        count = f"{len(part.lines)} row{'' if len(part.lines) == 1 else 's'}"
        name = f"across-{len(found) + 1}"
        found.append(Section(name, part.title, count, tuple(part.notes), {"grids": [grid]}))
    return found
