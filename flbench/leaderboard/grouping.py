"""Rows: results over seeds, grouped by what they may be compared with. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from flbench.errors import UserError
from flbench.metrics import (
    HEADLINE,
    Floats,
    Measurements,
    Metric,
    TablePlace,
    Value,
    columns_of,
    computed,
)
from flbench.results.difference import SHARED_MARKS
from flbench.results.schema import Plugin, Result, Tuning
from flbench.tasks import Task

OF_SCALES = frozenset(("feature sums", "feature scale", "target sums", "target scale"))
"""Parts of the traffic by which samples are scaled: who trains alone takes part in that as well."""
ATTACKERS = "attackers"
"""The parameter of a method that is an attack (`flbench.attacks.attackers`)."""


def cores_of(results: Iterable[Result]) -> list[str]:
    """Digests of the cores that computed some files, sorted; older files name none."""
    return sorted({*filter(None, (one.environment.get("core") for one in results))})


def _seconds(results: Sequence[Result]) -> float:
    """Wall time of a run, mean over files that have it."""
    return mean(one.seconds["total"] for one in results)


def _mean_headline(result: Result) -> float:
    """Mean headline over clients, of the model that serves them."""
    found = result.summary[result.headline.named(HEADLINE)]
    assert found is not None, "every result file has one"
    return float(found)


@dataclass(frozen=True)
class ResultGroup:
    """One method with one set of parameters on one suite: its results over seeds."""

    name: str
    results: tuple[Result, ...]

    @property
    def reference(self) -> str:
        """Why it is shown for reference only; empty where it is ranked."""
        if any(plugin.uses_true_groups for plugin in self.plugins):
            return "given the true groups"
        if any(plugin.paper_leak for plugin in self.plugins):
            return "uses what its paper leaks from the test data"
        if any(plugin.pools_data for plugin in self.plugins):
            return "has all data in one place"
        if len(self.plugins) == 1 and ATTACKERS in self.results[0].method.params:
            return "an attack: some of its clients harm the others"
        exchanged = any(
            count
            for one in self.results
            for way in one.bytes.values()
            for part, count in way.items()
            if part not in OF_SCALES
        )
        alone = self.baseline and not exchanged
        return "trains alone, nothing is exchanged" if alone else ""

    @property
    def reads(self) -> tuple[str, ...]:
        """What its hooks read of clients that no byte was counted for; older files say nothing."""
        return tuple(sorted({what for one in self.results for what in one.reads or ()}))

    @property
    def is_oracle(self) -> bool:
        """Whether it is the oracle: one plugin, which uses the true groups."""
        return len(self.plugins) == 1 and self.plugins[0].uses_true_groups

    @property
    def is_idle_oracle(self) -> bool:
        """Whether it is an oracle whose run ended before it used the true groups."""
        return self.is_oracle and self.mean_of("ari") not in (None, 1)

    @property
    def baseline(self) -> bool:
        """Whether it is what others must beat: training alone, or one model for all."""
        return len(self.plugins) == 1 and self.plugins[0].baseline

    @property
    def one_for_all(self) -> bool:
        """Whether it is the baseline of one model for all (FedAvg), the anchor of comparisons."""
        return self.baseline and not self.reference

    @property
    def method(self) -> str:
        """Its method's name."""
        return self.results[0].method.name

    @property
    def params(self) -> dict[str, Any]:
        """Its method's parameters."""
        return self.results[0].method.params

    @property
    def plugins(self) -> list[Plugin]:
        """Its plugins, with distribution and version."""
        return self.results[0].method.plugins

    @property
    def config(self) -> str:
        """Fingerprint of suite, method and parameters."""
        return self.results[0].fingerprint.config

    @property
    def tuning(self) -> Tuning | None:
        """How its parameters were found, if they were searched for."""
        return self.results[0].tuning

    @property
    def budget(self) -> int:
        """Sets of parameters that were tried to find its own; 0 = it was not tuned."""
        return self.tuning.budget if self.tuning else 0

    @property
    def search(self) -> str:
        """By which search its settings were found, such as `tuned, budget 12`; "" = by none.

        Rows of one search may be ranked among themselves: what was searched for, and the budget,
        are the same.
        """
        if self.tuning is None:
            return ""
        rate = "" if self.tuning.lr is None else ", learning rate"
        both = " and parameters" if self.tuning.both else ""
        return f"tuned, budget {self.budget}{rate}{both}"

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Its seeds, ascending."""
        return tuple(result.seed for result in self.results)

    @property
    def task(self) -> Task:
        """What its results predict, and the headline that they are ranked by."""
        return self.results[0].headline

    @cached_property
    def headlines(self) -> list[float]:
        """Mean headline (accuracy, for classes) of each seed."""
        return [_mean_headline(one) for one in self.results]

    def by_seed(self) -> dict[int, float]:
        """Mean headline by seed."""
        return dict(zip(self.seeds, self.headlines, strict=True))

    @cached_property
    def mean(self) -> float:
        """Mean of the headlines."""
        return mean(self.headlines)

    @property
    def order(self) -> tuple[float, str]:
        """What sorts rows of a table: the best mean first, then by name."""
        return -self.task.score(self.mean), self.name

    @property
    def timed(self) -> list[Result]:
        """The seeds whose seconds are shown: those on the device that most of them were run on.

        Of devices with equally many seeds it is the faster one.
        """
        found: dict[str, list[Result]] = {}
        for one in self.results:
            if "total" in one.seconds:
                device = one.environment.get("device", "").partition(":")[0]
                found.setdefault(device, []).append(one)
        return min(found.values(), key=lambda some: (-len(some), _seconds(some)), default=[])

    @property
    def seconds(self) -> float | None:
        """Wall time of a run, mean over the seeds that are `timed`."""
        return _seconds(self.timed) if self.timed else None

    @property
    def energy(self) -> float | None:
        """Energy of a run in watt-hours, mean over the seeds that have it."""
        known = [one.energy.total for one in self.results if one.energy is not None]
        return mean(known) if known else None

    @cached_property
    def _columns(self) -> dict[str, list[float]]:
        """The columns that were asked for, by name."""
        return {}

    @cached_property
    def _outcomes(self) -> list[Measurements]:
        return [result.outcome() for result in self.results]

    def _metric(self, at: int, name: str) -> Value:
        summary = self.results[at].summary
        if name in summary:
            return summary[name]
        return computed(self._outcomes[at], only=(name,)).get(name)

    def client_metric(self, label: str) -> dict[int, Floats]:
        """A metric that was asked for, of every client, shape (N,), by seed; NaN = undefined."""
        found = {one.seed: (one.client_metrics or {}).get(label) for one in self.results}
        return {
            seed: np.array(one.values, dtype=np.float64)
            for seed, one in found.items()
            if one is not None
        }

    def column(self, name: str) -> list[float]:
        """A metric for every seed that has it; computed where a file is older than the metric."""
        if name not in self._columns:
            values = [self._metric(at, name) for at in range(len(self.results))]
            self._columns[name] = [float(value) for value in values if value is not None]
        return self._columns[name]

    def mean_of(self, name: str) -> float | None:
        """Mean of a metric over the seeds that have it; None where no seed has."""
        values = self.column(name)
        return mean(values) if values else None


def searches(rows: Iterable[ResultGroup]) -> list[str]:
    """The searches of some rows, those with the least budget first; "" for rows of none."""
    found = {row.search: row.budget for row in rows}
    return sorted(found, key=lambda search: (found[search], search))


def searched_for(row: ResultGroup) -> str:
    """What there were several of, of which a tuned row has the best."""
    if row.tuning is None or row.tuning.lr is None:
        return "sets of parameters"
    return "learning rates with parameters" if row.tuning.both else "learning rates"


def shown_metrics(place: TablePlace, rows: Sequence[ResultGroup]) -> list[Metric]:
    """The metrics that have a column for these rows; an optional one only where a row has it."""
    return [
        one
        for one in columns_of(place, asked_of(rows), rows[0].task.name if rows else "classes")
        if not one.optional or any(row.column(one.name) for row in rows)
    ]


def asked_of(rows: Sequence[ResultGroup]) -> dict[str, bool | None]:
    """Metrics beside accuracy that results of rows have: label -> whether higher is better."""
    found = [one.client_metrics or {} for row in rows for one in row.results]
    labels = sorted({label for metrics in found for label in metrics})
    first = {label: next(m[label] for m in found if label in m) for label in labels}
    return {label: one.higher_is_better for label, one in first.items()}


Key = tuple[str, str, str]
"""What rows of one table share: suite, data set, fingerprint of the suite's settings."""


def title_of(key: Key) -> str:
    """What a table is called.

    Example:
        >>> title_of(("rotated", "rotated:digits", "01234567"))
        'rotated on rotated:digits [01234567]'
    """
    return f"{key[0]} on {key[1]} [{key[2]}]"


def grouped(results: Iterable[Result]) -> dict[Key, list[ResultGroup]]:
    """Rows by table, each under its method's name alone."""
    tables: dict[Key, dict[tuple[str, str], list[Result]]] = {}
    for result in results:
        key = (str(result.suite["name"]), result.dataset, result.fingerprint.suite)
        row = (result.method.name, result.fingerprint.config)
        tables.setdefault(key, {}).setdefault(row, []).append(result)
    return {
        key: [
            ResultGroup(name, tuple(sorted(group, key=lambda result: result.seed)))
            for (name, _), group in sorted(rows.items())
        ]
        for key, rows in sorted(tables.items())
    }


def named(rows: Sequence[ResultGroup]) -> list[ResultGroup]:
    """The same rows under distinct names, the best mean first."""
    found = [ResultGroup(_label(row, rows), row.results) for row in rows]
    return sorted(found, key=lambda row: row.order)


def rows_of(results: Iterable[Result]) -> dict[str, list[ResultGroup]]:
    """Rows by table, the best mean first; results that cannot be compared never mix."""
    return {title_of(key): named(rows) for key, rows in grouped(results).items()}


def _differing(row: ResultGroup, rows: Sequence[ResultGroup]) -> dict[str, Any]:
    """The parameters in which a row differs from others of its method."""
    params = [other.params for other in rows if other.method == row.method]
    keys = sorted({key for table in params for key in table})
    return {
        key: row.params.get(key)
        for key in keys
        if any(table.get(key) != params[0].get(key) for table in params)
    }


def _label(row: ResultGroup, rows: Sequence[ResultGroup]) -> str:
    """The method's name, its budget if it was tuned, and the parameters in which it differs."""
    details = [f"tuned, budget {row.budget}"] if row.search else []
    if row.tuning is not None and row.tuning.lr is not None:
        details.append(f"lr={row.tuning.lr:g}{' and parameters' * row.tuning.both}")
    alike = [other for other in rows if (other.method, other.search) == (row.method, row.search)]
    if len(alike) > 1:
        mine = _differing(row, alike)
        details += [f"{key}={value}" for key, value in mine.items()]
        if [_differing(other, alike) for other in alike].count(mine) > 1:
            details.append(row.config)
    return f"{row.method} ({', '.join(details)})" if details else row.method


def refuse_mixed(results: Iterable[tuple[Path, Result]]) -> None:
    """Refuse results that one table cannot hold: same suite and seed, but not the same data.

    Raises:
        UserError: two files differ in what must agree, or one has clients that were not tested.
    """
    first: dict[tuple[object, ...], tuple[Path, object]] = {}
    for path, result in results:
        aside = set(result.not_judged)
        judged = [n for at, n in enumerate(result.clients.test) if at not in aside]
        if min(judged, default=0) < 1:
            raise UserError(
                f"{path}: 'clients.test': expected at least one test sample of each client"
            )
        for key, content, what in _must_agree(path, result):
            other_path, other = first.setdefault(key, (path, content))
            if other != content:
                raise UserError(f"{path} and {other_path} {what}; keep one of them")


def uneven_marks(rows: Sequence[ResultGroup]) -> list[str]:
    """What rows of one table do not share though it is drawn by the seed alone, with the seeds.

    Such as `partition (seeds 0, 1)`: a plugin does not draw from the generator that it is given.
    """
    found: dict[str, list[int]] = {}
    for seed in sorted({seed for row in rows for seed in row.seeds}):
        marks = [one.fingerprint for row in rows for one in row.results if one.seed == seed]
        for name in SHARED_MARKS:
            if len({getattr(one, name) for one in marks}) > 1:
                found.setdefault(name.replace("_", " "), []).append(seed)
    return [
        f"{name} (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})"
        for name, seeds in found.items()
    ]


def _must_agree(path: Path, result: Result) -> Iterator[tuple[tuple[object, ...], object, str]]:
    """What is equal in all files that have the same key, and what is said where it is not."""
    marks, method = result.fingerprint, result.method
    of_seed = (marks.suite, result.seed)
    for name in SHARED_MARKS:
        what = f"differ in {name.replace('_', ' ')}, so they cannot share a table"
        key = (marks.suite,) if name == "data" else of_seed
        yield (name, *key), getattr(marks, name), what
    for name, mark, content in (
        ("suite", marks.suite, {**result.suite, "paper": ""}),
        ("config", marks.config, (method.name, method.params, result.tuning)),
    ):
        what = f"have the same 'fingerprint.{name}' but are not the same"
        yield (name, mark), content, what
    yield ("row", marks.config, *of_seed), path, "are the same row and seed"
    what = "differ in 'summary.target', so they cannot share a table"
    yield ("target", marks.suite), result.summary.get("target"), what
    what = "differ in their number of clients, so they cannot share a table"
    yield ("clients", marks.suite), len(result.clients.test), what
    what = "differ in their task, so they cannot share a table"
    yield ("task", marks.suite), result.task, what
    if result.task is not None:
        missing = np.isnan(result.clients.headline_values()).tolist()
        what = "differ in the clients whose headline is null, so they cannot share a table"
        yield ("values", *of_seed), missing, what


def mean_std(values: Sequence[float], digits: int = 4, *, spread: bool = True) -> str:
    """`mean ± std` over seeds (ddof=1), the mean alone for one seed, `-` for none."""
    if not values:
        return "-"
    text = f"{mean(values):.{digits}f}"
    return f"{text} ± {stdev(values):.{digits}f}" if spread and len(values) > 1 else text


Column = tuple[str, bool, Callable[[Any], str]]
"""Heading, whether it holds words, and the cell of a row: a `ResultGroup`, or one of a board."""
METHOD: Column = ("method", True, lambda row: str(row.name))


def metric_column(metric: Metric, digits: int | None = None) -> Column:
    """A metric's column: mean over the seeds that have it, and deviation where it shows one.

    Where some have it and some do not, as a target that was not reached, it says how many have.

    Args:
        metric: which.
        digits: decimals; None = its own.
    """
    places = metric.digits if digits is None else digits

    def shown(row: ResultGroup) -> str:
        values = row.column(metric.name)
        few = f" ({len(values)} of {len(row.results)})" if len(values) < len(row.results) else ""
        return mean_std(values, places, spread=metric.spread) + (few if values else "")

    return (metric.heading, False, shown)


def cells_of(
    rows: Sequence[ResultGroup], columns: Sequence[Column]
) -> tuple[list[tuple[str, bool]], list[list[str]]]:
    """A table as texts: headings, each with whether its column holds words, and cells of rows."""
    headings = [(heading, words) for heading, words, _ in columns]
    return headings, [[of(row) for *_, of in columns] for row in rows]


def distances(row: ResultGroup, rows: Sequence[ResultGroup]) -> tuple[float | None, float | None]:
    """How much worse a row is than the oracle, and better than the best baseline (of two or more).

    Over the seeds that both have; None where they are not in the table, or for themselves.
    """

    def gain_over(other: ResultGroup) -> float | None:
        theirs, gain = other.by_seed(), row.task.gain
        found = [gain(own, theirs[seed]) for seed, own in row.by_seed().items() if seed in theirs]
        return mean(found) if found and other is not row else None

    oracle = next((gain_over(one) for one in rows if one.is_oracle), None)
    gains = [gain_over(one) for one in rows if one.baseline]
    known = [gain for gain in gains if gain is not None]
    kinds = {one.method for one in rows if one.baseline}
    worth = bool(known) and len(kinds) > 1 and not row.baseline
    return None if oracle is None else -oracle, min(known) if worth else None


def signed(value: float | None) -> str:
    """Four decimals with their sign; nothing is +0.0000, None is `-`."""
    return "-" if value is None else f"{round(value, 4) + 0.0:+.4f}"
