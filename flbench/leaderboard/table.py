"""Tables: all that is known about a suite on a data set, as data. Imports no torch.

A page, a picture and a tracker are made from the same `Table`; `plain()` is it as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel

from flbench.leaderboard.entry import Entry, Facts, entries_of
from flbench.leaderboard.installed import command, suite_of
from flbench.leaderboard.rows import Key, Row, grouped, refuse_mixed, title_of
from flbench.results.files import read_results, read_skips
from flbench.results.schema import Plugin, Skip
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
    rows: tuple[Entry, ...]
    undefined: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]

    @property
    def main(self) -> tuple[Entry, ...]:
        """Rows that are neither tuned nor outdated."""
        return tuple(row for row in self.rows if not (row.tuning or row.outdated))

    @property
    def tuned(self) -> tuple[Entry, ...]:
        """Rows whose parameters were searched for."""
        return tuple(row for row in self.rows if row.tuning and not row.outdated)

    @property
    def outdated(self) -> tuple[Entry, ...]:
        """Stale rows."""
        return tuple(row for row in self.rows if row.outdated)

    @property
    def ranked(self) -> tuple[Entry, ...]:
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
    rows: Sequence[Row],
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


def _outdated(row: Row, suite: Suite | None, newest: Mapping[tuple[str, str], Version]) -> str:
    """Why a row is stale; empty where it is not."""
    own = row.results[0].suite.get("version", 0)
    if suite and own < suite.version:
        return f"suite version {own}; {suite.version} is installed"
    for plugin in (plugin for one in row.results for plugin in one.method.plugins):
        best = newest[plugin.distribution, plugin.name]
        if _version(plugin) < best:
            return f"{plugin.name} {plugin.version}; there are results of {best}"
    return ""
