"""When a row was last run again, by which core, and whether its code has changed since.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from flbench.leaderboard.grouping import ResultGroup, cores_of
from flbench.leaderboard.table import Table, TableRow, cohort_epochs
from flbench.plugin.registry import entries
from flbench.plugin.source_inspection import loaded_source, source_hash
from flbench.results.audits import Audit, KnownAudits, elsewhere, read_audits
from flbench.results.schema import Result

DAYS = 30
"""Days before the last audit in which audits are among the last ones."""
CHANGED = "code changed since"
NETWORK = "network"
"""How the names of networks begin where hashes of sources have names."""


@cache
def installed_source(name: str) -> str:
    """Hash of the source of an installed plugin, as result files have it; "" = not known.

    Args:
        name: of the plugin, or `network NAME`.
    """
    kind, _, own = name.rpartition(" ")
    entry = entries("models" if kind == NETWORK else "methods").get(own)
    return source_hash(entry.module()) if entry else ""


def network_sources(suite: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the networks of a suite that are not in the core, whose digest covers its own."""
    found = entries("models")
    names = [str(model["name"]) for model in (suite["model"], *suite.get("further_models", ()))]
    outside = [found[one] for one in names if one in found and not found[one].is_core]
    return {f"{NETWORK} {one.name}": loaded_source(one.module()) for one in outside}


def is_current(sources: Mapping[str, str]) -> bool:
    """Whether the installed code has these sources; what is not known does not count."""
    pairs = [(source, installed_source(name)) for name, source in sources.items()]
    return all(one == other for one, other in pairs if one and other)


def with_audits(found: Iterable[Table], log: Path) -> list[Table]:
    """Tables whose rows say when they were last audited, and which seeds agreed.

    Args:
        found: the tables.
        log: what audits wrote; it need not be there.

    Raises:
        UserError: the log cannot be read.
    """
    found, audits = list(found), read_audits(log)
    results = (one for table in found for row in table.rows for one in row.results)
    known = KnownAudits.of(audits, results)
    current = newest_cores(audits)

    def audited(row: TableRow) -> TableRow:
        of_row = {one.seed: known.about(one) for one in row.results}
        whole = {seed: one for seed, (one, _) in of_row.items() if one is not None}
        parts = {seed: one for seed, (_, one) in of_row.items() if one is not None}
        work, counted = work_by_audits(row, whole)
        agreed = frozenset(seed for seed, audit in whole.items() if audit.agrees)
        said = last_audit(row, whole, parts)
        cores = {*cores_of(row.results), *(one.core for one in whole.values() if one.agrees)}
        old = bool(current) and cores.isdisjoint(current)
        return replace(
            row, last_audit=said, audited=agreed, work=work, counted=counted, old_core=old
        )

    return [replace(table, rows=tuple(map(audited, table.rows))) for table in found]


def newest_cores(audits: Sequence[Audit]) -> set[str]:
    """The cores of the last audits, within DAYS of the last that names its core; none before."""
    named = [(date.fromisoformat(one.date), one.core) for one in audits if one.core is not None]
    last = max((day for day, _ in named), default=date.min)
    return {core for day, core in named if (last - day).days <= DAYS}


def work_by_audits(row: TableRow, whole: Mapping[int, Audit]) -> tuple[float | None, bool]:
    """The work of a row, and whether it was counted: by its files, or by audits that agree.

    Args:
        row: a row.
        whole: seed -> last audit of all rounds, or that differed.
    """
    if row.counted:
        return row.work, True
    audits = [one for one in whole.values() if one.agrees]
    made = [one.trained_epochs for one in audits if one.trained_epochs is not None]
    return (median(made) / cohort_epochs(row), True) if made else (row.work, False)


def last_audit(row: ResultGroup, found: Mapping[int, Audit], parts: Mapping[int, Audit]) -> str:
    """What a row's audits say, in a few words; "" = nothing is known.

    Args:
        row: a row.
        found: seed -> last audit of all rounds, or that differed.
        parts: seed -> last audit of the first rounds, which agreed.
    """
    wrong = [seed for seed, audit in found.items() if not audit.agrees]
    said = []
    if wrong:
        last = max((found[seed] for seed in wrong), key=lambda audit: audit.date)
        seeds = ", ".join(map(str, wrong))
        how = _begins(wrong, found, parts) + _elsewhere(wrong, found, row.results)
        said.append(f"differs in seed {seeds}{how}, {_when(last)}")
    elif found:
        last = max(found.values(), key=lambda audit: audit.date)
        said.append(f"{len(found)} of {len(row.results)} seeds, {_when(last)}")
    elif parts:
        last = max(parts.values(), key=lambda audit: audit.date)
        rounds = f"first {last.rounds} of {row.results[0].suite['rounds']} rounds"
        said.append(f"{rounds} of {len(parts)} of {len(row.results)} seeds, {_when(last)}")
    if any(not is_current(_sources(result, found.get(result.seed))) for result in row.results):
        said.append(CHANGED)
    return "; ".join(said)


def _begins(wrong: Sequence[int], found: Mapping[int, Audit], parts: Mapping[int, Audit]) -> str:
    """That the first rounds of seeds that differ agree by the same code; "" = not of all."""
    same = all(seed in parts and parts[seed].sources == found[seed].sources for seed in wrong)
    if not same:
        return ""
    return f" after {min(parts[seed].rounds for seed in wrong)} rounds that agree"


def _elsewhere(wrong: Sequence[int], found: Mapping[int, Audit], results: Sequence[Result]) -> str:
    """Where seeds that differ were played, if not where their files were; "" = it is not known."""
    pairs = [(found[one.seed], one) for one in results if one.seed in wrong]
    if not all(elsewhere(*pair) for pair in pairs):
        return ""
    played = {audit.processor for audit, _ in pairs}
    files = {one.environment["processor"] for _, one in pairs}
    there, here = (", ".join(sorted(map(str, one))) for one in (played, files))
    return f" on {there} (computed on {here})"


def _sources(result: Result, audit: Audit | None) -> Mapping[str, str]:
    """The sources that last gave the numbers of a file: of its audit, else of its run."""
    own = {one.name: one.source for one in result.plugins}
    return {**own, **audit.sources} if audit is not None and audit.agrees else own


def _when(audit: Audit) -> str:
    by = f"core {audit.core}" if audit.core else f"flbench {audit.flbench}"
    return f"{audit.date}, {by}"


def counted(audits: Sequence[Audit]) -> list[Audit]:
    """The audits by the code that is installed: what came of other code is not known of this."""
    return [one for one in audits if is_current(one.sources)]
