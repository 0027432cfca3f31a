"""Claims: that one method of a table or of a study is ahead of others, tested on our results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf, isnan
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flbench.errors import BadParameter
from flbench.leaderboard.statistics import estimate
from flbench.metrics import CONVERGED, HEADLINE, JUDGED, Floats
from flbench.papers.paper import Claim, Lead, Paper
from flbench.papers.reproduction import (
    ROUNDING,
    TO_FINAL,
    findings,
    is_settled,
    number_of,
    planned,
)
from flbench.plugin.registry import find, load_entry
from flbench.results.files import read_in_place
from flbench.results.schema import Result
from flbench.run.other_versions import file_of_any_version
from flbench.sweeps.request import RunRequest
from flbench.sweeps.study import grid_rows, read_grid
from flbench.tasks import TASKS

if TYPE_CHECKING:
    from flbench.terminal.console import SweepProgress

ResultPlace = tuple[str, str]
"""A suite and a data set."""
ByMethod = Mapping[str, Sequence[Result]]
"""Method -> its results over seeds."""
PaperResults = Mapping[ResultPlace, ByMethod]
"""The results of a table or a study."""
SHARES = ("accuracy_", "unseen_accuracy")
"""How names of accuracies begin."""
COLUMNS = (
    "suite", "data set", "method", "best other", "ahead by", "95 % interval", "published", "seeds",
    "verdict",
)  # fmt: skip
NUMBERS = ("ahead by", "95 % interval", "published")
"""Those that hold numbers."""


@dataclass(frozen=True)
class FoundLead:
    """How far a method is ahead of the best of the others, in one suite and data set.

    Attributes:
        best: of the others that have the number in most seeds, that with the best mean.
        by: mean of the method less that of `best`, or the reverse where the smaller is ahead, over
            the seeds in which both have the number; None = in none.
        never: in how many seeds the method never has the number.
        seeds: how many all of them have.
        ahead: in how many of these the method is ahead of all others.
        published: by how much it is ahead in the paper; None = the paper does not say.
        missing: others without a result.
        interval: 95 % interval of `by` (`Estimate.shown`); None = clients have no such number.
        lacks: what is said of a run without the number.
    """

    place: ResultPlace
    method: str
    best: str
    by: float | None
    never: int
    seeds: int
    ahead: int
    published: float | None
    missing: tuple[str, ...]
    interval: tuple[float, float] | None = None
    lacks: str = "not reached"

    @property
    def verdict(self) -> str:
        """In words; of what was compared, and what was not.

        Means over clients are judged by their interval, other numbers by each seed.
        """
        if self.never:
            said = f"{self.lacks} in {self.never} of {self.seeds}"
        elif self.by is None:
            said = "holds: no other reaches it"
        elif abs(self.by) <= ROUNDING and self.interval in (None, (0, 0)):
            said = "level"
        elif self.interval is not None:
            low, high = self.interval
            said = "holds" if low > 0 else "does not hold" if high < 0 else "not separable"
        elif self.by < 0:
            said = "does not hold"
        else:
            said = "holds" if self.ahead == self.seeds else "holds for the means alone"
        return said + (f"; without {', '.join(self.missing)}" if self.missing else "")


def leads_found(
    lead: Lead, found: PaperResults, column: str, domains: Sequence[str] = ()
) -> Iterator[FoundLead]:
    """The lead in every suite and data set that has results of the method and of another.

    Args:
        found: the results of the lead's table or study.
        column: what is compared, a name in a result's summary, or the accuracy of a domain.
        domains: of the data set (`PaperTable.domains`).
    """
    for place, rows in found.items():
        if not _about(lead.suites, place[0]) or not _about(lead.datasets, place[1]):
            continue
        runs = {
            method: {one.seed: one for one in rows.get(method, ())}
            for method in (lead.method, *lead.over)
        }
        numbers = (
            _rounds_to_common(lead, runs)
            if lead.common
            else {
                method: {seed: _number(one, column, domains) for seed, one in found.items()}
                for method, found in runs.items()
            }
        )
        others = [name for name in lead.over if numbers[name]]
        if not numbers[lead.method] or not others:
            continue
        seeds = sorted(set.intersection(*(set(numbers[name]) for name in (lead.method, *others))))
        if seeds:
            missing = tuple(name for name in lead.over if name not in others)
            kept = {
                name: [numbers[name][seed] for seed in seeds] for name in (lead.method, *others)
            }
            one = _found(lead, place, kept, missing)
            mine, best = ([runs[name][seed] for seed in seeds] for name in (lead.method, one.best))
            yield replace(
                one,
                interval=None if lead.common or one.never else lead_interval(mine, best, column),
                lacks="not final" if column.endswith(TO_FINAL) else one.lacks,
            )


def lead_interval(
    mine: Sequence[Result], others: Sequence[Result], column: str
) -> tuple[float, float] | None:
    """95 % interval of the mean by which one method is ahead of another, over clients and seeds.

    Of one or two seeds it is over their clients alone.

    Args:
        mine: results of one method, by seed.
        others: of the other, the same seeds.
        column: a name in their summaries.

    Returns:
        None where the number is no mean over clients, or there is one client.
    """
    differences = []
    for one, other in zip(mine, others, strict=True):
        ours, theirs = client_values(one, column), client_values(other, column)
        if ours is None or theirs is None or len(ours) != len(theirs):
            return None
        gains: Floats = TASKS[one.task or "classes"].gain(ours, theirs)
        differences.append(gains[~np.isnan(gains)])
    if not all(map(len, differences)):
        return None
    low, high = estimate(differences).shown.tolist()
    return None if isnan(low) else (low, high)


def client_values(result: Result, column: str) -> Floats | None:
    """Each client's number behind a mean of the summary, shape (n,); None = it is no such mean."""
    task = TASKS[result.task or "classes"]
    if column == task.named(HEADLINE):
        return result.clients.headline_values()
    if column == task.named(JUDGED["own"]):
        return result.outcome().own_headline_values() if result.own else None
    known = result.unseen.headline_values(task.name) if result.unseen else {}
    return known.get(column)


def _number(one: Result, column: str, domains: Sequence[str]) -> float | None:
    """A number of a result; None if it has none, or a run of more rounds may have another."""
    if column.endswith(TO_FINAL) and not is_settled(one):
        return None
    return number_of(one, column, domains)


def _rounds_to_common(
    lead: Lead, runs: Mapping[str, Mapping[int, Result]]
) -> dict[str, dict[int, float | None]]:
    """First round in which each run reaches the highest final accuracy of the others' runs.

    Of a seed; less `CONVERGED`, as in `rounds_to_final`. None = never.
    """
    levels: dict[int, float] = {}
    for method in lead.over:
        for seed, one in runs[method].items():
            final = [value for value in one.curves["accuracy"] if value is not None][-1:]
            levels[seed] = max([levels.get(seed, 0.0), *final])
    return {
        method: {
            seed: _first(one.curves["accuracy"], levels[seed] - CONVERGED)
            for seed, one in found.items()
            if seed in levels
        }
        for method, found in runs.items()
    }


def _first(curve: Sequence[float | None], level: float) -> float | None:
    """The first round, from 1, that reaches a level; None = never."""
    reached = (at for at, value in enumerate(curve, 1) if value is not None and value >= level)
    return next(reached, None)


def _about(names: Sequence[str], name: str) -> bool:
    """Whether a name is one of some; of none all are."""
    return not names or name in names


def _found(
    lead: Lead,
    place: ResultPlace,
    numbers: Mapping[str, Sequence[float | None]],
    missing: tuple[str, ...],
) -> FoundLead:
    """One lead from the numbers of all methods over the same seeds; None = never reached."""
    sign = -1.0 if lead.smaller or lead.common else 1.0
    scores = {
        name: [-inf if one is None else sign * one for one in values]
        for name, values in numbers.items()
    }
    mine, others = scores.pop(lead.method), scores

    def worth(name: str) -> tuple[int, float]:
        reached = [value for value in others[name] if value > -inf]
        return len(reached), mean(reached) if reached else 0.0

    best = max(others, key=worth)
    pairs = zip(mine, others[best], strict=True)
    by = [one - other for one, other in pairs if -inf not in (one, other)]
    ahead = sum(
        all(one > values[at] + ROUNDING for values in others.values())
        for at, one in enumerate(mine)
    )
    return FoundLead(
        place, lead.method, best, mean(by) if by else None, mine.count(-inf), len(mine), ahead,
        lead.by.get(place[0]), missing,
    )  # fmt: skip


def cells(one: FoundLead, column: str) -> tuple[str, ...]:
    """The cells of a table row: COLUMNS; shares have four digits, what else is compared one."""
    digits = 4 if column.startswith(SHARES) else 1
    by = "-" if one.by is None else f"{one.by:+.{digits}f}"
    published = "-" if one.published is None else f"{one.published:+.{digits}f}"
    return (
        *one.place,
        one.method,
        one.best,
        by,
        "-" if one.interval is None else "[{:+.{d}f}, {:+.{d}f}]".format(*one.interval, d=digits),
        published,
        f"{one.ahead} of {one.seeds}",
        one.verdict,
    )


def verdicts_of(card: Paper, claim: Claim, stored: StoredResults) -> list[FoundLead]:
    """What our results say of all leads of a claim."""
    return [one for lead in claim.leads for one in found_leads(card, claim, lead, stored)]


def found_leads(card: Paper, claim: Claim, lead: Lead, stored: StoredResults) -> list[FoundLead]:
    """What our results say of one lead of a claim, by suite and data set."""
    column = compared(card, lead)
    if not lead.table:
        return [*leads_found(lead, stored.study(claim.study), column)]
    domains = card.table(lead.table).domains
    return [*leads_found(lead, stored.table(lead.table, lead.scale), column, domains)]


class StoredResults(NamedTuple):
    """The results behind a card; each table and study is read once.

    Attributes:
        table: number and scale of a table -> its results, by suite and data set, then by row.
        study: name of a grid without points -> its results of all seeds, likewise.
        out: the folder of result files.
    """

    table: Callable[[str, str], PaperResults]
    study: Callable[[str], PaperResults]
    out: Path

    @classmethod
    def of(cls, card: Paper, request: RunRequest, progress: SweepProgress) -> StoredResults:
        """Those of a card in the folder of a request."""
        table = partial(results_of_table, card, request=request, progress=progress)
        study = partial(results_of_study, request=request, progress=progress)
        return cls(cache(table), cache(study), request.out)


def results_of_table(
    card: Paper, name: str, scale: str, request: RunRequest, progress: SweepProgress
) -> PaperResults:
    """The results of a table at a scale, by suite and data set, then by row."""
    table = card.table(name)
    found: dict[ResultPlace, dict[str, Sequence[Result]]] = {}
    for one in findings(table, planned(table, scale, request, None, progress)):
        if one.results:
            place = one.printed.suite, one.printed.dataset
            found.setdefault(place, {})[one.printed.method] = one.results
    return found


def results_of_study(name: str, request: RunRequest, progress: SweepProgress) -> PaperResults:
    """The results of a grid without points, of all seeds, by suite and data set, then by method.

    Raises:
        BadParameter: the study is a measurement, which has no results.
    """
    path = load_entry(find("studies", name))
    if not isinstance(path, Path):
        raise BadParameter(f"study '{name}': expected a grid of runs, got a measurement")
    found: dict[ResultPlace, dict[str, Sequence[Result]]] = {}
    for row in grid_rows(read_grid(path), request, progress):
        spec = row.cells[0].spec
        first = file_of_any_version(spec)
        if first is not None:
            place = row.suite, spec.suite.dataset
            files = sorted(first.parent.glob("seed-*.json"))
            found.setdefault(place, {})[row.method] = [read_in_place(file) for file in files]
    return found


def compared(card: Paper, lead: Lead) -> str:
    """What a lead is about, a name in a result's summary."""
    if lead.common:
        return "rounds to the highest final accuracy of the others"
    if lead.column or not lead.table:
        return lead.column
    table = card.table(lead.table)
    return table.measured(table.judged)
