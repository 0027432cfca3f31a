"""What a row of the web page opens to, as plain data: runs, files, plugins, papers, audits.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from statistics import fmean
from typing import Any
from urllib.parse import quote

from flbench.leaderboard.audited import installed_source
from flbench.leaderboard.grouping import cores_of, searched_for
from flbench.leaderboard.links import departs_of, installed_entry
from flbench.leaderboard.markdown import number
from flbench.leaderboard.table import TableRow
from flbench.metrics import HEADLINE
from flbench.plugin.method_info import method_info
from flbench.results.audits import Audit, content_digest, latest, rounds_of, run_key
from flbench.results.schema import Plugin, Result
from flbench.tasks import Task

NOT_NAMED = "one that older files do not name"
POINTS = 60
"""Points of a curve at most."""
AUDITS = ("seed", "date", "outcome", "rounds", "flbench", "core", "torch", "code")
"""Headings of its audits."""


def runs_of(task: Task) -> tuple[str, ...]:
    """Headings of the runs of a row."""
    rest = ("worst decile", "seconds", "status", "file", "code", "machine")
    return ("seed", task.heading, *rest)


def details(row: TableRow, results: str, audits: Mapping[str, Sequence[Audit]]) -> dict[str, Any]:
    """What a row opens to; keys without content are left out.

    Args:
        row: a row.
        results: the way from the page to the folder of results.
        audits: run (`run_key`) -> its audits, the oldest first.

    Returns:
        `notes`: sentences. `folder`: of its files, below that of results. `params`: pairs of a
        name and a value. `plugins`: a dictionary for each, with `name`, `package`, `source`,
        `paper`, `departs`. `links`: pairs of a text and a target. `runs`: cells as `runs_of` names
        them. `files`: the target of the file of each run. `audits`: cells as `AUDITS` names them.
        `curve`: pairs of a round and a headline.
    """
    found = {
        "notes": [*_notes(row), *_cores(row, audits)],
        "folder": row.folder,
        "params": [[name, _plain(value)] for name, value in sorted(row.params.items())],
        "plugins": [_plugin(one) for one in row.plugins],
        "links": [list(one) for one in row.links],
        "runs": [_run(row, one, file) for one, file in zip(row.results, row.files, strict=True)],
        "files": [f"{quote(results)}/{quote(file)}" for file in row.files],
        "audits": [
            _audit(result, audit)
            for result in row.results
            for audit in audits.get(run_key(result), ())
        ],
        "curve": curve(row),
    }
    return {name: value for name, value in found.items() if value}


def _notes(row: TableRow) -> list[str]:
    """What is special about a row."""
    found = []
    if row.reference:
        found.append(f"Shown for reference: {row.reference}.")
    if row.outdated:
        found.append(f"Outdated: {row.outdated}.")
    if row.tuning:
        seeds = ", ".join(map(str, row.tuning.seeds))
        found.append(
            f"Tuned: the best of {row.tuning.tried} {searched_for(row)} by {row.tuning.score} on"
            f" seeds {seeds}."
        )
    if row.lacks:
        found.append(f"Other rows also have seeds {', '.join(map(str, row.lacks))}.")
    if row.uneven:
        found.append(
            "Uneven seeds: some are far from the others, so that the interval holds the mean of"
            " all seeds less often than it says."
        )
    if row.reads:
        found.append(f"Reads of clients, at no byte: {', '.join(row.reads)}.")
    changed = {one.plugin for result in row.results for one in result.source_changes or ()}
    if changed:
        found.append(f"Changed within a run: {', '.join(sorted(changed))}.")
    return found


def _cores(row: TableRow, audits: Mapping[str, Sequence[Audit]]) -> list[str]:
    """By which cores a row was computed and last run again, and with which its seconds were."""
    of_row = (one for result in row.results for one in audits.get(run_key(result), ()))
    known = latest(of_row, rounds_of(row.results))
    whole = [known.get((run_key(one), content_digest(one))) for one in row.results]
    agreed = [one for one in whole if one is not None and one.agrees]
    last = max(agreed, key=lambda audit: audit.date, default=None)
    if not cores_of(row.results) and (last is None or last.core is None):
        return []
    said = [f"computed by {_named(row.results)}"]
    if last is not None:
        said.append(f"last replayed by {last.core or NOT_NAMED}, {last.date}")
    if row.timed:
        said.append(f"seconds measured with {_named(row.timed)}")
    return [f"Core: {'; '.join(said)}."]


def _named(results: Sequence[Result]) -> str:
    """The cores of some files, and that there are some which name none."""
    lacking = any("core" not in one.environment for one in results)
    return " and ".join([*cores_of(results), *([NOT_NAMED] if lacking else [])])


def _plain(value: object) -> str:
    """A parameter's value as text.

    Example:
        >>> _plain(True), _plain(None), _plain(0.1), _plain([1, 2])
        ('true', 'none', '0.1', '1, 2')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value)


def _plugin(plugin: Plugin) -> dict[str, str]:
    found = {
        "name": plugin.name,
        "package": f"{plugin.distribution} {plugin.version}",
        "source": plugin.source,
        "paper": paper_of(plugin.name, plugin.distribution),
        "departs": departs_of(plugin.name, plugin.distribution),
    }
    return {name: text for name, text in found.items() if text}


@cache
def paper_of(name: str, distribution: str) -> str:
    """The paper of an installed plugin, as its source gives it; "" where it is not known."""
    entry = installed_entry(name, distribution)
    return method_info(entry).source if entry else ""


def _run(row: TableRow, result: Result, file: str) -> list[str]:
    worst = result.summary.get(row.task.named("accuracy_worst_decile"))
    known = result.environment
    count = known.get("threads", "")
    threads = f"{count} thread{'' if count == '1' else 's'}" if count else ""
    parts = [
        known.get("device", ""),
        known.get("processor") or known.get("machine", ""),
        known.get("executor", ""),
        threads,
    ]
    named = ("core", "python", "torch")
    versions = [f"{name} {known[name]}" for name in named if name in known]
    return [
        str(result.seed),
        number(result.summary.get(row.task.named(HEADLINE))),
        number(worst),
        number(result.seconds.get("total"), 1),
        row.status_of(result),
        PurePosixPath(file).name,
        _code({one.name: one.source for one in result.plugins}),
        ", ".join(filter(None, [*parts, *versions])) or "-",
    ]


def _code(sources: Mapping[str, str]) -> str:
    """Hashes of sources, and whether the installed code is another."""
    codes = []
    for name, source in sources.items():
        installed = installed_source(name)
        other = " (installed: another)" if source and installed and installed != source else ""
        codes.append(f"{source or '-'}{other}")
    return ", ".join(codes) or "-"


def _audit(result: Result, audit: Audit) -> list[str]:
    how = f": {audit.how}" if audit.how else ""
    former = "" if audit.digest == content_digest(result) else " (of an earlier file)"
    return [
        str(result.seed),
        audit.date,
        f"{audit.outcome}{how}{former}",
        str(audit.rounds) if audit.whole else f"the first {audit.rounds}",
        audit.flbench,
        audit.core or "-",
        audit.torch,
        ", ".join(audit.sources.values()) or "-",
    ]


def curve(row: TableRow) -> list[tuple[int, float]]:
    """The headline by round, mean over the seeds that were measured then, thinned out evenly."""
    found = [one.curves.get(row.task.headline, []) for one in row.results]
    rounds = range(max(map(len, found), default=0))
    known = ((at + 1, [c[at] for c in found if at < len(c)]) for at in rounds)
    values = ((at, [v for v in column if v is not None]) for at, column in known)
    points = [(at, round(fmean(column), 4)) for at, column in values if column]
    step = -(-len(points) // POINTS) if points else 1
    return [*points[:-1:step], points[-1]] if points else []
