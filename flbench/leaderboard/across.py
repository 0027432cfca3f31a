"""Across suites: one number for each method with its uncertainty, who beats whom, cost and work.

Methods are compared in tracks: at defaults, tuned with one budget, or at equal work; a row of one
track is never ranked in another. Nothing is imputed: what several methods are compared by is
computed over the tables that hold all of them (`flbench.leaderboard.statistics.Block`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

import numpy as np

from flbench.leaderboard.grouping import searches
from flbench.leaderboard.kinds import by_kind, judged_alike
from flbench.leaderboard.resampling import (
    TableErrors,
    bootstrap,
    drawn_units,
    improvability,
    mean_over_suites,
)
from flbench.leaderboard.statistics import DIGITS, Block, blocks
from flbench.leaderboard.table import Table, TableRow, client_headlines, same_clients
from flbench.metrics import TIME, Floats
from flbench.tasks import TASKS, Task

SAME_WORK = 1.5
"""A margin for the noise of wall times: up to this factor they are taken to be the same work."""
DEFAULTS, EQUAL_WORK = "at defaults", "at equal work"
MEANINGS = (
    "At defaults: with the parameters that a method has when it is installed.",
    "Tuned: the best of as many sets of parameters for each method as the budget says.",
    "At equal work: at defaults, at the last round at which the clients had trained no more local"
    " epochs than with one cohort in every round.",
    "Compared across suites: the methods and tables of which no result is missing; - = no two"
    " tables share three methods.",
    "Average rank, below: 1 = the best in every table.",
    "Improvability, per cent: how far the error of the best of the methods is below that of the"
    " method, on common seeds, mean over the tables of a suite, then over suites. Lower is better,"
    " 0 = the best in every table. The intervals are from resampled suites and seeds; few suites"
    " make them rather short. Of a table with one or two seeds, which say nothing about others, its"
    " clients are resampled within these seeds, the same ones for all methods.",
    "Work: local epochs over those of one cohort in every round; ~ = estimated from wall time.",
    "Seconds, MB/client, simulated seconds and Wh: of a run, mean over the tables. - = not known in"
    " some table.",
)
OF_TASKS = (
    "Tables of several tasks: ranks, wins and improvability are over all of them, as each is made"
    " within a table by its own headline (accuracy, RMSE, mAP). The error is what is missing to 1,"
    " of numbers the RMSE, for which lower is better. Headlines of two tasks are in no mean."
)
"""What is said beside `MEANINGS` where not all tables are of classes."""


@dataclass(frozen=True)
class PageTable:
    """A table of the page, as plain text.

    Attributes:
        title: heading; empty = it goes on under the one before.
        caption: what it shows.
        headings: of the columns, the first of which holds words.
        lines: cells by row; an empty one is missing.
        notes: what words mean, a line for each.
    """

    title: str
    caption: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


ScoreBySeed = Mapping[int, float]
"""The headline by seed so that higher is better (`Task.score`): accuracy, or less the RMSE."""


@dataclass(frozen=True)
class Track:
    """Rows that may be compared, one for each method at most.

    Attributes:
        name: "at defaults", "tuned, budget 8" or "at equal work".
        rows: title of a table -> method -> its row.
        scores: the same -> the scores that count.
    """

    name: str
    rows: Mapping[str, Mapping[str, TableRow]]
    scores: Mapping[str, Mapping[str, ScoreBySeed]]

    @property
    def blocks(self) -> list[Block]:
        """The blocks of methods and tables without gaps."""
        return blocks(
            {
                title: {name: mean(one.values()) for name, one in rows.items()}
                for title, rows in self.scores.items()
            }
        )


def contenders(table: Table) -> dict[str, TableRow]:
    """The rows of a table that count across suites, by method: at defaults, and no reference.

    Rows are compared over the seeds that all of them have. One that lacks a seed which half of them
    or more have is left out: the others' means would be those of fewer seeds than they show.
    """
    rows = [row for row in table.compared if row.default]
    counts = Counter(seed for row in rows for seed in row.seeds)
    usual = {seed for seed, count in counts.items() if 2 * count >= len(rows)}
    return {row.method: row for row in rows if usual <= {*row.seeds}}


def tracks(found: Sequence[Table]) -> list[Track]:
    """At defaults, then tuned by budget, then at equal work; those that have rows."""
    tuned = [row for table in found for row in table.tuned if not row.reference]
    defaults = {table.title: contenders(table) for table in found}
    named = {
        DEFAULTS: defaults,
        **{search: _tuned(found, search) for search in searches(tuned)},
    }
    made = [Track(name, rows, _by_row(rows, TableRow.by_seed)) for name, rows in named.items()]
    made.append(Track(EQUAL_WORK, defaults, _by_row(defaults, TableRow.at_equal_work)))
    return [one for one in made if any(one.scores.values())]


def _tuned(found: Sequence[Table], search: str) -> dict[str, dict[str, TableRow]]:
    """The rows that were tuned by a search, by table and method."""
    return {
        table.title: {
            row.method: row
            for row in table.tuned
            if row.search == search and row.nearest and not row.reference
        }
        for table in found
    }


def _by_row(
    rows: Mapping[str, Mapping[str, TableRow]], headlines: Callable[[TableRow], dict[int, float]]
) -> dict[str, dict[str, ScoreBySeed]]:
    """The scores of every row that has some."""

    def scores(row: TableRow) -> ScoreBySeed:
        return {seed: row.task.score(value) for seed, value in headlines(row).items()}

    return {
        title: {name: one for name, row in own.items() if (one := scores(row))}
        for title, own in rows.items()
    }


def ranked_blocks(found: Sequence[Table]) -> list[Block]:
    """The blocks of the methods at defaults."""
    return next((one.blocks for one in tracks(judged_alike(found)) if one.name == DEFAULTS), [])


def parts_of(found: Sequence[Table]) -> list[PageTable]:
    """All that compares methods across tables."""
    found = judged_alike(found)
    made = tracks(found)
    if len(found) < 2 or not made:
        return []
    parts = [_overview(made, [task.name for task in tasks_of(found)]), *of_kinds(found)]
    for track in made:
        for block in track.blocks[: None if track.name == DEFAULTS else 1]:
            parts += standings(found, track, block)
    return [*parts, *against_anchor(found)]


def of_kinds(found: Sequence[Table]) -> list[PageTable]:
    """The methods at defaults on the tables of each kind of federation, where there are several."""
    shown = [one.tables for one in ranked_blocks(found)]
    parts = []
    for kind, own in by_kind(found).items():
        for track in [one for one in tracks(own) if one.name == DEFAULTS]:
            for block in track.blocks[:1]:
                if block.tables not in shown:  # or it is that of all tables, which follows
                    name = f"{kind[0].upper()}{kind[1:]}"
                    parts += standings(own, replace(track, name=name), block)
    return parts


def tasks_of(found: Sequence[Table]) -> list[Task]:
    """The tasks of some tables, classes first; a table without rows has none."""
    named = {table.task.name for table in found if table.rows} or {"classes"}
    return [task for name, task in TASKS.items() if name in named]


def headline_of(found: Sequence[Table]) -> str:
    """What some tables are ranked by: one headline, or `headline` if they are of several tasks."""
    headings = {task.heading for task in tasks_of(found)}
    return headings.pop() if len(headings) == 1 else "headline"


def _overview(made: Sequence[Track], tasks: Sequence[str]) -> PageTable:
    """The tracks, and what of each can be compared across suites."""

    def line(track: Track) -> tuple[str, ...]:
        tables = [rows for rows in track.scores.values() if rows]
        sizes = [f"{len(one.ranks)} methods on {len(one.tables)} tables" for one in track.blocks]
        if track.name != DEFAULTS:
            sizes = sizes[:1]
        methods = {name for rows in tables for name in rows}
        return (track.name, str(len(methods)), str(len(tables)), "; ".join(sizes))

    return PageTable(
        "Tracks",
        "A row is compared with rows of its own track only.",
        ("track", "methods", "tables", "compared across suites"),
        tuple(map(line, made)),
        MEANINGS if tasks == ["classes"] else (*MEANINGS, OF_TASKS),
    )


def wins(scores: Mapping[str, Mapping[str, Mapping[int, float]]]) -> dict[tuple[str, str], Floats]:
    """In how many tables one method beats another, and how many have both on a common seed.

    Means over common seeds are compared; a tie is half a win.

    Args:
        scores: table -> method -> seed -> score, higher is better.

    Returns:
        (method, other) -> wins and tables, shape (2,); without pairs that no table has.
    """
    found: dict[tuple[str, str], Floats] = {}
    for rows in scores.values():
        for name, own in rows.items():
            for other, theirs in rows.items():
                common = sorted({*own} & {*theirs})
                if common and other != name:
                    gap = round(mean(own[seed] - theirs[seed] for seed in common), DIGITS)
                    won = np.array([(gap > 0) + (gap == 0) / 2, 1.0])
                    found[name, other] = found.get((name, other), np.zeros(2)) + won
    return found


@dataclass(frozen=True)
class _Shared:
    """The tables of a block whose methods have a seed in common, and its methods.

    `anchor` is the baseline of one model for all, if all tables have the same; otherwise "".
    `suites` are those of all tables of the block, `headline` is what its tables are ranked by.
    """

    methods: list[str]
    suites: set[str]
    anchor: str
    headline: str
    rows: list[Mapping[str, TableRow]]
    scores: Mapping[str, Mapping[str, ScoreBySeed]]
    errors: dict[str, list[TableErrors]]


def _shared(found: Sequence[Table], track: Track, block: Block) -> _Shared:
    methods = sorted(block.ranks)
    rows, own_scores = [], {}
    errors: dict[str, list[TableErrors]] = {}
    for table in found:
        if table.title not in block.tables:
            continue
        scores = [track.scores[table.title][name] for name in methods]
        seeds = sorted(set.intersection(*(set(one) for one in scores)))
        if seeds:
            rows.append(track.rows[table.title])
            own_scores[table.title] = dict(zip(methods, scores, strict=True))
            drawn = track.rows[table.title] if track.name != EQUAL_WORK else {}
            own = table_errors(
                table.task, scores, seeds, [drawn[name] for name in methods if drawn]
            )
            errors.setdefault(table.suite, []).append(own)
    anchors = {_anchor(own) for own in rows}
    anchor = anchors.pop() if len(anchors) == 1 else ""
    suites = {table.suite for table in found if table.title in block.tables}
    anchor = anchor if anchor in methods else ""
    headline = headline_of([table for table in found if table.title in block.tables])
    return _Shared(methods, suites, anchor, headline, rows, own_scores, errors)


def table_errors(
    task: Task, scores: Sequence[ScoreBySeed], seeds: Sequence[int], rows: Sequence[TableRow]
) -> TableErrors:
    """The errors of methods on the seeds of a table, and of their clients if there are rows."""
    best = task.score(task.best)
    values = np.array([[best - one[seed] for one in scores] for seed in seeds])
    known = [client_headlines(row) for row in rows]
    of_clients = [np.stack([best - task.score(one[seed]) for one in known], -1)
                  for seed in seeds if known]  # fmt: skip
    who = same_clients(rows) if rows else None
    return TableErrors(
        np.round(values, DIGITS),
        tuple(np.round(one, DIGITS) for one in of_clients),
        () if who is None else tuple(who[seed] for seed in seeds),
    )


def _anchor(rows: Mapping[str, TableRow]) -> str:
    return next((name for name, row in rows.items() if row.one_for_all), "")


def standings(found: Sequence[Table], track: Track, block: Block) -> list[PageTable]:
    """The methods of a block: ranks, improvability and cost; by work; who beats whom."""
    shared = _shared(found, track, block)
    if not shared.rows:
        return []
    points = mean_over_suites(
        {
            suite: [improvability(one.by_seed.mean(axis=0)) for one in tables]
            for suite, tables in shared.errors.items()
        }
    )
    parts = [_improvability(track, block, shared, points)]
    if track.name == DEFAULTS:
        parts += [*_by_work(shared, points), *win_rates(shared)]
    return parts


def _improvability(track: Track, block: Block, shared: _Shared, points: Floats) -> PageTable:
    """A line for each method of a block, the best first."""
    draws, drawn = bootstrap(shared.errors), drawn_units(shared.errors)
    ends = np.percentile(draws, (2.5, 97.5), axis=0)
    place = {name: at for at, name in enumerate(shared.methods)}
    anchor, base = shared.anchor, place.get(shared.anchor)
    against = None if base is None else np.percentile(
        draws - draws[:, [base]], (2.5, 97.5), axis=0
    )  # fmt: skip
    whole = track.name != EQUAL_WORK
    costs: list[tuple[str, list[str]]] = [
        ("work", [_work([rows[name] for rows in shared.rows]) for name in shared.methods])
    ]
    if whole:
        costs += [
            (heading, [_mean([of(rows[name]) for rows in shared.rows], digits)
                       for name in shared.methods])
            for heading, of, digits in COSTS
        ]  # fmt: skip
    costs = [(heading, cells) for heading, cells in costs if any(cells)]

    def line(name: str) -> tuple[str, ...]:
        at = place[name]
        less, limits = "", ""
        if against is not None and base is not None and at != base:
            less = f"{points[at] - points[base] + 0.0:+.1f}"
            limits = f"{against[0, at]:+.1f} to {against[1, at]:+.1f}" if drawn else ""
        return (
            name,
            f"{block.ranks[name]:.2f}",
            f"{points[at]:.1f}",
            f"{ends[0, at]:.1f} to {ends[1, at]:.1f}" if drawn else "",
            *((less, limits) if against is not None else ()),
            *(cells[at] for _, cells in costs),
        )

    order = sorted(shared.methods, key=lambda name: (round(points[place[name]], DIGITS), name))
    gap = against is not None
    to_anchor = (f"to {anchor}", f"95 % interval to {anchor}") if gap else ()
    suites, count = len(shared.suites), len(block.tables)
    common = f" Improvability and costs: over the {len(shared.rows)} in which all have a seed."
    return PageTable(
        f"{track.name[0].upper()}{track.name[1:]}: {len(order)} methods on {count} tables",
        f"Over all {count} tables that hold all of these methods, of {suites} suites:"
        f" {', '.join(block.tables)}.{common if len(shared.rows) < count else ''}"
        f" Friedman's statistic is {block.statistic:.2f} (p = {block.p:.2g}); average ranks that"
        f" differ by less than {block.distance:.2f}, Nemenyi's critical difference at 5 %, cannot"
        " be told apart."
        + (f" To {anchor}: improvability less that of {anchor}; below 0 is better." if gap else "")
        + (f" Intervals: over resampled {drawn}." if drawn else " Too few seeds for intervals."),
        ("method", "average rank", "improvability", "95 % interval", *to_anchor,
         *(heading for heading, _ in costs)),
        tuple(line(name) for name in order),
    )  # fmt: skip


def _work(rows: Sequence[TableRow]) -> str:
    """Median over tables of the work; nothing where one is not known."""
    known = [row.work for row in rows if row.work is not None]
    if len(known) < len(rows):
        return ""
    return f"{'' if all(row.counted for row in rows) else '~'}{median(known):.1f}"


def _by_work(shared: _Shared, points: Floats) -> list[PageTable]:
    """The methods in the order of their work, and whether less work does as well."""
    known = []
    for at, name in enumerate(shared.methods):
        rows = [rows[name] for rows in shared.rows]
        ratios = [row.work for row in rows if row.work is not None]
        epochs = [row.epochs for row in rows if row.epochs is not None]
        if len(ratios) == len(rows):
            mark = "" if all(row.counted for row in rows) else "~"
            value = round(float(points[at]), DIGITS)
            known.append((median(ratios), name, f"{mark}{mean(epochs):.0f}", value, _work(rows)))
    if not known:
        return []
    lines = []
    for ratio, name, made, value, shown in sorted(known):
        best = min(other for work, _, _, other, _ in known if work <= SAME_WORK * ratio)
        leads = "yes" if value == best else ""
        lines.append((name, shown, made, f"{value:.1f}", leads))
    missing = sorted({*shared.methods} - {name for _, name, *_ in known})
    return [
        PageTable(
            f"By work: {len(known)} of these methods",
            "Least work first: a method that trains everybody in every round does ten times the"
            " work of a cohort of a tenth. Epochs: local epochs that a client trains in a run, mean"
            " over clients and tables. Work: these epochs over those of one cohort in every round,"
            " median over tables. ~ = the file does not hold the epochs, and they are estimated"
            " from the time of training over that of one model for all. Best for its work: no"
            f" method has a lower improvability with at most {SAME_WORK:g} times its work."
            + (f" Not known for {', '.join(missing)}." if missing else ""),
            ("method", "work", "epochs", "improvability", "best for its work"),
            tuple(lines),
        )
    ]


def win_rates(shared: _Shared) -> list[PageTable]:
    """Who beats whom, over the tables of a block: all entries are over the same tables."""
    counts = wins(shared.scores)
    names = sorted({name for pair in counts for name in pair})
    if not names:
        return []
    shares = {
        name: mean(won / of for (one, _), (won, of) in counts.items() if one == name)
        for name in names
    }
    order = sorted(names, key=lambda name: (-round(shares[name], DIGITS), name))

    def cell(name: str, other: str) -> str:
        if (name, other) not in counts:
            return ""
        won, of = counts[name, other]
        return f"{100 * won / of:.0f}"

    return [
        PageTable(
            f"Who beats whom: {len(order)} methods",
            "In how many per cent of the same tables the method of the row beats that of the"
            f" column, which has the number of its row, by mean {shared.headline} over common"
            " seeds; a tie is half a win. Mean: over all others.",
            ("method", "mean", *(str(at) for at, _ in enumerate(order, 1))),
            tuple(
                (f"{at} {name}", f"{100 * shares[name]:.0f}",
                 *(cell(name, other) for other in order))
                for at, name in enumerate(order, 1)
            ),
        )
    ]  # fmt: skip


def against_anchor(found: Sequence[Table]) -> list[PageTable]:
    """Every method against one model for all, also those that are in no block: a part per task."""
    rows = {table.title: contenders(table) for table in found}
    anchors = sorted({_anchor(own) for own in rows.values()} - {""})
    if len(anchors) != 1:
        return []
    of_tasks = [
        (task, [rows[table.title] for table in found if table.task == task])
        for task in tasks_of(found)
    ]
    parts = [_against(anchors[0], task, own) for task, own in of_tasks]
    return [part for part in parts if part.lines]


def _against(anchor: str, task: Task, tables: Sequence[Mapping[str, TableRow]]) -> PageTable:
    """The gains of every method over the anchor, on tables of one task: method -> row, for each."""
    size, digits = (100, 1) if task.is_share else (1, 3)
    lines: list[tuple[str, ...]] = []
    for name in sorted({name for rows in tables for name in rows} - {anchor}):
        gaps = []
        for rows in tables:
            if name in rows and anchor in rows:
                own, base = rows[name].by_seed(), rows[anchor].by_seed()
                gaps += [[task.gain(own[seed], base[seed]) for seed in sorted({*own} & {*base})]]
        means = [round(mean(gap), DIGITS) for gap in gaps if gap]
        held = sum(name in rows for rows in tables)
        if not means:
            lines.append((name, str(held), "0", "", "", "", ""))
            continue
        won = sum((gap > 0) + (gap == 0) / 2 for gap in means)
        texts = [
            f"{round(size * value, digits) + 0.0:+.{digits}f}"
            for value in (mean(means), min(means), max(means))
        ]
        lines.append((name, str(held), str(len(means)), f"{won:g}", *texts))
    unit = ", in points of per cent" if task.is_share else ""
    gain = f"{task.heading} less that of {anchor}{unit}"
    if not task.higher_is_better:
        gain = f"{task.heading} of {anchor} less that of the method{unit}, above 0 is better"
    of_task = "" if task.name == "classes" else f", {task.heading}"
    return PageTable(
        f"Every method against {anchor}{of_task}",
        f"At defaults, by name. Tables: that hold the method, and of these, that hold {anchor}"
        " on a common seed. Wins: in how many of those it is better; a tie is half a win. Then"
        f" {gain}: mean over these tables,"
        " lowest and highest. Two methods were run on different tables, so their means cannot"
        " be compared; - = no such table.",
        ("method", "tables", f"with {anchor}", "wins", "mean", "lowest", "highest"),
        tuple(lines),
    )


COSTS: tuple[tuple[str, Callable[[TableRow], float | None], int], ...] = (
    ("seconds", lambda row: row.seconds, 1),
    ("MB/client", lambda row: row.mean_of("mb_per_client"), 2),
    ("sim. s", lambda row: row.mean_of(TIME), 0),
    ("Wh", lambda row: row.energy, 3),
)
"""Heading, number of a row, and digits; a column is left out where no method has a number."""


def _mean(values: Sequence[float | None], digits: int) -> str:
    """Mean over all tables; nothing where one is missing."""
    known = [value for value in values if value is not None]
    return f"{mean(known):.{digits}f}" if known and len(known) == len(values) else ""
