"""Tables: all that is known about a suite on a data set, as data. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any

import numpy as np
from packaging.version import InvalidVersion, Version

from flbench.core.seeding import late_ones_last
from flbench.errors import UserError
from flbench.leaderboard.grouping import (
    Key,
    ResultGroup,
    distances,
    grouped,
    named,
    refuse_mixed,
    searches,
    title_of,
)
from flbench.leaderboard.statistics import ClientIds, compare, letters, ranks, uneven
from flbench.leaderboard.suite_info import command, departures, suite_of
from flbench.metrics import EPOCHS, HEADLINE, Floats, Rule
from flbench.results.files import read_results, read_skips
from flbench.results.schema import Plugin, Result, Skip
from flbench.suite import Suite, cohort_size
from flbench.tasks import TASKS, Task

MACHINE = ("core", "device", "executor", "flbench", "machine", "threads")
"""Keys of a result's environment in which runs agree whose times are compared."""
WITHIN_COUNT, WITHIN_ESTIMATE = 1.1, 1.5
"""Up to these factors work is taken to be equal: where epochs are counted, and by wall time."""
SAME_CLIENTS = ("natural", "by-domain")
"""Partitions whose clients are the same ones in every seed, as they are domains of the data."""
Link = tuple[str, str]
"""A link: its text and its target, a URL or a path from the page."""


@dataclass(frozen=True)
class Table:
    """One suite on one data set with one set of settings.

    Attributes:
        fingerprint: of the suite's settings.
        summary: one line on the installed suite; empty where it is not installed.
        seeds: all seeds of its rows.
        rows: the best mean first.
        undefined: method and reason, where it is not defined.
        superseded_by: the suite that takes the place of the installed one; "" = none.
        heading: what a person calls it (`flbench.leaderboard.headings`); no other has the same.
    """

    suite: str
    dataset: str
    fingerprint: str
    settings: Mapping[str, Any]
    summary: str
    seeds: tuple[int, ...]
    rows: tuple[TableRow, ...]
    undefined: tuple[tuple[str, str], ...]
    superseded_by: str = ""
    heading: str = ""

    @property
    def not_defined(self) -> tuple[str, ...]:
        """A line for each reason, with the methods that are not defined here for it."""
        methods: dict[str, list[str]] = {}
        for method, reason in self.undefined:
            methods.setdefault(reason.removeprefix(f"{method}: "), []).append(method)
        return tuple(
            f"Not defined here: {', '.join(names)}: {reason}{'' if reason.endswith('.') else '.'}"
            for reason, names in methods.items()
        )

    @cached_property
    def copies(self) -> tuple[str, ...]:
        """A line for methods that have the same numbers, of every client and seed.

        What they add to each other had no effect here, such as groups that were not found.
        """
        found: dict[object, list[TableRow]] = {}
        for row in sorted(self.main, key=lambda row: (not row.one_for_all, row.name)):
            found.setdefault(_all_numbers(row), []).append(row)
        same = [list(dict.fromkeys(row.name for row in rows)) for rows in found.values()]
        return tuple(
            f"The same numbers in every client and seed: {', '.join(names)}."
            for names in same
            if len(names) > 1
        )

    @property
    def shown(self) -> str:
        """Its heading; without one its title."""
        return self.heading or self.title

    @property
    def title(self) -> str:
        """Suite, data set and fingerprint."""
        return title_of((self.suite, self.dataset, self.fingerprint))

    @property
    def task(self) -> Task:
        """What all of its rows predict, and how they are ranked; classes where there is no row."""
        return self.rows[0].task if self.rows else TASKS["classes"]

    @cached_property
    def command(self) -> str:
        """What to type to run a method on it; empty where the installed suite differs."""
        suite, count = suite_of(self.suite, self.dataset), max(self.seeds, default=0) + 1
        return command(suite, self.settings, self.fingerprint, count) if suite else ""

    @property
    def joins_late(self) -> bool:
        """Whether some of its clients join after training."""
        return bool(self.settings.get("unseen"))

    @cached_property
    def main(self) -> tuple[TableRow, ...]:
        """Rows that are neither tuned nor outdated."""
        return tuple(row for row in self.rows if not (row.tuning or row.outdated))

    @cached_property
    def tuned(self) -> tuple[TableRow, ...]:
        """Rows whose parameters were searched for."""
        return tuple(row for row in self.rows if row.tuning and not row.outdated)

    @cached_property
    def outdated(self) -> tuple[TableRow, ...]:
        """Stale rows."""
        return tuple(row for row in self.rows if row.outdated)

    @cached_property
    def compared(self) -> tuple[TableRow, ...]:
        """Those of `main` that are no reference; of these, rows of one seed have no rank."""
        return tuple(row for row in self.main if not row.reference)


def is_alone(table: Table, found: Sequence[Table]) -> bool:
    """Whether no other table is of the same suite and data set."""
    kinds = [(one.suite, one.dataset) for one in found]
    return kinds.count((table.suite, table.dataset)) == 1


def tables_of(found: Sequence[Table], suites: Collection[str], results: Path) -> list[Table]:
    """The tables of some suites, or all if none is named; `results` is the folder they are from.

    Raises:
        UserError: a suite is named that has no table.
    """
    known = list(dict.fromkeys(table.suite for table in found))
    if unknown := [suite for suite in suites if suite not in known]:
        raise UserError(f"{results}: no results of suite '{unknown[0]}'; there are of {known}")
    return [table for table in found if not suites or table.suite in suites]


def tables(folder: Path) -> list[Table]:
    """Every table of a folder of result files, by suite, data set and fingerprint.

    Of a suite and data set, those in which some clients join after training are the last; of all,
    those of suites whose place another one takes.

    What is installed matters too: a suite's version, what its paper prints, methods' defaults.

    Raises:
        UserError: files that cannot be read, or cannot share a table.
    """
    files, skips = list(read_results(folder)), list(read_skips(folder))
    refuse_mixed(files)
    groups = grouped(result for _, result in files)
    skipped: dict[Key, list[Skip]] = {}
    for skip in skips:
        key = (str(skip.suite["name"]), skip.dataset, skip.suite_hash)
        skipped.setdefault(key, []).append(skip)
    places = {id(one): path.relative_to(folder).as_posix() for path, one in files}
    found = [
        _table(key, groups.get(key, []), skipped.get(key, []), places)
        for key in sorted({*groups, *skipped})
    ]
    return sorted(
        found,
        key=lambda one: (bool(one.superseded_by), one.suite, one.dataset, one.joins_late),
    )


def _table(
    key: Key,
    rows: Sequence[ResultGroup],
    skips: Sequence[Skip],
    places: Mapping[int, str],
) -> Table:
    """A table; `places` has the path of each result's file, by the result's id."""
    name, dataset, mark = key
    suite = suite_of(name, dataset)
    settings = rows[0].results[0].suite if rows else skips[0].suite
    if suite is not None and suite.hash() == mark:
        settings = {**settings, "paper": suite.paper}  # what a file says of it is anybody's text
    shown = {row.method for row in rows}
    seeds = tuple(sorted({seed for row in rows for seed in row.seeds}))
    newest = _newest(plugin for row in rows for one in row.results for plugin in one.method.plugins)
    stale = {row.config: why for row in rows if (why := _outdated(row, suite, newest))}
    printed = suite.printed.get(dataset, {}) if suite else {}
    current = [row for row in rows if row.config not in stale]
    old = _compared([row for row in rows if row.config in stale], [], ranked=False)
    entries: list[TableRow] = []
    for search in searches(current):
        kind = [row for row in current if row.search == search]
        here = {row.method for row in kind}
        others = [row for row in current if not row.search and row.method not in here]
        entries += _compared(kind, others)
    usual = [row for row in entries if row.default and not row.budget]
    anchor = next((row for row in usual if row.one_for_all), None)
    entries = [
        replace(
            row,
            work=_estimated_work(row, anchor) if counted_work(row) is None else counted_work(row),
            counted=counted_work(row) is not None,
            files=tuple(places[id(one)] for one in row.results),
            lacks=tuple(seed for seed in seeds if seed not in row.seeds),
            printed=_printed(row, printed),
            printed_judged=suite.printed_judged if suite else "served",
            outdated=stale.get(row.config, ""),
        )
        for row in [*old, *entries]
    ]
    return Table(
        suite=name,
        dataset=dataset,
        fingerprint=mark,
        settings=settings,
        summary=suite.summary if suite else "",
        seeds=seeds,
        rows=tuple(sorted(entries, key=lambda row: row.order)),
        undefined=tuple(
            sorted({(one.method.name, one.reason) for one in skips if one.method.name not in shown})
        ),
        superseded_by=suite.superseded_by if suite else "",
    )


def _all_numbers(row: ResultGroup) -> object:
    """The headline of each client of each seed, and the loss of each round."""
    return tuple(
        (one.seed, one.clients.headline_values().tobytes(), tuple(one.curves.get("loss", ())))
        for one in sorted(row.results, key=lambda one: one.seed)
    )


def counted_work(row: ResultGroup) -> float | None:
    """Local epochs per client over those of one cohort in every round, median over seeds."""
    made = row.column(EPOCHS)
    return median(made) / cohort_epochs(row) if len(made) == len(row.results) else None


def cohort_epochs(row: ResultGroup) -> float:
    """Local epochs per client that one cohort in every round makes, mean over clients."""
    suite, clients = row.results[0].suite, len(row.results[0].clients.test)
    cohort = cohort_size(suite["participation"], clients)
    return float(suite["rounds"] * suite["local"]["epochs"] * cohort / clients)


def _estimated_work(row: ResultGroup, anchor: ResultGroup | None) -> float | None:
    """Time of training over that of the anchor, median over the seeds that both have.

    Only runs of one core and version of flbench, machine, executor and number of threads are
    compared.
    """

    def kind(one: Result) -> tuple[object, ...]:
        return one.seed, *(one.environment.get(name) for name in MACHINE)

    base = {kind(one): one.seconds.get("train", 0.0) for one in anchor.results} if anchor else {}
    ratios = [
        one.seconds["train"] / base[kind(one)]
        for one in row.results
        if "train" in one.seconds and base.get(kind(one), 0) > 0
    ]
    return median(ratios) if ratios else None


def _newest(plugins: Iterable[Plugin]) -> dict[tuple[str, str], Version]:
    """The highest version of every plugin in a table, by distribution and name."""
    found: dict[tuple[str, str], Version] = {}
    for plugin in plugins:
        key = (plugin.distribution, plugin.name)
        found[key] = max(found.get(key, _version(plugin)), _version(plugin))
    return found


def _version(plugin: Plugin) -> Version:
    """A plugin's version; what is none comes before all others."""
    try:
        return Version(plugin.version)
    except InvalidVersion:
        return Version("0.dev0")


def _outdated(
    row: ResultGroup, suite: Suite | None, newest: Mapping[tuple[str, str], Version]
) -> str:
    """Why a row is stale; empty where it is not."""
    own = row.results[0].suite.get("version", 0)
    if suite and own < suite.version:
        return f"suite version {own}; {suite.version} is installed"
    for plugin in (plugin for one in row.results for plugin in one.method.plugins):
        best = newest[plugin.distribution, plugin.name]
        if _version(plugin) < best:
            return f"{plugin.name} {plugin.version}; there are results of {best}"
    return ""


@dataclass(frozen=True)
class TableRow(ResultGroup):
    """One row of a table; its name has the parameters in which rows of its method differ.

    Attributes:
        nearest: whether it is its method's row nearest to the installed defaults, of its kind.
        departs: whether a parameter is not at the installed default.
        interval: 95 % interval of the mean, see `flbench.leaderboard.statistics`; NaN for one
            client of one seed.
        to_oracle: how much worse it is than the oracle, over common seeds.
        gain: how much better it is than the best baseline.
        rank: among the rows of its kind (at defaults, or tuned with the same budget); None = a
            reference, or one seed, from which nothing can be said of others, or no two rows of its
            kind are separated, so that there is no order.
        ties: letters that it shares with rows that are not significantly different; empty where it
            is not compared with others.
        work: local epochs over those of one cohort in every round, median over seeds; estimated
            from the time of training where they are not counted; None where nothing is known.
        counted: whether the epochs of its work were counted.
        files: the file of each result, below the results folder.
        lacks: seeds that other rows of the table have and it has not.
        printed: name in a summary -> the paper's number; empty where it has no headline.
        printed_judged: with which model the paper judges a client.
        outdated: why it is stale; empty where it is not.
        last_audit: when it was last run again (`flbench.leaderboard.audited`).
        audited: seeds whose last audit of all rounds agrees.
        links: to source, paper and package of its plugins (`flbench.leaderboard.links`).
        old_core: whether no seed was computed, or replayed as a whole, by a core of the last
            audits (`flbench.leaderboard.audited`).
    """

    nearest: bool
    departs: bool
    interval: tuple[float, float]
    to_oracle: float | None
    gain: float | None
    rank: int | None
    ties: str
    work: float | None = None
    counted: bool = False
    files: tuple[str, ...] = ()
    lacks: tuple[int, ...] = ()
    printed: Mapping[str, float] = field(default_factory=dict)
    printed_judged: Rule = "served"
    outdated: str = ""
    last_audit: str = ""
    audited: frozenset[int] = frozenset()
    links: tuple[Link, ...] = ()
    old_core: bool = False

    @property
    def uneven(self) -> bool:
        """Whether some of its seeds are far from the others (`statistics.uneven`)."""
        return uneven(self.headlines)

    @property
    def default(self) -> bool:
        """Whether it has its method's installed defaults, and no row before it has them too."""
        return self.nearest and not self.departs

    @property
    def folder(self) -> str:
        """The folder of its result files, below the results folder."""
        return PurePosixPath(self.files[0]).parent.as_posix() if self.files else ""

    @property
    def epochs(self) -> float | None:
        """Local epochs that a client trains in the run, mean over clients; see `work`."""
        return None if self.work is None else self.work * cohort_epochs(self)

    def at_equal_work(self) -> dict[int, float]:
        """Headline by seed at the last round at which no more was trained than by one cohort.

        Of work that is estimated every round is taken to have the same share. A seed that was not
        measured until then is left out; all are where the work is not known.
        """
        if self.work is None:
            return {}
        limit = cohort_epochs(self) * (WITHIN_COUNT if self.counted else WITHIN_ESTIMATE)
        found: dict[int, float] = {}
        for result, whole in zip(self.results, self.headlines, strict=True):
            curve = result.curves.get(self.task.headline, [])
            rounds = len(curve)
            made = result.curves.get(EPOCHS) or [
                (at + 1) / rounds * self.work * cohort_epochs(self) for at in range(rounds)
            ]
            fits = [value is not None and value <= limit for value in made]
            known = [one for one, fit in zip(curve, fits, strict=True) if fit]
            measured = [one for one in known if one is not None]
            if all(fits):
                found[result.seed] = whole
            elif measured:
                found[result.seed] = float(measured[-1])
        return found

    @property
    def status(self) -> str:
        """`self-reported` or `reproduced`, both where seeds differ; or `outdated`.

        `not reproducible` where the code, a library or an option changed within a run.
        """
        if self.outdated:
            return "outdated"
        return ", ".join(sorted(set(map(self.status_of, self.results))))

    def status_of(self, result: Result) -> str:
        """What is known of one seed: by its file, or by an audit."""
        if result.source_changes:
            return "not reproducible"
        return "reproduced" if result.seed in self.audited else result.status


def _compared(
    rows: Sequence[ResultGroup], others: Sequence[ResultGroup], ranked: bool = True
) -> list[TableRow]:
    """Rows of one kind, compared among each other, the best mean first.

    An oracle and baselines are looked for among `others` too.
    """
    rows = named(rows)
    peers, task = [*rows, *others], rows[0].task if rows else TASKS["classes"]
    who = same_clients(rows)
    found = compare([client_headlines(row) for row in rows], task.gain, who)
    enough = [ranked and not row.reference and len(row.seeds) > 1 for row in rows]
    chosen = [at for at, wanted in enumerate(enough) if wanted]
    better = found.better(chosen)
    ordered = bool(better.any()) or len(chosen) == 1  # where nobody is better, there is no rank
    places = dict(zip(chosen, ranks(better), strict=True)) if ordered else {}
    ties = dict(zip(chosen, letters(better | better.T), strict=True))
    intervals = np.clip(found.intervals, *task.limits)  # no headline is beyond
    away = {row.config: departures(row.results[0].method) for row in rows}
    nearest: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: (away[row.config], row.name)):
        nearest.setdefault(row.method, row.config)
    entries = []
    for at, row in enumerate(rows):
        to_oracle, gain = distances(row, peers)
        entries.append(
            TableRow(
                name=row.name,
                results=row.results,
                nearest=nearest[row.method] == row.config,
                departs=away[row.config] > 0,
                interval=(float(intervals[at, 0]), float(intervals[at, 1])),
                to_oracle=to_oracle,
                gain=gain,
                rank=places.get(at),
                ties=ties.get(at, ""),
            )
        )
    return entries


def client_headlines(row: ResultGroup) -> dict[int, Floats]:
    """Headline of every client that has one, shape (n,), by seed; `refuse_mixed`: the same n."""
    found = {one.seed: one.clients.headline_values() for one in row.results}
    return {seed: values[~np.isnan(values)] for seed, values in found.items()}


def same_clients(rows: Iterable[ResultGroup]) -> dict[int, ClientIds] | None:
    """Who has these headlines, shape (n,), by seed of any row; None = each seed has others.

    Where more domains are there than take part, seeds draw some, and one id may be several clients
    of different seeds: these are independent, as without ids.
    """
    found: dict[int, ClientIds] = {}
    for one in (result for row in rows for result in row.results):
        if one.suite.get("partition", {}).get("name") not in SAME_CLIENTS:
            return None
        if one.seed not in found:
            count, tested = one.suite["clients"], np.array(one.clients.test) > 0
            late = count - len(tested)
            is_drawn = isinstance(one.suite.get("unseen"), float)  # else they are named
            order = np.array(late_ones_last(count, late if is_drawn else 0, one.seed))
            known = ~np.isnan(one.clients.headline_values())
            found[one.seed] = order[: len(tested)][tested][known]
    return found


def _printed(row: TableRow, numbers: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
    """The paper's numbers under the row's own name, or its method's for the nearest row."""
    published = numbers.get(row.name) or (numbers.get(row.method) if row.nearest else None) or {}
    return published if row.task.named(HEADLINE) in published else {}
