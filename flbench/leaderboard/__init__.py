"""The leaderboard: a pure function of a folder of result files. Imports no torch.

Rows of one table share the suite's fingerprint: same settings, same data set. Methods that are
told the true groups are shown, but not ranked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from flbench.errors import UserError
from flbench.result_files import read_results, read_skips
from flbench.results import Result

HEADER = (
    "rank",
    "method",
    "accuracy",
    "worst decile",
    "to oracle",
    "gain",
    "ARI",
    "groups",
    "MB/client",
    "seeds",
    "status",
)


@dataclass(frozen=True)
class Row:
    """One method with one set of parameters on one suite: its results over seeds."""

    name: str
    results: tuple[Result, ...]

    @property
    def reference(self) -> bool:
        """Whether it is shown for reference only: told the truth, shown test data, given it all."""
        plugins = self.results[0].method.plugins
        return any(p.uses_true_groups or p.paper_leak or p.pools_data for p in plugins)

    @property
    def told(self) -> bool:
        """Whether it is the oracle: one plugin, which is told the true groups."""
        plugins = self.results[0].method.plugins
        return len(plugins) == 1 and plugins[0].uses_true_groups

    @property
    def baseline(self) -> bool:
        """Whether it is what others must beat: training alone, or one model for all."""
        plugins = self.results[0].method.plugins
        return len(plugins) == 1 and plugins[0].baseline

    def column(self, name: str) -> list[float]:
        """A summary's number for every seed that has it."""
        values = (result.summary.get(name) for result in self.results)
        return [float(value) for value in values if value is not None]


def rows_of(results: Iterable[Result]) -> dict[str, list[Row]]:
    """Rows by table, the best mean accuracy first; results that cannot be compared never mix."""
    tables: dict[str, dict[tuple[str, str], list[Result]]] = {}
    for result in results:
        title = f"{result.suite['name']} on {result.dataset} [{result.fingerprint.suite}]"
        key = (result.method.name, result.fingerprint.config)
        tables.setdefault(title, {}).setdefault(key, []).append(result)
    found = {}
    for title, methods in sorted(tables.items()):
        rows = [
            Row(
                _label(group[0], [other[0] for other in methods.values()]),
                tuple(sorted(group, key=lambda result: result.seed)),
            )
            for group in methods.values()
        ]
        found[title] = sorted(rows, key=lambda row: (-mean(row.column("accuracy_mean")), row.name))
    return found


def unseen_columns(rows: Sequence[Row]) -> dict[str, str]:
    """Summary name -> heading of what is known about unseen clients; empty where there are none."""
    names = {"unseen_accuracy": "unseen", "unseen_accuracy_tuned": "unseen, tuned"}
    return names if any(row.column("unseen_accuracy") for row in rows) else {}


def _label(result: Result, others: Sequence[Result]) -> str:
    """The method's name, and whatever tells it from the other rows of the same name."""
    namesakes = [other for other in others if other.method.name == result.method.name]
    if len(namesakes) == 1:
        return result.method.name
    params = [other.method.params for other in namesakes]
    keys = sorted({key for table in params for key in table})
    telling = [key for key in keys if any(table.get(key) != params[0].get(key) for table in params)]

    def told(one: Result) -> str:
        return ", ".join(f"{key}={one.method.params.get(key)}" for key in telling)

    mine = told(result)
    if not mine or [told(other) for other in namesakes].count(mine) > 1:
        mine = ", ".join(filter(None, (mine, result.fingerprint.config)))
    return f"{result.method.name} ({mine})"


def refuse_mixed(results: Iterable[tuple[Path, Result]]) -> None:
    """Refuse results that one table cannot hold: same suite and seed, but not the same data.

    Raises:
        UserError: two files of a suite and seed differ in data, partition, initial weights or
            cohorts, or are the same method with the same parameters.
    """
    first: dict[tuple[str, int], tuple[Path, Result]] = {}
    rows: dict[tuple[str, str, int], Path] = {}
    for path, result in results:
        marks = result.fingerprint
        other_path, other = first.setdefault((marks.suite, result.seed), (path, result))
        for field in ("data", "partition", "initial_weights", "cohorts"):
            if getattr(marks, field) != getattr(other.fingerprint, field):
                raise UserError(
                    f"{path} and {other_path} differ in {field.replace('_', ' ')}, so they cannot"
                    " share a table; keep one of them"
                )
        twin = rows.setdefault((marks.suite, marks.config, result.seed), path)
        if twin != path:
            raise UserError(f"{path} and {twin} are the same row and seed; keep one of them")


def mean_std(values: Sequence[float], digits: int = 4, *, spread: bool = True) -> str:
    """`mean ± std` over seeds (ddof=1), the mean alone for one seed, `-` for none."""
    if not values:
        return "-"
    text = f"{mean(values):.{digits}f}"
    return f"{text} ± {stdev(values):.{digits}f}" if spread and len(values) > 1 else text


def distances(row: Row, rows: Sequence[Row]) -> tuple[str, str]:
    """How far a row is below the oracle, and above the best baseline (of two kinds or more).

    Over the seeds that both have; "-" where they are not in the table, or for themselves.
    """

    def apart(other: Row) -> float | None:
        theirs = {one.seed: float(one.summary["accuracy_mean"] or 0) for one in other.results}
        found = [
            float(one.summary["accuracy_mean"] or 0) - theirs[one.seed]
            for one in row.results
            if one.seed in theirs
        ]
        return mean(found) if found and other is not row else None

    gap = [apart(one) for one in rows if one.told]
    baselines = {one.results[0].method.name for one in rows if one.baseline}
    gain = [apart(one) for one in rows if one.baseline]
    known = [value for value in gain if value is not None]
    below = "-" if not gap or gap[0] is None else signed(-gap[0])
    worth = bool(known) and len(baselines) > 1 and not row.baseline
    return below, signed(min(known)) if worth else "-"


def signed(value: float) -> str:
    """Four decimals with their sign; nothing is +0.0000."""
    return f"{round(value, 4) + 0.0:+.4f}"


def page(folder: Path) -> str:
    """The leaderboard's markdown; the same bytes for the same folder."""
    files = list(read_results(folder))
    refuse_mixed(files)
    skips = list(read_skips(folder))
    lines = [
        "# Leaderboard",
        "",
        "Generated by `flbench leaderboard` from the files below `results/`; do not edit.",
        "Accuracy is the unweighted mean over clients of test accuracy of their personal models,"
        " mean ± sample standard deviation over seeds. Worst decile is the 10th percentile over"
        " clients. *Reference* rows were told the true groups, or given all data in one place, and"
        " are not ranked. *To oracle* is the mean's distance below the oracle's; *gain* its"
        " distance above the better of local-only and fedavg, which is what a method must be worth."
        " Unseen clients joined after the last round.",
    ]
    for title, rows in rows_of([result for _, result in files]).items():
        joined = unseen_columns(rows)
        suite = rows[0].results[0].suite
        paper = f" {suite['paper']}." if suite["paper"] else ""
        lines += [
            "",
            f"## {title}",
            "",
            f"{suite['clients']} clients, {suite['participation']:g} of them per round,"
            f" {suite['rounds']} rounds of {suite['local']['epochs']} local epochs,"
            f" {suite['model']['name']}; suite version {suite['version']}.{paper}",
            "",
            f"| {' | '.join((*HEADER[:-2], *joined.values(), *HEADER[-2:]))} |",
            f"|---:|---|{'---:|' * (7 + len(joined))}---|---|",
        ]
        ranked = [mean(row.column("accuracy_mean")) for row in rows if not row.reference]
        for row in rows:
            rank = 1 + sum(other > mean(row.column("accuracy_mean")) for other in ranked)
            seeds = ", ".join(str(result.seed) for result in row.results)
            status = ", ".join(sorted({result.status for result in row.results}))
            cells = [
                "reference" if row.reference else str(rank),
                row.name,
                mean_std(row.column("accuracy_mean")),
                mean_std(row.column("accuracy_worst_decile"), spread=False),
                *distances(row, rows),
                mean_std(row.column("ari"), 3, spread=False),
                mean_std(row.column("groups"), 1, spread=False),
                mean_std(row.column("mb_per_client"), 2, spread=False),
                *(mean_std(row.column(name)) for name in joined),
                seeds,
                status,
            ]
            lines.append(f"| {' | '.join(cells)} |")
        here = rows[0].results[0].fingerprint.suite
        reasons = {skip.reason for skip in skips if skip.suite_hash == here}
        for reason in sorted(reasons):
            lines += ["", f"Not defined here: {reason}."]
    return "\n".join(lines) + "\n"
