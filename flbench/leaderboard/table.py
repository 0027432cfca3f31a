"""Tables: all that is known about a suite on a data set, as data. Imports no torch.

A page, a picture and a tracker are made from the same `Table`; `plain()` is it as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel

from flbench.leaderboard.grouping import (
    Key,
    ResultGroup,
    distances,
    grouped,
    named,
    refuse_mixed,
    telling,
    title_of,
)
from flbench.leaderboard.statistics import Floats, compare, letters, ranks
from flbench.leaderboard.suite_info import command, departures, suite_of
from flbench.metrics import METRICS
from flbench.results.files import read_results, read_skips
from flbench.results.schema import Plugin, Result, Skip, Tuning
from flbench.suite import Suite


@dataclass(frozen=True)
class Table:
    """One suite on one data set with one set of settings.

    Attributes:
        title: "suite on data set [fingerprint]".
        suite: the suite's name.
        dataset: the data set's name.
        fingerprint: of the suite's settings.
        settings: the suite's settings.
        summary: one line on the installed suite; empty where it is not installed.
        command: what to type to run a method on it; empty where the installed suite differs.
        seeds: all seeds of its rows.
        rows: the best mean accuracy first.
        undefined: method and reason, where it is not defined.
        missing: methods that other tables hold and nobody ran here.
    """

    title: str
    suite: str
    dataset: str
    fingerprint: str
    settings: Mapping[str, Any]
    summary: str
    command: str
    seeds: tuple[int, ...]
    rows: tuple[TableRow, ...]
    undefined: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]

    @property
    def main(self) -> tuple[TableRow, ...]:
        """Rows that are neither tuned nor outdated."""
        return tuple(row for row in self.rows if not (row.tuning or row.outdated))

    @property
    def tuned(self) -> tuple[TableRow, ...]:
        """Rows whose parameters were searched for."""
        return tuple(row for row in self.rows if row.tuning and not row.outdated)

    @property
    def outdated(self) -> tuple[TableRow, ...]:
        """Stale rows."""
        return tuple(row for row in self.rows if row.outdated)

    @property
    def ranked(self) -> tuple[TableRow, ...]:
        """Those of `main` that have a rank."""
        return tuple(row for row in self.main if row.rank is not None)

    def plain(self) -> dict[str, Any]:
        """All of it but the result files' content, as JSON holds it."""
        told: dict[str, Any] = _plain(self)
        return told


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a field holds
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.name != "results"]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def tables(folder: Path) -> list[Table]:
    """Every table of a folder of result files, by suite, data set and fingerprint.

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
    folders = {
        (one.fingerprint.suite, one.fingerprint.config): path.parent.relative_to(folder).as_posix()
        for path, one in reversed(files)
    }
    methods = {skip.method.name for skip in skips}
    methods |= {result.method.name for _, result in files}
    newest = _newest(plugin for _, result in files for plugin in result.method.plugins)
    return [
        _table(key, groups.get(key, []), skipped.get(key, []), folders, newest, methods)
        for key in sorted({*groups, *skipped})
    ]


def _table(
    key: Key,
    rows: Sequence[ResultGroup],
    skips: Sequence[Skip],
    folders: Mapping[tuple[str, str], str],
    newest: Mapping[tuple[str, str], Version],
    methods: Iterable[str],
) -> Table:
    name, dataset, mark = key
    suite = suite_of(name, dataset)
    settings = rows[0].results[0].suite if rows else skips[0].suite
    seeds = tuple(sorted({seed for row in rows for seed in row.seeds}))
    stale = {row.config: why for row in rows if (why := _outdated(row, suite, newest))}
    printed = suite.printed.get(dataset, {}) if suite else {}
    facts = Facts(seeds, printed, {row.config: folders[mark, row.config] for row in rows}, stale)
    current = [row for row in rows if row.config not in stale]
    entries = entries_of([row for row in rows if row.config in stale], [], facts)
    for budget in sorted({row.budget for row in current}):
        kind = [row for row in current if row.budget == budget]
        here = {row.method for row in kind}
        others = [row for row in current if not row.budget and row.method not in here]
        entries += entries_of(kind, others, facts)
    here = {row.method for row in rows} | {skip.method.name for skip in skips}
    return Table(
        title=title_of(key),
        suite=name,
        dataset=dataset,
        fingerprint=mark,
        settings=settings,
        summary=suite.summary if suite else "",
        command=command(suite, settings, mark, max(seeds, default=0) + 1) if suite else "",
        seeds=seeds,
        rows=tuple(sorted(entries, key=lambda row: (-row.mean, row.name))),
        undefined=tuple(sorted({(skip.method.name, skip.reason) for skip in skips})),
        missing=tuple(sorted(set(methods) - here)),
    )


def _newest(plugins: Iterable[Plugin]) -> dict[tuple[str, str], Version]:
    """The highest version of every plugin, by distribution and name."""
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
class Printed:
    """What the suite's paper prints for a row.

    Attributes:
        accuracy: its mean, a share.
        std: its deviation over runs, where it has one.
        distance: our mean less the paper's.
    """

    accuracy: float
    std: float | None
    distance: float


@dataclass(frozen=True)
class TableRow:
    """One row of a table.

    Attributes:
        name: the method, and what tells it from the other rows of its name.
        method: the method alone.
        params: those parameters that tell it apart.
        default: whether it is its method's row nearest to the installed defaults.
        plugins: its plugins, with distribution and version.
        folder: its result files, below the results folder.
        results: the files' content; not part of `Table.plain()`.
        seeds: ascending.
        lacks: seeds that other rows of the table have and it has not.
        accuracies: accuracy of each of its seeds.
        mean: of the accuracies.
        std: their deviation (ddof=1); None for one seed.
        interval: 95 % interval of the mean, see `flbench.leaderboard.statistics`.
        metrics: name of each metric that some table has a column for -> its value of each seed
            that has one.
        seconds: wall time of a run, mean over seeds; None = not known.
        to_oracle: how far it is below the oracle, over common seeds.
        gain: how far it is above the better of training alone and one model for all.
        printed: the paper's number, if it has one.
        status: `self-reported` or `reproduced`, both where seeds differ; or `outdated`.
        reference: why it is not ranked; empty where it is.
        outdated: why it is stale; empty where it is not.
        tuning: how its parameters were found, if they were searched for.
        rank: among the rows of its kind (at defaults, or tuned with the same budget); None = not
            ranked.
        ties: letters that it shares with rows it cannot be told from.
    """

    name: str
    method: str
    params: Mapping[str, Any]
    default: bool
    plugins: tuple[Plugin, ...]
    folder: str
    results: tuple[Result, ...]
    seeds: tuple[int, ...]
    lacks: tuple[int, ...]
    accuracies: tuple[float, ...]
    mean: float
    std: float | None
    interval: tuple[float, float]
    metrics: Mapping[str, tuple[float, ...]]
    seconds: float | None
    to_oracle: float | None
    gain: float | None
    printed: Printed | None
    status: str
    reference: str
    outdated: str
    tuning: Tuning | None
    rank: int | None
    ties: str

    @property
    def told(self) -> bool:
        """Whether it is the oracle."""
        return ResultGroup(self.name, self.results).told

    @property
    def baseline(self) -> bool:
        """Whether it is what others must beat."""
        return ResultGroup(self.name, self.results).baseline


@dataclass(frozen=True)
class Facts:
    """What a table knows beside its rows.

    Attributes:
        seeds: all seeds of the table.
        printed: method -> name in a summary -> number that the paper prints on this data set.
        folders: fingerprint of a row -> its folder, below the results folder.
        stale: fingerprint of a row -> why it is outdated; only those that are.
    """

    seeds: tuple[int, ...]
    printed: Mapping[str, Mapping[str, float]]
    folders: Mapping[str, str]
    stale: Mapping[str, str]


def entries_of(
    rows: Sequence[ResultGroup], others: Sequence[ResultGroup], facts: Facts
) -> list[TableRow]:
    """Entries of rows that are ranked among each other, the best mean first.

    Args:
        rows: of one kind: at defaults, or tuned with one budget, or outdated (then no rank).
        others: rows beside them, where an oracle and baselines are looked for too.
    """
    rows = named(rows)
    peers = [*rows, *others]
    found = compare([_clients(row) for row in rows])
    ranked = [
        at for at, row in enumerate(rows) if not row.reference and row.config not in facts.stale
    ]
    among = np.ix_(ranked, ranked)
    places = dict(zip(ranked, ranks(found.better[among]), strict=True))
    ties = dict(zip(ranked, letters(found.separable[among]), strict=True))
    nearest: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: (departures(row.results[0].method), row.name)):
        nearest.setdefault(row.method, row.config)
    return [
        TableRow(
            name=row.name,
            method=row.method,
            params=telling(row, rows),
            default=nearest[row.method] == row.config,
            plugins=tuple(row.results[0].method.plugins),
            folder=facts.folders[row.config],
            results=row.results,
            seeds=row.seeds,
            lacks=tuple(seed for seed in facts.seeds if seed not in row.seeds),
            accuracies=tuple(row.column("accuracy_mean")),
            mean=mean(row.column("accuracy_mean")),
            std=stdev(row.column("accuracy_mean")) if len(row.seeds) > 1 else None,
            interval=(float(found.intervals[at, 0]), float(found.intervals[at, 1])),
            metrics={one.name: tuple(row.column(one.name)) for one in METRICS if one.tables},
            seconds=_mean([one.seconds["total"] for one in row.results if "total" in one.seconds]),
            to_oracle=distances(row, peers)[0],
            gain=distances(row, peers)[1],
            printed=_printed(row, nearest[row.method] == row.config, facts.printed),
            status="outdated"
            if row.config in facts.stale
            else ", ".join(sorted({result.status for result in row.results})),
            reference=row.reference,
            outdated=facts.stale.get(row.config, ""),
            tuning=row.results[0].tuning,
            rank=places.get(at),
            ties=ties.get(at, ""),
        )
        for at, row in enumerate(rows)
    ]


def _clients(row: ResultGroup) -> dict[int, Floats]:
    """Accuracy of every client, shape (N,), by seed."""
    return {
        one.seed: np.array(one.clients.correct) / np.array(one.clients.test) for one in row.results
    }


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _printed(
    row: ResultGroup, default: bool, numbers: Mapping[str, Mapping[str, float]]
) -> Printed | None:
    """The paper's number under the row's own name, or its method's for the row at defaults."""
    told = numbers.get(row.name) or (numbers.get(row.method) if default else None) or {}
    if "accuracy_mean" not in told:
        return None
    accuracy = told["accuracy_mean"]
    return Printed(accuracy, told.get("accuracy_std"), mean(row.column("accuracy_mean")) - accuracy)
