"""Reproduction: the cells of a paper's table, what is there of them, and what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from flbench.cards import Grid, Printed, Scale, numbers, plugin_of
from flbench.launchers import Cell, Outcome
from flbench.result_files import read_result
from flbench.results import Result
from flbench.sweep import cells_of
from flbench.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from flbench.sinks.console import Overview

COLUMNS = ("method", "paper", "ours", "difference", "seeds", "verdict")


@dataclass(frozen=True)
class Asked:
    """How a table is asked for.

    Attributes:
        scale: name of one of the table's scales.
        seeds: instead of the scale's number of seeds.
        settings: `--set KEY=VALUE` of the person, over the card's.
        dataset: this data set alone.
        others: further words for `flbench run`, such as `--out DIR`.
    """

    scale: str
    seeds: int | None = None
    settings: Sequence[str] = ()
    dataset: str | None = None
    others: Sequence[str] = ()


@dataclass(frozen=True)
class Plan:
    """The cells that give one printed number, or why there are none."""

    printed: Printed
    cells: tuple[Cell, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Finding:
    """What came of one printed number.

    Attributes:
        values: ours, by seed; shorter than `results` where a run has no such number.
        why: why nothing was run.
    """

    printed: Printed
    results: tuple[Result, ...]
    values: tuple[float, ...]
    verdict: Verdict
    why: str = ""


def planned(grid: Grid, asked: Asked, overview: Overview) -> list[Plan]:
    """The cells of a table, number by number.

    Raises:
        UserError: a setting that fits neither the suite nor the method.
    """
    wanted = [one for one in numbers(grid) if asked.dataset in (None, one.dataset)]
    scale = grid.scale.get(asked.scale)
    if scale is None:
        return [Plan(one, why=f"this table has no scale '{asked.scale}'") for one in wanted]
    given = {pair.partition("=")[0].strip() for pair in asked.settings}
    lacking = [f"--set {key}=..., {what}" for key, what in scale.needs.items() if key not in given]
    if lacking:
        return [Plan(one, why=f"needs {'; '.join(lacking)}") for one in wanted]
    return [_plan(one, scale, asked, overview) for one in wanted]


def _plan(printed: Printed, scale: Scale, asked: Asked, overview: Overview) -> Plan:
    if printed.dataset not in scale.on:
        return Plan(printed, why=f"{printed.dataset} is not part of this scale")
    from flbench.methods import presets_of
    from flbench.registry import find

    plugin, own = plugin_of(printed.method)
    settings = {**scale.settings, **scale.on[printed.dataset]}
    pairs = [f"{key}={_text(value)}" for key, value in settings.items()]
    pairs += [f"{key}={value}" for key, value in own.items()]
    known = presets_of(find("methods", plugin).load())
    preset = scale.preset if scale.preset in known else None
    cells = cells_of(
        overview,
        [plugin],
        [printed.suite],
        range(asked.seeds or scale.seeds),
        [*pairs, *asked.settings],
        preset,
        ["--dataset", printed.dataset, *asked.others],
    )
    return Plan(printed, tuple(cells))


def _text(value: Any) -> str:  # noqa: ANN401 - a TOML value
    return value if isinstance(value, str) else json.dumps(value)


def findings(
    grid: Grid, plans: Sequence[Plan], outcomes: Mapping[Cell, Outcome] | None = None
) -> list[Finding]:
    """What is there of a table, judged.

    Args:
        outcomes: what became of the cells that were just run, for the reasons why some are missing.
    """
    read = [_Read(plan, grid.column, outcomes or {}) for plan in plans]
    ours = {one.key: {**_column(read, one.key)} for one in read}
    found = []
    for one in read:
        printed = one.plan.printed
        column = {r.plan.printed.method: r.plan.printed for r in read if r.key == one.key}
        said = verdict(printed, ours[one.key], column, grid.tolerance)
        if said == "not run" and one.results:
            said = "not reproduced"  # it ran, and never got there
        found.append(Finding(printed, one.results, one.values, said, one.why))
    return found


def by_part(found: Sequence[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """Findings by suite and data set, in order."""
    parts: dict[tuple[str, str], list[Finding]] = {}
    for one in found:
        parts.setdefault((one.printed.suite, one.printed.dataset), []).append(one)
    return parts


@dataclass
class _Read:
    """The results of a plan that are there."""

    plan: Plan
    column: str
    outcomes: Mapping[Cell, Outcome]
    results: tuple[Result, ...] = field(init=False)
    values: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.results = tuple(self._there())
        known = (result.summary.get(self.column) for result in self.results)
        self.values = tuple(float(value) for value in known if value is not None)

    def _there(self) -> Iterator[Result]:
        for cell in self.plan.cells:
            outcome = self.outcomes.get(cell)
            if outcome is not None and outcome.result is not None:
                yield outcome.result
            elif cell.job.path.is_file():
                yield read_result(cell.job.path)

    @property
    def key(self) -> tuple[str, str]:
        return self.plan.printed.suite, self.plan.printed.dataset

    @property
    def why(self) -> str:
        """Why there is no result."""
        if self.results:
            return ""
        reasons = [o.why for cell in self.plan.cells if (o := self.outcomes.get(cell)) and o.why]
        return self.plan.why or next(iter(reasons), "no result yet")


def _column(read: Sequence[_Read], key: tuple[str, str]) -> dict[str, list[float]]:
    return {one.plan.printed.method: list(one.values) for one in read if one.key == key}


def where_results_lie(out: Path, root: Path | None) -> list[str]:
    """The words of `flbench run` for two folders."""
    return ["--out", str(out), *([] if root is None else ["--data-root", str(root)])]


def cells(one: Finding) -> tuple[str, ...]:
    """Method, paper, ours, difference, seeds, verdict; of what was not run, the reason."""
    number, std = one.printed.value, one.printed.std
    digits = 4 if abs(number) <= 1 else 1
    printed = f"{number:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")
    seeds = ", ".join(str(result.seed) for result in one.results) or "-"
    said = f"{one.verdict}: {one.why}" if one.why else one.verdict
    if not one.values:
        return one.printed.method, printed, "never" if one.results else "-", "-", seeds, said
    spread = f" ± {stdev(one.values):.{digits}f}" if len(one.values) > 1 else ""
    ours = f"{mean(one.values):.{digits}f}{spread}"
    return (
        one.printed.method,
        printed,
        ours,
        f"{mean(one.values) - number:+.{digits}f}",
        seeds,
        said,
    )
