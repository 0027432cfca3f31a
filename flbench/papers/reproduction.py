"""Reproduction: the runs of a paper's table, their results, and a verdict on each number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import mean, stdev
from typing import TYPE_CHECKING, Literal, get_args

from flbench.core.setting_text import parse
from flbench.engine.options import EXACT
from flbench.metrics import JUDGED, Rule
from flbench.papers.paper import (
    PaperTable,
    PublishedValue,
    Scale,
    number_named,
    numbers,
    plugin_of,
)
from flbench.results.schema import Result
from flbench.run.other_versions import result_of_any_version
from flbench.sweeps.launchers import Outcome
from flbench.sweeps.request import Cell, RunRequest, concerns, resolve
from flbench.tasks import TASKS

if TYPE_CHECKING:
    from flbench.run.composition import LoadedMethod
    from flbench.terminal.console import SweepProgress

Verdict = Literal[
    "equal", "same ordering", "different", "no order", "doubtful", "not final", "not run"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
NO_VERDICT: tuple[Verdict, ...] = ("doubtful", "not final")
"""Of numbers that were run, and have no part in the verdicts and the order of others."""
SMALL = {"equal": "agrees", "different": "differs"}
PAPERS = {"equal": "reproduced", "different": "not reproduced"}
"""What verdicts are called: a number can be reproduced at the paper's scale only."""
ROUNDING = 1e-9
"""What a difference of decimal numbers may be off in binary."""
LEAKS = "decides on test samples"
"""What is said of a method with `paper_leak`."""
COLUMNS = ("method", "paper", "ours", "difference", "seeds", "verdict")
TO_FINAL = "_to_final"
"""How the names of numbers end that are about the round in which the accuracy is final."""
SETTLED = 0.8
"""Share of a run within which its accuracy must be final, or more rounds could move it."""
UNSETTLED = "our accuracy still moves at the end of the run"


@dataclass(frozen=True)
class Plan:
    """The cells that give one published number, or why there are none.

    `left` is why the paper's file leaves those out that were not run.
    """

    printed: PublishedValue
    cells: tuple[Cell, ...] = ()
    why: str = ""
    left: str = ""


@dataclass(frozen=True)
class ReproducedValue:
    """A published number, our results, and the verdict; `why` is why nothing was run.

    `values` are our numbers, one per result; None if a run has no such number.
    """

    printed: PublishedValue
    results: tuple[Result, ...]
    values: tuple[float | None, ...]
    verdict: Verdict
    why: str = ""

    @property
    def known(self) -> list[float]:
        """Our numbers without those that runs lack."""
        return [value for value in self.values if value is not None]


def refuse_unknown(settings: Mapping[str, object], tables: Iterable[PaperTable]) -> None:
    """Refuse settings that concern nothing of some tables.

    Raises:
        UserError: neither a method of them nor the suite declares it.
    """
    from flbench.run.composition import load_method, suite_overrides

    methods = sorted({plugin_of(method)[0] for table in tables for method in table.methods})
    suite_overrides(settings, [load_method(name) for name in methods] if settings else [])


def planned(
    table: PaperTable,
    scale: str,
    request: RunRequest,
    seeds: int | None,
    progress: SweepProgress,
    judged: Rule | None = None,
) -> list[Plan]:
    """The cells of a table, for each published number.

    `request` is common to all cells: its settings override the table's, and only its data set is
    run; `seeds` overrides the scale's number of seeds, and `judged` the paper's rule.

    Raises:
        UserError: a setting belongs neither to the suite nor to the method.
    """
    wanted = [one for one in numbers(table) if request.dataset in (None, one.dataset)]
    found = table.scale.get(scale)
    if found is None:
        return [Plan(one, why=f"this table has no scale '{scale}'") for one in wanted]
    needs = {key: what for key, what in found.needs.items() if key not in request.settings}
    lacking = [f"--set {key}=..., {what}" for key, what in needs.items()]
    if lacking:
        return [Plan(one, why=f"needs {'; '.join(lacking)}") for one in wanted]
    request = replace(request, seeds=tuple(range(seeds or found.seeds)))
    from flbench.run.composition import load_method

    load = cache(load_method)
    own = {task.named(JUDGED["own"]) for task in TASKS.values()}
    asks_own = table.measured(judged or table.judged) in own
    asked = {"own_models": True} if asks_own else {}
    found = found.model_copy(update={"settings": {**asked, **found.settings}})
    return [_plan(one, found, request, progress, load) for one in wanted]


def not_of_scale(dataset: str) -> str:
    """Why a number is not run whose data set a scale leaves out."""
    return f"{dataset} is not part of this scale"


def _plan(
    printed: PublishedValue,
    scale: Scale,
    request: RunRequest,
    progress: SweepProgress,
    load: Callable[[str], LoadedMethod],
) -> Plan:
    if printed.dataset not in scale.on:
        return Plan(printed, why=not_of_scale(printed.dataset))
    plugin, own = plugin_of(printed.method)
    method = load(plugin)
    texts = {**scale.settings, **scale.on[printed.dataset], **own}
    of_table = {k: parse(v) if isinstance(v, str) else v for k, v in texts.items()}
    settings = {**of_table, **request.settings}
    presets = scale.preferred(printed.dataset)
    asked = replace(
        request,
        methods=(plugin,),
        suites=(printed.suite,),
        settings={key: value for key, value in settings.items() if concerns(key, method)},
        preset=next((name for name in presets if name in method.presets), None),
        dataset=printed.dataset,
        resume=True,
    )
    return Plan(printed, tuple(resolve(asked, progress, load)), left=scale.left)


def verdict(
    printed: PublishedValue, ours: Mapping[PublishedValue, Sequence[float]], tolerance: float
) -> Verdict:
    """The verdict on one number.

    *Equal*: the mean over seeds differs by at most the `margin`. *Same ordering*: it differs by
    more, but it is on the same side as in the paper of every other method that was run on this
    suite and data set and that the paper separates from it. *No order*: there is no such method.
    *Doubtful*: the number itself is; it gets no verdict and has no part in those of others.

    Args:
        printed: the number.
        ours: our values by seed, for each number of the table.
        tolerance: absolute for numbers up to 1, else relative to the published number.
    """
    if not ours.get(printed):
        return "not run"
    if printed.doubt:
        return "doubtful"
    found = mean(ours[printed])
    if abs(found - printed.value) <= margin(printed, tolerance) + ROUNDING:
        return "equal"
    agree = [
        (found - mean(values)) * (printed.value - other.value) > 0
        for other, values in ours.items()
        if values
        and not other.doubt
        and (other.suite, other.dataset) == (printed.suite, printed.dataset)
        and separated(printed, other, tolerance)
    ]
    if not agree:
        return "no order"
    return "same ordering" if all(agree) else "different"


def in_words(verdict: str, scale: str) -> str:
    """A verdict as it is called at a scale.

    Example:
        >>> in_words("equal", "small"), in_words("equal", "paper"), in_words("not run", "paper")
        ('agrees', 'reproduced', 'not run')
    """
    return (PAPERS if scale == "paper" else SMALL).get(verdict, verdict)


def margin(printed: PublishedValue, tolerance: float) -> float:
    """The largest difference from a published number that counts as equal.

    It is the paper's deviation or the tolerance, whichever is smaller: within a wide deviation
    anything agrees, and a bound that nothing can miss says nothing.

    Example:
        >>> margin(PublishedValue("suite", "data", "method", 0.5, std=0.05), 0.03)
        0.03
        >>> margin(PublishedValue("suite", "data", "method", 0.5, std=0.01), 0.03)
        0.01
        >>> margin(PublishedValue("suite", "data", "method", 40, std=None), 0.1)
        4.0
    """
    absolute = _absolute(printed, tolerance)
    return absolute if printed.std is None else min(absolute, printed.std)


def separated(one: PublishedValue, other: PublishedValue, tolerance: float) -> bool:
    """Whether two published numbers differ by more than the tolerance and either deviation.

    Example:
        >>> first, second = (PublishedValue("s", "d", "a", value, 0.1) for value in (0.9, 0.85))
        >>> separated(first, second, 0.03)
        False
    """
    widths = [max(_absolute(each, tolerance), each.std or 0.0) for each in (one, other)]
    return abs(one.value - other.value) > max(widths) + ROUNDING


def _absolute(printed: PublishedValue, tolerance: float) -> float:
    """The tolerance in the unit of a published number."""
    return tolerance * (1.0 if abs(printed.value) <= 1 else abs(printed.value))


def findings(
    table: PaperTable,
    plans: Sequence[Plan],
    outcomes: Mapping[Cell, Outcome] | None = None,
    judged: Rule | None = None,
) -> list[ReproducedValue]:
    """Compare the existing results of a table with the paper.

    The outcomes of the cells that were just run explain missing results; `judged` replaces the
    paper's rule. A number that more rounds could move is *not final*, and has no part in others.
    """
    known, column = outcomes or {}, table.measured(judged or table.judged)
    number = partial(number_of, column=column, domains=table.domains)
    results = {plan.printed: tuple(_results_of(plan, known)) for plan in plans}
    values = {printed: tuple(map(number, found)) for printed, found in results.items()}
    ours = {p: [float(v) for v in found if v is not None] for p, found in values.items()}
    moving = {
        printed
        for printed, found in results.items()
        if column.endswith(TO_FINAL) and not printed.doubt and not all(map(is_settled, found))
    }
    settled = {printed: found for printed, found in ours.items() if printed not in moving}
    comparisons = []
    for plan in plans:
        printed, found = plan.printed, results[plan.printed]
        said = verdict(printed, settled, table.tolerance)
        if printed in moving:
            said = "not final"
        elif found and not printed.doubt and len(ours[printed]) < len(found):
            said = "different"  # a run has no such number
        why = "" if found else _why(plan, known)
        comparisons.append(ReproducedValue(printed, found, values[printed], said, why))
    return comparisons


def is_settled(result: Result) -> bool:
    """Whether the accuracy of a run is final well before it ends; else more rounds may move it."""
    final = result.metrics().get("rounds_to_final")
    return final is not None and final <= SETTLED * result.suite["rounds"]


def number_of(result: Result, column: str, domains: Sequence[str] = ()) -> float | None:
    """A number of a result: a metric or a difference of two, or the accuracy of a domain.

    The accuracy of a domain is the mean over its clients, where groups are the domains in order.
    """
    domain = column.removeprefix("accuracy_")
    if domain == column or domain not in domains:
        return number_named(column, result.metrics())
    clients, of = result.clients, domains.index(domain)
    if clients.group is None or clients.correct is None:
        return None
    rows = zip(clients.group, clients.correct, clients.test, strict=True)
    found = [correct / tested for group, correct, tested in rows if group == of and tested]
    return mean(found) if found else None


def of_domain(
    table: PaperTable, domain: str, rows: Sequence[ReproducedValue]
) -> list[ReproducedValue]:
    """The comparisons of one suite and data set for one of the table's domains, from its results.

    Methods of which the paper prints no number there are left out.
    """
    one, results = table.of_domain(domain), {row.printed.method: row for row in rows}
    place = {(row.printed.suite, row.printed.dataset) for row in rows}
    printed = [p for p in numbers(one) if (p.suite, p.dataset) in place and p.method in results]
    values = {
        p: tuple(number_of(r, one.column, table.domains) for r in results[p.method].results)
        for p in printed
    }
    ours = {p: [v for v in found if v is not None] for p, found in values.items()}
    return [
        ReproducedValue(
            p, results[p.method].results, values[p], verdict(p, ours, table.tolerance),
            results[p.method].why,
        )
        for p in printed
    ]  # fmt: skip


def _results_of(plan: Plan, outcomes: Mapping[Cell, Outcome]) -> Iterator[Result]:
    """The results of a plan: of cells that were just run on the whole data set, or on disk."""
    for cell in plan.cells:
        outcome = outcomes.get(cell)
        result = None if outcome is None else outcome.result
        if result is not None and result.suite["dataset"] == cell.spec.suite.dataset:
            yield result
        elif (found := result_of_any_version(cell.spec)) is not None:
            yield found


def _why(plan: Plan, outcomes: Mapping[Cell, Outcome]) -> str:
    """Why a plan has no result."""
    known = [outcomes[cell] for cell in plan.cells if cell in outcomes]
    parts = [f"only {one.result.suite['dataset']} is there" for one in known if one.result]
    reasons = [*parts, *(one.why for one in known if one.why)]
    return plan.why or next(iter(reasons), plan.left or "no result yet")


def by_part(found: Sequence[ReproducedValue]) -> dict[tuple[str, str], list[ReproducedValue]]:
    """Comparisons by suite and data set, in order."""
    parts: dict[tuple[str, str], list[ReproducedValue]] = {}
    for one in found:
        parts.setdefault((one.printed.suite, one.printed.dataset), []).append(one)
    return parts


def cells(one: ReproducedValue, scale: str) -> tuple[str, ...]:
    """The cells of a table row: COLUMNS; the verdict includes why there is none."""
    number, std = one.printed.value, one.printed.std
    digits = 4 if abs(number) <= 1 else 1
    printed = f"{number:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")
    seeds = ", ".join(str(result.seed) for result in one.results) or "-"
    leaks = any(plugin.paper_leak for result in one.results for plugin in result.method.plugins)
    precisions = {result.environment.get("precision", EXACT) for result in one.results} - {EXACT}
    marks = [LEAKS] * leaks + sorted(precisions)
    method = one.printed.method + (f" ({', '.join(marks)})" if marks else "")
    why = {"doubtful": one.printed.doubt, "not final": UNSETTLED}.get(one.verdict, one.why)
    said = in_words(one.verdict, scale) + (f": {why}" if why else "")
    if not one.known:
        return method, printed, "never" if one.results else "-", "-", seeds, said
    ours = mean(one.known)
    spread = f" ± {stdev(one.known):.{digits}f}" if len(one.known) > 1 else ""
    difference = f"{ours - number:+.{digits}f}"
    few = len(one.known) < len(one.results)
    shown = f"{ours:.{digits}f}{spread}" + (f" ({len(one.known)} of {len(one.results)})" * few)
    return method, printed, shown, difference, seeds, said


def mean_of(one: ReproducedValue, column: str) -> str:
    """The mean over seeds of another number of the same results; "-" = none has it."""
    found = [value for result in one.results if (value := number_of(result, column)) is not None]
    return f"{mean(found):.{4 if abs(one.printed.value) <= 1 else 1}f}" if found else "-"
