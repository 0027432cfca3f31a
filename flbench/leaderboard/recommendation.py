"""Which method for a federation, from the tables that are most like it; and how good that is.

A federation and a table are described by the same few numbers. How far they are apart is Gower's
distance (Biometrics 27, 1971): the mean over the numbers that both have of their difference over
the range of the tables. What a method is worth is its gain over the better of training alone and
one model for all. A method's expected gain is the weighted mean over the nearest tables. `score`
leaves every suite out once and says how much worse the recommended method was than the best.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import exp, log, sqrt
from statistics import mean
from typing import Any

import numpy as np

from flbench.errors import UserError
from flbench.leaderboard.table import Table, TableRow
from flbench.metrics import HEADLINE, Floats

NEAREST = 5
"""Tables that an answer is made from, and those that are as near as the last of them."""
CLOSE = 0.1
"""A table at distance d has the weight 1 / (CLOSE + d)."""
EVIDENCE = 3
"""Tables among these that a method must be in."""
LEAST = 5
"""Methods that a table must have beside training alone and one model for all."""
BY_DOMAIN = ("by-domain", "natural")
"""Partitions whose clients hold all labels, but samples that look or mean different."""
NEWCOMERS = "unseen_accuracy"
"""The metric of clients that join after the last round."""
REPLICATES = 2000
SEED = 20260101


@dataclass(frozen=True)
class FederationTraits:
    """What is known of a federation; None = not known, so not compared.

    Attributes:
        clients: how many.
        participation: share of the clients that are in a round.
        labels: share of all labels that a client holds, see `held_labels`.
        samples: training and validation samples of a client, mean.
        domains: whether samples of one label look or mean different from client to client.
        groups: whether clients form groups of their kind.
        networks: whether clients have different networks.
    """

    clients: float | None = None
    participation: float | None = None
    labels: float | None = None
    samples: float | None = None
    domains: bool | None = None
    groups: bool | None = None
    networks: bool | None = None

    def axes(self) -> dict[str, float]:
        """What is known as numbers; counts and shares of clients as logarithms."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: log(value) if name in ("clients", "participation", "samples") else float(value)
            for name, value in known.items()
            if value is not None
        }


def held_labels(counts: Sequence[Mapping[int, int]]) -> float | None:
    """Share of all labels that a client holds, in effect: exp(mean entropy) over their number.

    A client with k labels in equal parts counts as k labels (the Hill number of order 1: Hill,
    Ecology 54, 1973).

    Args:
        counts: training samples by label, one mapping per client.

    Returns:
        From 1 / (number of labels) to 1; None where a client has no samples.

    Example:
        >>> held_labels([{0: 5, 1: 5}, {2: 3, 3: 3}])
        0.5
    """
    held = [[n for n in one.values() if n] for one in counts]
    labels = {label for one in counts for label, n in one.items() if n}
    if not labels or not all(held):
        return None
    entropies = [-sum(n / sum(one) * log(n / sum(one)) for n in one) for one in held]
    return round(exp(mean(entropies)) / len(labels), 6)


def dirichlet_labels(alpha: float, labels: int) -> float:
    """`held_labels` of clients whose shares of labels are drawn from a Dirichlet distribution.

    The mean entropy of a symmetric one with parameter a over C labels is
    psi(C a + 1) - psi(a + 1), with psi the digamma function (Wolpert and Wolf, Phys. Rev. E 52,
    1995).

    Example:
        >>> round(dirichlet_labels(0.1, 10), 2), round(dirichlet_labels(1e6, 10), 2)
        (0.23, 1.0)
    """
    from scipy.special import digamma

    return float(exp(digamma(labels * alpha + 1) - digamma(alpha + 1)) / labels)


# --- what a table says ----------------------------------------------------------------------------


def candidates(table: Table) -> list[TableRow]:
    """The rows that can be recommended, the best first: single methods at their defaults.

    Without those that know the true groups, or have data that methods do not have. Training alone
    is one of them, although it has no rank.
    """
    return [
        row
        for row in table.main
        if row.default and "+" not in row.method and (row.baseline or not row.reference)
    ]


def traffic(table: Table) -> dict[str, float]:
    """Megabytes per client of each candidate, over those of one model for all."""
    common = next((row for row in candidates(table) if row.one_for_all), None)
    unit = common.mean_of("mb_per_client") if common else None
    moved = {row.method: row.mean_of("mb_per_client") for row in candidates(table)}
    return {name: mb / unit for name, mb in moved.items() if mb is not None} if unit else {}


@dataclass(frozen=True)
class Evidence:
    """A table as evidence.

    Attributes:
        title: of the table.
        suite: its name; tables of one suite are left out together.
        federation: what it is like.
        gains: method -> accuracy less that of the better baseline.
        traffic: method -> its traffic over that of one model for all.
        baselines: the methods that others must beat.
    """

    title: str
    suite: str
    federation: FederationTraits
    gains: Mapping[str, float]
    traffic: Mapping[str, float]
    baselines: tuple[str, ...]


def federation_of(table: Table) -> FederationTraits:
    """What a table is like, from its settings and the arrays of its result files."""
    found = sorted(
        (result for row in candidates(table) for result in row.results),
        key=lambda result: (result.clients.labels is None, result.seed, result.method.name),
    )
    clients = found[0].clients
    samples = (sum(clients.train) + sum(clients.validation)) / len(clients.train)
    return FederationTraits(
        clients=len(clients.train),
        participation=float(table.settings["participation"]),
        labels=held_labels(clients.labels) if clients.labels else None,
        samples=samples or None,
        domains=table.settings.get("partition", {}).get("name") in BY_DOMAIN,
        groups=clients.group is not None and len(set(clients.group)) > 1,
        networks=bool(table.settings.get("further_models")),
    )


def evidence(found: Iterable[Table], metric: str = HEADLINE) -> list[Evidence]:
    """The tables with both baselines and `LEAST` other methods that have a metric.

    Without suites in which other plugins join every method, such as attackers. Tables in which some
    clients join after training count for the metric of these clients alone.
    """
    chosen = []
    for table in found:
        if table.settings.get("plugins") or table.joins_late != (metric == NEWCOMERS):
            continue
        rows = candidates(table)
        known = {row.method: value for row in rows if (value := row.mean_of(metric)) is not None}
        baselines = tuple(sorted({row.method for row in rows if row.baseline} & {*known}))
        if len(baselines) > 1 and len(known) >= LEAST + len(baselines):
            better = max(known[name] for name in baselines)
            gains = {name: value - better for name, value in known.items()}
            chosen.append(
                Evidence(
                    table.title, table.suite, federation_of(table), gains, traffic(table), baselines
                )
            )
    return chosen


# --- the answer -----------------------------------------------------------------------------------


def distances(asked: FederationTraits, known: Sequence[Evidence]) -> list[float]:
    """Gower's distance of a federation to each table; 1 where they have nothing in common.

    A range is that of the tables; a difference counts as 1 at most.
    """
    axes, wanted = [one.federation.axes() for one in known], asked.axes()
    found = []
    for table in axes:
        parts = []
        for name in sorted({*wanted} & {*table}):
            values = [one[name] for one in axes if name in one]
            difference = abs(wanted[name] - table[name])
            reach = max(values) - min(values)
            parts.append(min(1.0, difference / reach) if reach else float(difference > 0))
        found.append(mean(parts) if parts else 1.0)
    return found


@dataclass(frozen=True)
class Neighbour:
    """A table that an answer is made from, how far it is, and its weight; weights sum to 1."""

    table: Evidence
    distance: float
    weight: float


def nearest(
    asked: FederationTraits, known: Sequence[Evidence], count: int = NEAREST
) -> list[Neighbour]:
    """The tables that are most like a federation, the nearest first; all that tie with the last."""
    away = [round(distance, 9) for distance in distances(asked, known)]
    limit = max(sorted(away)[:count], default=0.0)
    pairs = sorted(
        (pair for pair in zip(away, known, strict=True) if pair[0] <= limit),
        key=lambda pair: (pair[0], pair[1].title),
    )
    total = sum(1 / (CLOSE + distance) for distance, _ in pairs)
    return [Neighbour(one, far, 1 / (CLOSE + far) / total) for far, one in pairs]


@dataclass(frozen=True)
class Advice:
    """What is expected of a method.

    Attributes:
        gain: expected accuracy less that of the better baseline.
        interval: 95 % prediction interval of the gain on one more federation like these.
        traffic: expected traffic over that of one model for all; None = not known.
        tables: how many of the nearest tables have the method.
    """

    method: str
    gain: float
    interval: tuple[float, float]
    traffic: float | None
    tables: int


def predicted(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float, float]:
    """Weighted mean of values, and the ends of a 95 % prediction interval of one more value.

    With weights w that sum to 1, n = 1 / sum w^2 values count. The variance is
    s^2 = sum w (x - m)^2 / (1 - sum w^2), the half width t s sqrt(1 + sum w^2) with the quantile t
    of Student's distribution for n - 1 degrees of freedom. Equal weights give the usual interval.

    Args:
        values: two or more.
        weights: of the values, > 0.

    Example:
        >>> [round(one, 3) for one in predicted([1.0, 2.0, 3.0], [1, 1, 1])]
        [2.0, -2.968, 6.968]
    """
    from scipy.stats import t

    x, w = np.array(values, dtype=np.float64), np.array(weights, dtype=np.float64)
    w = w / w.sum()
    middle, square = float(w @ x), float(w @ w)
    deviation = sqrt(max(float(w @ (x - middle) ** 2), 0.0) / (1 - square))
    half = float(t.ppf(0.975, 1 / square - 1)) * deviation * sqrt(1 + square)
    return middle, middle - half, middle + half


def advise(
    neighbours: Sequence[Neighbour],
    allowed: Container[str] | None = None,
    most_traffic: float | None = None,
) -> list[Advice]:
    """What is expected of every method that enough of the tables have, the best first.

    Args:
        neighbours: the tables.
        allowed: the methods that can be used at all; None = all of them.
        most_traffic: allowed traffic over that of one model for all.
    """
    found = []
    for name, own in usable(neighbours, allowed, most_traffic).items():
        if len(own) < EVIDENCE:
            continue
        middle, low, high = predicted(
            [one.table.gains[name] for one in own], [one.weight for one in own]
        )
        interval = max(low, -1.0), min(high, 1.0)
        found.append(Advice(name, middle, interval, traffic_of(name, own), len(own)))
    return sorted(found, key=lambda one: (-one.gain, one.method))


def usable(
    neighbours: Sequence[Neighbour],
    allowed: Container[str] | None = None,
    most_traffic: float | None = None,
) -> dict[str, list[Neighbour]]:
    """The tables that have a method, for every method that may be used."""
    found = {}
    for name in sorted({name for one in neighbours for name in one.table.gains}):
        own = [one for one in neighbours if name in one.table.gains]
        times = traffic_of(name, own)
        fits = most_traffic is None or (times is not None and times <= most_traffic * 1.001)
        if fits and (allowed is None or name in allowed):
            found[name] = own
    return found


def traffic_of(method: str, own: Sequence[Neighbour]) -> float | None:
    """Weighted mean of a method's traffic over that of one model for all; None = not known."""
    moved = [(one.table.traffic[method], one.weight) for one in own if method in one.table.traffic]
    return sum(a * w for a, w in moved) / sum(w for _, w in moved) if moved else None


def on_average(known: Sequence[Evidence]) -> list[Neighbour]:
    """All tables with the same weight, whatever they are like: what an answer is compared with."""
    return [Neighbour(one, 1.0, 1 / len(known)) for one in known]


# --- how good it is -------------------------------------------------------------------------------


def score(known: Sequence[Evidence]) -> dict[str, Any]:
    """For each table, recommend from the tables of other suites; how far that is from its best row.

    Regret is the accuracy of the best candidate of a table less that of the method that was chosen
    for it, of those that the table has. Compared are the nearest tables (`advise`), the method that
    is best on average over all other tables (with the same `EVIDENCE`), each baseline for every
    table, and a method drawn at random (its expectation).

    Returns:
        Plain data: `rows`, one per table, and `mean`, the means over tables; numbers rounded to
        six digits.

    Raises:
        UserError: fewer than two suites.
    """
    if len({one.suite for one in known}) < 2:
        raise UserError(
            "to leave suites out, tables of two suites are needed with both baselines and"
            f" {LEAST} other methods, got {len({one.suite for one in known})}"
        )
    rows = []
    for one in known:
        others = [other for other in known if other.suite != one.suite]
        near = nearest(one.federation, others)
        found, average = advise(near, one.gains), advise(on_average(others), one.gains)
        if not found or not average:
            continue
        advice, usual = found[0], average[0]
        best = max(one.gains.values())
        low, high = advice.interval
        rows.append(
            {
                "table": one.title,
                "suite": one.suite,
                "methods": len(one.gains),
                "best": min(name for name, gain in one.gains.items() if gain == best),
                "recommended": advice.method,
                "expected": advice.gain,
                "interval": [low, high],
                "gain": one.gains[advice.method],
                "inside": low <= one.gains[advice.method] <= high,
                "on_average": usual.method,
                "regret": {
                    "nearest": best - one.gains[advice.method],
                    "on average": best - one.gains[usual.method],
                    **{name: best - one.gains[name] for name in one.baselines},
                    "at random": best - mean(one.gains.values()),
                },
                "nearest": [[other.table.title, other.distance] for other in near],
            }
        )
    if not rows:
        raise UserError(f"no method is in {EVIDENCE} tables of other suites: nothing to score")
    scored: dict[str, Any] = _rounded({"study": "recommend", "rows": rows, "mean": _means(rows)})
    return scored


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over tables, and the interval of how much less the regret of the nearest tables is."""
    ways = [way for way in rows[0]["regret"] if all(way in row["regret"] for row in rows)]
    by_suite: dict[str, list[float]] = {}
    for row in rows:
        saved = row["regret"]["on average"] - row["regret"]["nearest"]
        by_suite.setdefault(row["suite"], []).append(saved)
    return {
        "regret": {way: mean(row["regret"][way] for row in rows) for way in ways},
        "saved": mean(value for values in by_suite.values() for value in values),
        "saved_interval": _resampled([np.array(by_suite[name]) for name in sorted(by_suite)]),
        "inside": mean(float(row["inside"]) for row in rows),
        "tables": len(rows),
        "suites": len(by_suite),
    }


def _resampled(groups: Sequence[Floats]) -> list[float]:
    """95 % interval of the mean over values whose groups are drawn with replacement."""
    draw = np.random.RandomState(SEED)
    drawn = draw.randint(len(groups), size=(REPLICATES, len(groups)), dtype=np.int64)
    sums, sizes = (np.array([f(one) for one in groups]) for f in (np.sum, len))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.percentile(means, (2.5, 97.5)).tolist()
    return [low, high]


def _rounded(value: Any) -> Any:  # noqa: ANN401 - plain data
    """The same plain data, its numbers with six decimals."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 6) + 0.0 if isinstance(value, float) else value


def verdict(means: Mapping[str, Any]) -> str:
    """Whether near tables choose better than all tables do, in a sentence."""
    low, high = means["saved_interval"]
    if low > 0:
        return "Near tables choose better than the method that is best on average."
    if high < 0:
        return "Near tables choose worse than the method that is best on average."
    return (
        "Near tables choose no better than the method that is best on average: the interval of the"
        " difference contains 0."
    )
