"""Markdown of tables: cells, columns and the text around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from flbench.leaderboard.grouping import (
    METHOD,
    Column,
    asked_of,
    cores_of,
    mean_std,
    metric_column,
    searched_for,
    searches,
    shown_metrics,
    signed,
)
from flbench.leaderboard.signs import legend, reads_uncounted, signs_of
from flbench.leaderboard.statistics import FEW_SEEDS, interval
from flbench.leaderboard.table import Table, TableRow
from flbench.metrics import HEADLINE, JUDGED, Family, TablePlace
from flbench.suite import training_clients
from flbench.tasks import TASKS, Task

SPECIAL = re.compile(r"[\\`*\[\]<>&~$|!@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.")
"""What markdown would not show as it is, wherever in a line it stands."""


def escaped(text: str) -> str:
    r"""A text of a result file as markdown that shows just it, on one line.

    Example:
        >>> escaped("a|b <script> min_samples [x](y)")
        'a\\|b \\<script\\> min_samples \\[x\\](y)'
    """
    return SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def titled(title: str) -> str:
    """A table's title; the brackets around its fingerprint are plain."""
    name, bracket, mark = title.rpartition(" [")
    return f"{escaped(name)}{bracket}{mark}"


def grid(headings: Sequence[tuple[str, bool]], lines: Sequence[Sequence[str]]) -> list[str]:
    """A table of cells in markdown; every cell is on one line, and an empty one is `-`.

    A heading comes with whether its column holds words, which stand left.
    """

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(' '.join(text.split()) or '-' for text in cells)} |"

    return [
        line(heading for heading, _ in headings),
        f"|{'|'.join('---' if words else '---:' for _, words in headings)}|",
        *map(line, lines),
    ]


def anchor(title: str) -> str:
    """What GitHub calls a heading in links.

    Example:
        >>> anchor("dirichlet-0.1 on digits [f98614d8]")
        'dirichlet-01-on-digits-f98614d8'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def link(text: str, target: str) -> str:
    """A link; text and file's name may hold anything."""
    if target.startswith(("https://", "http://")):
        return f"[{escaped(text)}](<{target}>)"
    return f"[{escaped(text)}]({quote(target, safe='/.,+#~-_')})"


def number(value: float | None, digits: int = 4) -> str:
    """A number, or `-`."""
    return "-" if value is None else f"{value:.{digits}f}"


def _rank(row: TableRow) -> str:
    return "reference" if row.reference else number(row.rank, 0)


def ends_text(ends: tuple[float, float], seeds: int) -> str:
    """An interval, and whether it says nothing about other seeds; `-` where there is none."""
    if isnan(ends[0]):
        return "-"
    text = f"{ends[0]:.4f} to {ends[1]:.4f}"
    return text if seeds > FEW_SEEDS else f"{text} (clients only)"


def _interval(row: TableRow) -> str:
    text = ends_text(row.interval, len(row.seeds))
    return f"{text} (uneven seeds)" if row.uneven else text


def _interval_of(label: str) -> Column:
    """The column of the interval of a metric that was asked for."""

    def shown(row: TableRow) -> str:
        values = row.client_metric(label)
        known = {seed: one for seed, one in values.items() if not np.isnan(one).all()}
        ends = interval(known)
        return "-" if ends is None else ends_text(ends, len(known))

    return (f"{label}, 95 % interval", False, shown)


def _epochs(row: TableRow) -> str:
    return number(row.epochs, 0) if row.counted or row.work is None else f"~{row.epochs:.0f}"


def _printed(row: TableRow) -> str:
    std = row.printed.get(f"{row.task.headline}_std")
    mean = row.printed.get(row.task.named(HEADLINE))
    return number(mean) + ("" if std is None else f" ± {std:.4f}")


def _to_paper(row: TableRow) -> str:
    """Our mean less the paper's, if there is one under the paper's rule."""
    ours = row.mean_of(row.task.named(JUDGED[row.printed_judged]))
    if ours is None or not row.printed:
        return signed(None)
    return signed(ours - row.printed[row.task.named(HEADLINE)])


def seeds(row: TableRow) -> str:
    """Its seeds, and those that others have."""
    text = ", ".join(map(str, row.seeds))
    return f"{text} (lacks {', '.join(map(str, row.lacks))})" if row.lacks else text


def packages(row: TableRow) -> str:
    """Where its plugins came from, and the cores that computed its files, if these name them."""
    found = dict.fromkeys(f"{one.distribution} {one.version}" for one in row.plugins)
    return ", ".join([*found, *(f"core {one}" for one in cores_of(row.results))])


def headline_column(task: Task) -> Column:
    """The column that rows of a task are ranked by."""
    return (task.heading, False, lambda row: mean_std(row.headlines))


def stale_columns(task: Task) -> list[Column]:
    """The columns of rows that are outdated."""
    return [
        METHOD,
        headline_column(task),
        ("seeds", True, seeds),
        ("package", True, packages),
        ("outdated", True, lambda row: str(row.outdated)),
    ]


def columns(
    rows: Sequence[TableRow],
    defaults: Mapping[str, float] | None = None,
    place: TablePlace = "pages",
) -> list[Column]:
    """The columns of a table of rows; some are there only where some row has something in them.

    `defaults` is method -> mean headline at its defaults; None = a table of those.
    """
    known, task = defaults or {}, rows[0].task if rows else TASKS["classes"]
    printed = any(row.printed for row in rows)
    rule = next((row.printed_judged for row in rows if row.printed), "served")
    paper = "paper" if rule == "served" else f"paper, {rule}"

    def of(family: Family) -> list[tuple[bool, Column]]:
        return [
            (True, metric_column(one))
            for one in shown_metrics(place, rows)
            if one.family == family and one.name != task.named(HEADLINE)  # which has its own place
        ]

    asked = [
        (True, column)
        for label in asked_of(rows)
        for one in shown_metrics(place, rows)
        if one.name in (f"{label}_mean", f"{label}_worst_decile")
        for column in (metric_column(one), *([_interval_of(label)] if one.curve == label else []))
    ]
    chosen: list[tuple[bool, Column]] = [
        (True, ("rank", False, _rank)),
        (True, ("ties", True, lambda row: row.ties)),
        (True, METHOD),
        (True, headline_column(task)),
        (defaults is not None, ("at defaults", False, lambda row: number(known.get(row.method)))),
        (True, ("95 % interval", False, _interval)),
        *of("accuracy"),
        *asked,
        (True, ("to oracle", False, lambda row: signed(row.to_oracle))),
        (True, ("gain", False, lambda row: signed(row.gain))),
        (printed, (paper, False, _printed)),
        (printed, ("to paper", False, _to_paper)),
        *of("groups"),
        (True, ("seconds", False, lambda row: number(row.seconds, 1))),
        (
            any(row.energy is not None for row in rows),
            ("Wh", False, lambda row: number(row.energy, 3)),
        ),
        (any(row.epochs for row in rows), ("epochs", False, _epochs)),
        *of("cost"),
        (any(map(reads_uncounted, rows)), ("reads", True, reads_uncounted)),
        *of("newcomers"),
        (True, ("seeds", True, seeds)),
        (True, ("status", True, lambda row: row.status)),
        (any(row.last_audit for row in rows), ("last audit", True, lambda row: row.last_audit)),
        (True, ("package", True, packages)),
        (
            any(row.links for row in rows),
            ("links", True, lambda row: ", ".join(text for text, _ in row.links)),
        ),
    ]
    return [column for wanted, column in chosen if wanted]


DEFAULTS = "at defaults"


class ShownRows(NamedTuple):
    """Rows of a table of one kind, with what stands above them and their columns."""

    caption: str
    note: str
    rows: Sequence[TableRow]
    columns: Sequence[Column]


def rows_shown(table: Table, place: TablePlace = "pages") -> Iterator[ShownRows]:
    """The rows of a table as they are shown: at defaults, tuned by budget, outdated."""
    if table.main:
        yield ShownRows(DEFAULTS, "", table.main, columns(table.main, place=place))
    defaults = {row.method: row.mean for row in table.main if row.default}
    for search in searches(table.tuned):
        rows = [row for row in table.tuned if row.search == search]
        on = sorted({seed for row in rows if row.tuning for seed in row.tuning.seeds})
        by = sorted({row.tuning.score for row in rows if row.tuning})
        note = (
            f"The best of {rows[0].budget} {searched_for(rows[0])} each, by {', '.join(by)} on"
            f" seeds {', '.join(map(str, on))}; ranked among themselves."
        )
        yield ShownRows(search, note, rows, columns(rows, defaults, place))
    if table.outdated:
        yield ShownRows("outdated", "", table.outdated, stale_columns(table.task))


def filled(rows: Sequence[TableRow], made: Sequence[Column], results: str) -> list[str]:
    """A table of rows; methods lead to their result files."""

    def shown(row: TableRow, heading: str, text: str) -> str:
        if heading == "links":
            return ", ".join(link(*one) for one in row.links)
        if heading != "method":
            return escaped(text)
        signs = "".join(one.sign for one in signs_of(row))
        return f"{link(text, f'{results}/{row.folder}')}{f' {signs}' if signs else ''}"

    headings = [(escaped(heading), words) for heading, words, _ in made]
    lines = [[shown(row, heading, of(row)) for heading, _, of in made] for row in rows]
    return grid(headings, lines)


def settings_text(table: Table) -> str:
    """The settings of a table in one sentence, as plain text."""
    suite = table.settings
    share = suite["participation"]
    sampled = "all of them" if share == 1 else f"{100 * share:g} % of them"
    models = [suite["model"], *suite.get("further_models", ())]
    networks = " or ".join(model["name"] for model in models)
    plugins = ", ".join(plugin["name"] for plugin in suite.get("plugins", ()))
    clients = training_clients(suite["clients"], suite.get("unseen", 0.0))
    later = f", {suite['clients'] - clients} more after the last" if table.joins_late else ""
    return (
        f"{clients} clients, {sampled} in each round{later},"
        f" {suite['rounds']} rounds of {suite['local']['epochs']} local epochs,"
        f" {networks}; suite version {suite['version']}."
        + (f" Every method is joined by {plugins}." if plugins else "")
        + (f" Not judged: {list_clients(suite['not_judged'])}." if suite.get("not_judged") else "")
        + task_text(table.task)
    )


def task_text(task: Task) -> str:
    """What a table of another task than classes is ranked by; empty for classes."""
    if task.name == "classes":
        return ""
    better = "higher" if task.higher_is_better else "lower"
    return f" Task {task.name}: {task.doc}. Ranked by {task.heading}; {better} is better."


def list_clients(ids: Sequence[int]) -> str:
    """Clients in words.

    Example:
        >>> list_clients([3]), list_clients([0, 2])
        ('client 3', 'clients 0, 2')
    """
    return f"client{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


def section(table: Table, results: str) -> list[str]:
    """What is said about one table: settings, ranked rows, tuned rows, stale rows, gaps.

    `results` is the way from the page to the results folder.
    """
    paper = table.settings.get("paper")
    about = escaped(settings_text(table)) + (f" {escaped(str(paper))}." if paper else "")
    named = f"{titled(table.title)}: " if table.heading else ""
    lines = [f"## {escaped(table.heading) or titled(table.title)}", "", f"{named}{about}"]
    if table.command:
        lines += ["", f"    {table.command}"]
    for part in rows_shown(table):
        heading = f"### {part.caption.capitalize()}"
        lines += ["", heading] if part.caption != DEFAULTS else []
        lines += ["", escaped(part.note)] if part.note else []
        lines += ["", *filled(part.rows, part.columns, results)]
    lines += ["", f"{signs}."] if (signs := legend(table.rows)) else []
    for line in (*table.copies, *table.not_defined):
        lines += ["", escaped(line)]
    return lines
