"""What the result files say of clients that nobody drew: a part of `docs/which-method.md`.

Every answer is computed from the tables of a folder of results, and says that it was not run where
rows are lacking. `which_method_page.py` writes the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import atanh, sqrt, tanh
from statistics import mode

import numpy as np
from scipy import stats

from flbench.leaderboard.grouping import searches
from flbench.leaderboard.kinds import kind_of
from flbench.leaderboard.markdown import anchor, grid
from flbench.leaderboard.pages import page_of
from flbench.leaderboard.statistics import FEW_SEEDS, average_ranks, difference, holm
from flbench.leaderboard.table import Table, TableRow, client_headlines, same_clients
from flbench.leaderboard.who_wins import listed
from flbench.metrics import Floats
from flbench.papers.rank_agreement import kendall_tau
from flbench.plugin.method_info import method_infos
from flbench.plugin.registry import entries
from flbench.suite import load_suite

FEW = FEW_SEEDS + 1
"""Seeds from which intervals are over seeds, too; with fewer they are over clients within seeds."""
LEAST = 8
"""Methods that two tables must share, so that their orders are compared."""
FULL = 30
"""Ranked methods of a full table."""
MANY_CLIENTS = 1000
ALONE = ("local-only", "linear-alone", "boosting-alone", "own-majority")
"""Methods of which a client needs nobody else."""
NOT_RUN = "Not run: no result files of it are in `leaderboard/results`."
HEAD = f"""\
## Clients that nobody drew

The clients of the [natural federations](natural.md) are persons, schools, states, plots and roles
as they are. A difference is how much better the first one is, mean over clients and seeds, in
units of the headline (accuracy; of RMSE the difference of errors), over the seeds that both rows
have, with its 95 % interval; ° = of fewer than {FEW} seeds: the interval is over clients, each of
whom counts once, whatever the number of seeds, and says nothing of other seeds. With more seeds it
is the wider one of two t intervals, over seeds and over clients. The interval over four seeds is
wide, so a method may pass with two seeds, where clients alone count, and not with four. Methods are
at their defaults, and ranked: those that have all data in one place or know the true groups are
only compared with. Where most methods of a table have several seeds, those of one seed are left
out. That the best of many is chosen after the fact is corrected for in the column *after Holm*
alone.
"""


@dataclass(frozen=True)
class Gain:
    """How much better a row is than another one.

    Attributes:
        mean: positive = better.
        low, high: its 95 % interval.
        of_clients: whether the interval is over clients within seeds only.
        p: two-sided, of the same t test as the interval.
        p_clients: the same by clients within seeds, whatever the number of seeds.
    """

    mean: float
    low: float
    high: float
    of_clients: bool
    p: float
    p_clients: float

    @property
    def text(self) -> str:
        """The difference with its interval."""
        mark = "°" if self.of_clients else ""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]{mark}"


def gain(row: TableRow, other: TableRow) -> Gain | None:
    """How much better a row is than another one over their common seeds; None = they have none."""
    mine, theirs = client_headlines(row), client_headlines(other)
    if not {*mine} & {*theirs}:
        return None
    if not row.task.higher_is_better:
        mine, theirs = theirs, mine
    found = difference(mine, theirs, same_clients((row, other)))
    low, high = found.shown.tolist()
    p = float(found.p_shown), float(found.p_within_seeds)
    return Gain(float(found.mean), low, high, found.seeds < FEW, *p)


@dataclass(frozen=True)
class Correlation:
    """A correlation of two orders of n methods, with its 95 % interval.

    The interval is that of Bonett and Wright, "Sample size requirements for estimating Pearson,
    Kendall and Spearman correlations", Psychometrika 65, 2000: a normal one of the inverse
    hyperbolic tangent. It takes methods to be independent, which relatives are not.
    """

    value: float
    low: float
    high: float
    methods: int

    @property
    def text(self) -> str:
        """The correlation with its interval, and of how many methods."""
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}] ({self.methods})"


def spearman(one: Floats, other: Floats) -> Correlation:
    """Spearman's rank correlation of two arrays, shape (n,); 0 where one is constant."""
    ranks = [stats.rankdata(np.round(each, 9)) for each in (one, other)]
    constant = any(np.ptp(each) == 0 for each in ranks)
    value = 0.0 if constant else float(np.corrcoef(ranks)[0, 1])
    return _with_interval(value, len(one), (1 + value**2 / 2) / max(len(one) - 3, 1))


def kendall(one: Floats, other: Floats) -> Correlation:
    """Kendall's tau-b of two arrays, shape (n,)."""
    return _with_interval(float(kendall_tau(one, other)), len(one), 0.437 / max(len(one) - 4, 1))


def _with_interval(value: float, count: int, variance: float) -> Correlation:
    middle = atanh(min(max(value, -1 + 1e-9), 1 - 1e-9))
    half = 1.959964 * sqrt(variance)
    return Correlation(value, tanh(middle - half), tanh(middle + half), count)


def is_natural(table: Table) -> bool:
    """Whether nobody drew its clients."""
    named = table.settings["partition"]["name"] == "natural"
    return named and not table.dataset.startswith("writers:")


def is_text(table: Table) -> bool:
    """Whether its samples are text."""
    return kind_of(table.settings, table.dataset).endswith("text")


def defaults(table: Table) -> dict[str, TableRow]:
    """The ranked rows at their methods' defaults, the best first, by method.

    Of a table that has rows of several seeds, only these: one seed says nothing of others.
    """
    rows = [row for row in table.compared if row.default and "+" not in row.method]
    rows = [row for row in rows if len(row.seeds) > 1] or rows
    return {row.method: row for row in sorted(rows, key=lambda row: row.order)}


def reference(table: Table, method: str) -> TableRow | None:
    """A row of a method at its defaults, ranked or not."""
    return next((row for row in table.main if row.method == method and row.default), None)


@cache
def methods_of_kind(kind: str) -> frozenset[str]:
    """The installed methods of a kind: global, personalised or clustered."""
    return frozenset(one.name for one in method_infos() if one.kind == kind)


def named(table: Table) -> str:
    """A link to a table; of another data set than the suite's own, with its name."""
    place = f"../leaderboard/{page_of(table.suite)}#{anchor(table.shown)}"
    known = table.suite in entries("suites")
    other = known and load_suite(table.suite).dataset != table.dataset
    return f"[`{table.suite}`{f' on `{table.dataset}`' * other}]({place})"


def value(row: TableRow | None) -> str:
    """The mean headline of a row, with its name where it is no accuracy."""
    if row is None:
        return "not run"
    return f"{'' if row.task.name == 'classes' else f'{row.task.heading} '}{row.mean:.3f}"


def over(row: TableRow | None, other: TableRow | None) -> str:
    """The difference of two rows as text."""
    found = None if row is None or other is None else gain(row, other)
    return "not run" if found is None else found.text


def counted(rows: Sequence[TableRow], other: TableRow | None) -> tuple[str, str, str, str]:
    """How many of some rows are better than another one, better after Holm, and worse.

    The first and the last are by their intervals, the second with all of them as one family; the
    third is the second by clients within seeds, whatever the number of seeds.
    """
    if other is None:
        return ("not run",) * 4
    found = [one for row in rows if row is not other and (one := gain(row, other)) is not None]
    return (
        f"{sum(one.low > 0 for one in found)} of {len(found)}",
        str(_surely_better(found, [one.p for one in found])),
        str(_surely_better(found, [one.p_clients for one in found])),
        str(sum(one.high < 0 for one in found)),
    )


def _surely_better(found: Sequence[Gain], p: Sequence[float]) -> int:
    """How many gains are above 0, with all of them as one family."""
    sure = holm(np.array(p, dtype=float))
    return int((sure & np.array([one.mean > 0 for one in found], dtype=bool)).sum())


def in_full(table: Table) -> TableRow | None:
    """The row of training alone in every round, not only where cohorts ask."""
    name, params = "local-only", {"schedule": "full"}
    return next((row for row in table.main if (row.method, row.params) == (name, params)), None)


def best_alone(table: Table) -> TableRow | None:
    """The best row of what learns from a client's own samples only, at any settings."""
    rows = [
        row for row in (*table.main, *table.tuned) if row.method in ALONE and row.mean == row.mean
    ]
    return max(rows, key=score, default=None)


def first_of(
    rows: Mapping[str, TableRow], methods: frozenset[str] | None = None
) -> TableRow | None:
    """The best row of some methods; None = of all."""
    return next((row for name, row in rows.items() if methods is None or name in methods), None)


def alone(found: Sequence[Table]) -> list[str]:
    """Does anything beat training alone, and the client's own majority or mean?"""
    lines, others = [], []
    for table in found:
        rows = defaults(table)
        local, own = (reference(table, name) for name in ("local-only", "own-majority"))
        best, most, full = first_of(rows), best_alone(table), in_full(table)
        shown = f"`{best.method}` {value(best)}" if best else "not run"
        epochs = None if local is None else local.mean_of("trained_epochs")
        lines.append([
            named(table), str(len(rows)), value(local), "-" if epochs is None else f"{epochs:.1f}",
            shown, over(best, local), *counted([*rows.values()], local),
        ])  # fmt: skip
        others.append([
            named(table), value(full), over(full, local),
            over(best, full), *counted([*rows.values()], full)[:3],
            value(own), over(local, own), counted([*rows.values()], own)[0],
            f"`{most.name}` {value(most)}" if most else "not run", over(best, most),
            *counted([*rows.values()], most)[:3],
        ])  # fmt: skip
    headings = [("federation", True), ("methods", False), ("`local-only`", False),
                ("its epochs", False), ("best", True), ("over `local-only`", True),
                ("better than `local-only`", False),
                ("better after Holm", False), ("the same by clients alone", False),
                ("worse", False)]  # fmt: skip
    better = [("methods better than it", False), ("after Holm", False),
              ("the same by clients alone", False)]  # fmt: skip
    further = [("federation", True), ("`local-only` in full", False),
               ("over `local-only`", True), ("the best method over it", True), *better,
               ("`own-majority`", False), ("`local-only` over it", True),
               ("methods better than it", False), ("best alone", True),
               ("the best method over it", True), *better]  # fmt: skip
    text = "Better and worse are by their intervals; after Holm with all methods as one family, so"
    text += " that one false claim or more has a probability of 5 %. By clients alone, nothing is"
    text += " asked of other seeds, and federations of two seeds and of four compare. `local-only`"
    text += (
        " trains a client in the rounds in which a cohort would have it, as long as other methods"
    )
    text += (
        " do; with less than one epoch some clients never train. A client that is alone need not"
    )
    text += " wait: `local-only` in full trains in every round (`schedule=full`)."
    said = "The own majority learns nothing (of numbers it is the mean). *Best alone* is, of"
    said += " `local-only` at any schedule and rate, `linear-alone`, `boosting-alone` and"
    said += " `own-majority`, the one with the best test score: chosen after the fact, as the best"
    said += " method is."
    parts = [*grid(headings, lines), "", textwrap.fill(said, 120, break_on_hyphens=False), "",
             *grid(further, others)]  # fmt: skip
    title = "Does anything beat training alone, and the client's own majority?"
    return answer(title, text, parts if lines else [])


def in_short(tables: Sequence[Table]) -> list[str]:
    """Sentences: where methods beat the best that a client does alone, and where it beats them."""
    found, above, below = 0, [], []
    for table in sorted(filter(is_natural, tables), key=lambda one: one.title):
        rows, most = defaults(table), best_alone(table)
        best = first_of(rows)
        over_it = gain(best, most) if best and most and best is not most else None
        if best is None or most is None or over_it is None:
            continue
        found += 1
        sure = counted([*rows.values()], most)[2]
        others = sum(row is not most for row in rows.values())
        if int(sure):
            above.append(f"{named(table)} ({sure} of {others})")
        if over_it.high < 0:
            numbers = f"`{most.name}` {value(most)} for {value(best)}"
            below.append(f"{named(table)} ({numbers})")
    if not found:
        return []
    say = f"On {len(above)} of {found} tables of clients that nobody drew, methods are above the"
    say += " best that a client does alone by the test over clients, corrected for their number"
    also = f"On {len(below)} of {found} the best that a client does alone is above every method"
    return [
        f"{text}: {listed(names)}." if names else f"{text}."
        for text, names in ((say, above), (also, below))
    ]


def personal(found: Sequence[Table]) -> list[str]:
    """Does personalisation beat one model that knows the client's id, or a random intercept?"""
    lines = []
    for table in found:
        best = first_of(defaults(table), methods_of_kind("personalised"))
        others = (
            *("centralised-id", "random-intercept", "random-slopes", "boosting"),
            *("boosting-alone", "linear-alone"),
        )
        cells = [f"`{best.method}` {value(best)}" if best else "not run"]
        for name in others:
            other = reference(table, name)
            cells.append(value(other) if other is None else f"{value(other)}: {over(best, other)}")
        lines.append([named(table), *cells])
    headings = [(name, True) for name in (
        "federation", "best personalised method", "over `centralised-id`",
        "over `random-intercept`", "over `random-slopes`", "over `boosting`",
        "over `boosting-alone`", "over `linear-alone`")]  # fmt: skip
    text = "Of models that are not federated, the last two of each client alone, the others with"
    text += " all data in one place: their headline, and how much better the best personalised"
    text += " method is. `random-intercept` knows the level of a client, `random-slopes` also how"
    text += " it weighs the features."
    return answer("Does personalisation beat one model that knows the client?", text, grid(
        headings, lines) if lines else [])  # fmt: skip


def clustered(found: Sequence[Table]) -> list[str]:
    """Does clustering find the true groups, and does it pay?"""
    lines = []
    for table in found:
        rows = {
            name: row
            for name, row in defaults(table).items()
            if name in methods_of_kind("clustered")
        }
        best, fedavg = first_of(rows), reference(table, "fedavg")
        local, oracle = (reference(table, name) for name in ("local-only", "oracle"))
        if oracle is not None and oracle.is_idle_oracle:
            oracle = None
        agreement = {
            name: ari for name, row in rows.items() if (ari := row.mean_of("ari")) is not None
        }
        top = max(agreement, key=lambda name: (agreement[name], name), default=None)
        lines.append([
            named(table),
            f"`{best.method}` {value(best)}" if best else "not run",
            over(best, fedavg), counted([*rows.values()], fedavg)[0], over(best, local),
            "no groups known" if top is None else f"`{top}` {agreement[top]:.2f}",
            f"{np.median([*agreement.values()]):.2f}" if agreement else "-",
            f"{agreement[best.method]:.2f}" if best and best.method in agreement else "-",
            *groups_of(table, best, rows.values()),
            over(oracle, fedavg) if oracle else "-", over(oracle, local) if oracle else "-",
        ])  # fmt: skip
    headings = [("federation", True), ("best clustered method", True), ("over `fedavg`", True),
                ("methods better than `fedavg`", False), ("best over `local-only`", True),
                ("highest agreement", True), ("median", False), ("that of the best", False),
                ("groups of the best", True), ("one group", True), ("a group for each", True),
                ("`oracle` over `fedavg`", True), ("`oracle` over `local-only`", True)]  # fmt: skip
    text = "Agreement with the true groups is the adjusted Rand index (1 = the same groups, 0 = by"
    text += " chance), mean over seeds. Some methods are told how many groups to make: fedgroup"
    text += " makes five at its defaults, as many as there are kinds of plots. Named are methods"
    text += " whose clients are one group at the end, which is one model for all, or nearly all in"
    text += " groups of their own, which is training alone. An `oracle` whose warm-up is the whole"
    text += " run is left out."
    return answer("Does clustering find natural groups, and does it pay?", text, grid(
        headings, lines) if lines else [])  # fmt: skip


def groups_of(
    table: Table, best: TableRow | None, rows: Iterable[TableRow]
) -> tuple[str, str, str]:
    """How many groups the best makes at the end; which methods make one, or one for each client.

    As many as there are is nine of ten or more.
    """
    clients = len(next(iter(table.rows)).results[0].clients.test)
    made = {row.method: count for row in rows if (count := row.mean_of("groups")) is not None}
    mine = made.get(best.method) if best else None
    one = sorted(f"`{name}`" for name, count in made.items() if count <= 1)
    each = sorted(f"`{name}`" for name, count in made.items() if count >= 0.9 * clients)
    shown = "-" if mine is None else f"{mine:.4g} of {clients} clients"
    return shown, ", ".join(one) or "none", ", ".join(each) or "none"


def score(row: TableRow) -> float:
    """The mean headline of a row, higher is better."""
    return row.task.score(row.mean)


def together(found: Sequence[Mapping[str, TableRow]], methods: Sequence[str]) -> Floats:
    """The mean rank of methods over tables, shape (methods,), the best the highest."""
    table = np.array([[score(rows[name]) for name in methods] for rows in found])
    return -average_ranks(table)


def predicted(found: Sequence[Table], drawn: Sequence[Table]) -> list[str]:
    """Do orders of methods on drawn clients predict those on natural clients?"""
    full = [one for one in drawn if len(defaults(one)) >= FULL]
    usable = [one for one in found if len(defaults(one)) >= LEAST]
    digits = [one for one in full if "digits" in one.dataset]
    title = "Do ranks on digits, or on drawn clients, predict those on natural clients?"
    if not usable or not full:
        return answer(title, "", [])
    lines, whole = [], [one for one in usable if len(defaults(one)) >= FULL] or usable
    whole = [one for one in whole if one.task.name == "classes" and not is_text(one)]
    for table in usable:
        rest = [one for one in whole if one is not table]
        cells = [_predicted(table, [one]) for one in full]
        itself = with_itself(table)
        own = "-" if itself is None else itself.text
        cells = [own, _predicted(table, digits), _predicted(table, rest), *cells]
        lines.append([named(table), *cells])
    headings = [("federation", True), ("itself", True), ("all of digits", True)]
    headings += [("the other natural ones", True)]
    headings += [(f"`{one.suite}` on `{one.dataset}`", True) for one in full]
    mean = overall(whole, digits)
    text = "Spearman's correlation of the order of the methods that both have, with its 95 %"
    text += " interval (Bonett, Wright 2000), which takes methods to be independent, and their"
    text += " number. Where there are several tables, it is with the mean rank; full tables have"
    text += f" {FULL} ranked methods or more. *Itself*: its first seed with the mean of its others,"
    text += " which no prediction of one seed is likely to pass."
    if mean is not None:
        text += (
            " Mean ranks over digits and over all full natural tables of classes, text aside (for"
        )
        text += f" many methods text and a number to predict are not defined): {mean.text}."
    return answer(title, text, grid(headings, lines))


def overall(natural: Sequence[Table], drawn: Sequence[Table]) -> Correlation | None:
    """The correlation of mean ranks over two sets of tables; None = they share few methods."""
    sides = [[defaults(one) for one in some] for some in (natural, drawn)]
    if not all(sides):
        return None
    shared = sorted(set.intersection(*({*rows} for side in sides for rows in side)))
    if len(shared) < LEAST:
        return None
    return spearman(*(together(side, shared) for side in sides))


def with_itself(table: Table) -> Correlation | None:
    """The correlation of a table's order in its first seed and in its others; None = there are few.

    It is of the methods that have all seeds that most have.
    """
    rows = [row.by_seed() for row in defaults(table).values()]
    seeds = [seed for seed in table.seeds if 2 * sum(seed in one for one in rows) >= len(rows)]
    whole = [one for one in rows if {*seeds} <= {*one}]
    if len(seeds) < 2 or len(whole) < LEAST:
        return None
    values = np.array([[table.task.score(one[seed]) for seed in seeds] for one in whole])
    return spearman(values[:, 0], values[:, 1:].mean(axis=1))


def _predicted(table: Table, others: Sequence[Table]) -> str:
    found = overall([table], others)
    return "-" if found is None else found.text


def rates(found: Sequence[Table]) -> list[str]:
    """Does a better learning rate change the order, and do better parameters?"""
    lines = [
        [named(table), *cells]
        for table in found
        for search in searches(row for row in table.tuned if row.tuning and row.tuning.lr)
        if (cells := _of_search(table, search))
    ]
    headings = [("federation", True), ("sets that were tried", False), ("methods", False),
                ("Kendall's tau", True), ("took another rate", False), ("mean gain", False),
                ("better by interval", False), ("best before, and its place after", True),
                ("best after", True), ("over `local-only`, tuned too", True),
                ("seeds of the search, scored", False)]  # fmt: skip
    text = "At the suite's learning rate, and with the best of a few multiples of it, which each"
    text += " method chose on validation samples of other seeds ([tuning](tuning.md)); *both* = its"
    text += " parameters were searched for with the rate. With one seed of the search, a few"
    text += " samples of each client choose."
    trials, seconds = searched(found)
    if trials:
        text += f" The searches of these and other natural tables ran {trials:,} trials, about"
        text += f" {seconds / 3600:.1f} hours by the seconds of the rows that they found."
    return answer("Does a better learning rate change the order?", text, grid(
        headings, lines) if lines else [])  # fmt: skip


def _of_search(table: Table, search: str) -> list[str]:
    """What a search says, without the table's name; [] = it is of few methods."""
    usual = {row.method: row for row in table.main if row.default}
    tuned = {row.method: row for row in table.tuned if row.search == search}
    names = [name for name in usual if name in tuned and not usual[name].reference]
    pairs = {name: common_seeds(usual[name], tuned[name]) for name in sorted(names)}
    pairs = {name: pair for name, pair in pairs.items() if pair is not None}
    if len(pairs) < LEAST:
        return []
    before, after = (np.array([pair[at] for pair in pairs.values()]) for at in (0, 1))
    order = [name for _, name in sorted(zip(-after, pairs, strict=True))]
    first = next(name for _, name in sorted(zip(-before, pairs, strict=True)))
    own = float(table.settings["local"]["lr"])
    moved = sum(tuned[name].tuning.lr != own for name in pairs)  # type: ignore[union-attr]
    gains = [one for name in pairs if (one := gain(tuned[name], usual[name])) is not None]
    best = tuned[order[0]]
    tried = f"{best.budget}{', both' * best.tuning.both}"  # type: ignore[union-attr]
    return [
        tried, str(len(pairs)), kendall(before, after).text, f"{moved} of {len(pairs)}",
        f"{np.mean(after - before):+.3f}", f"{sum(one.low > 0 for one in gains)}",
        f"`{first}`, then {1 + order.index(first)}", f"`{order[0]}` {value(best)}",
        over(best, tuned.get("local-only")), searched_on(tuned),
    ]  # fmt: skip


def searched(found: Sequence[Table]) -> tuple[int, float]:
    """How many trials the searches of some tables ran, and about how many seconds they took.

    A trial is taken to last as long as the rows do that the search found.
    """
    trials, seconds = 0, 0.0
    for row in (row for table in found for row in table.tuned if row.tuning):
        own = row.tuning.tried * len(row.tuning.seeds)  # type: ignore[union-attr]
        trials += own
        seconds += own * float(np.mean([one.seconds["total"] for one in row.results]))
    return trials, seconds


def searched_on(tuned: Mapping[str, TableRow]) -> str:
    """On how many seeds most rates were searched for, and how many most rows are scored on."""
    searched = [len(row.tuning.seeds) for row in tuned.values() if row.tuning]
    scored = [len(row.seeds) for row in tuned.values()]
    return f"{mode(searched)}, {mode(scored)}"


def common_seeds(one: TableRow, other: TableRow) -> tuple[float, float] | None:
    """The mean scores of two rows over their common seeds; None = they have none."""
    both = [row.by_seed() for row in (one, other)]
    seeds = sorted({*both[0]} & {*both[1]})
    if not seeds:
        return None
    means = [one.task.score(float(np.mean([each[seed] for seed in seeds]))) for each in both]
    return means[0], means[1]


def many_clients(found: Sequence[Table]) -> list[str]:
    """Which methods fall apart with a thousand clients of few samples?"""
    title = "Which methods fall apart with a thousand clients of few samples?"
    large = [one for one in found if one.settings["clients"] >= MANY_CLIENTS and defaults(one)]
    lines = []
    for table in large:
        rows = defaults(table)
        pair = [reference(table, name) for name in ("fedavg", "local-only")]
        bad = [
            f"`{row.method}` {value(row)}"
            for row in rows.values()
            if all(other is not None and _is_worse(row, other) for other in pair)
        ]
        failed = [f"`{name}`" for name, _ in table.undefined]
        lines.append([
            named(table), trained(table), str(len(rows)), *map(value, pair), str(len(bad)),
            ", ".join(bad) or "none", ", ".join(failed) or "none",
        ])  # fmt: skip
    headings = [("federation", True), ("clients that train, their training samples", False),
                ("methods", False), ("`fedavg`", False),
                ("`local-only`", False), ("worse than both", False), ("these", True),
                ("undefined there", True)]  # fmt: skip
    text = "By their intervals worse than one model for all, and than training alone."
    return answer(title, text, grid(headings, lines) if lines else [])


def lacking(found: Sequence[Table]) -> list[str]:
    """Which installed methods have no row? Named are they where most have one."""
    installed = {one.name for one in method_infos() if one.package.startswith("flbench ")}
    lines = []
    for table in found:
        undefined = {name for name, _ in table.undefined}
        there = {row.method for row in table.rows}
        rest = sorted(installed - undefined - there)
        names = ", ".join(f"`{name}`" for name in rest) or "none"
        lines.append([
            named(table), str(len(there)),
            ", ".join(f"`{name}`" for name in sorted(undefined)) or "none",
            names if len(rest) <= len(there) else f"{len(rest)} methods",
        ])  # fmt: skip
    headings = [("federation", True), ("methods with a row", False), ("not defined there", True),
                ("not run, or failed", True)]  # fmt: skip
    text = "Of natural clients, and of drawn ones the large tables of pictures. Why a method is not"
    text += " defined stands on the page of the suite. `fedasync` and `fedbuff` need a clock, which"
    text += " these suites have not. `fedc2i`, two of its variants and `fedgen` fail on roles, as"
    text += " they take a sample to have one label."
    return answer("Which installed methods have no row?", text, grid(
        headings, lines) if lines else [])  # fmt: skip


def large_of_pictures(drawn: Sequence[Table]) -> list[Table]:
    """The full tables of pictures, by name."""
    pictures = [one for one in drawn if kind_of(one.settings, one.dataset) == "pictures"]
    full = [one for one in pictures if len(defaults(one)) >= FULL]
    return sorted(full, key=lambda one: (one.suite, one.dataset))


def trained(table: Table) -> str:
    """How many clients train, and the median of their training samples."""
    sizes = next(iter(defaults(table).values())).results[0].clients.train
    return f"{len(sizes):,}, {np.median(sizes):g}"


def _is_worse(row: TableRow, other: TableRow) -> bool:
    found = gain(other, row)
    return found is not None and found.low > 0


def answer(title: str, text: str, table: Sequence[str]) -> list[str]:
    """Markdown: a question, and its answer, or that it was not run."""
    said = [textwrap.fill(text, 120, break_on_hyphens=False), ""] if text and table else []
    return [f"### {title}", "", *said, *(table or [NOT_RUN]), ""]


ANSWERS: Sequence[Callable[[Sequence[Table]], list[str]]] = (
    alone, personal, clustered, rates, many_clients
)  # fmt: skip


def answers(tables: Sequence[Table]) -> list[str]:
    """Markdown: all questions."""
    found = sorted((one for one in tables if is_natural(one)), key=lambda one: one.title)
    drawn = [one for one in tables if not is_natural(one) and not one.joins_late]
    first, second, third, *rest = (part(found) for part in ANSWERS)
    parts = [first, second, third, predicted(found, drawn), *rest]
    parts.append(lacking([*found, *large_of_pictures(drawn)]))
    seconds = [one.seconds["total"] for table in found for row in table.rows for one in row.results]
    spent = f"The {len(seconds):,} runs of these tables took {sum(seconds) / 3600:.0f} hours."
    lines = [*HEAD.split("\n"), *([spent, ""] if seconds else [])]
    return [*lines, *(line for part in parts for line in part)][:-1]
