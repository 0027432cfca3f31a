"""Entries: one row of a table with everything that is said about it, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from flbench.leaderboard.installed import departures
from flbench.leaderboard.rows import Row, distances, named, telling
from flbench.leaderboard.stats import Floats, compare, letters, ranks
from flbench.results.schema import Plugin, Result, Tuning


@dataclass(frozen=True)
class Printed:
    """What the suite's paper prints for a row.

    Attributes:
        accuracy: its mean, a share.
        std: its deviation over runs, where it has one.
        distance: our mean less the paper's.
    """

    accuracy: float
    std: float | None
    distance: float


@dataclass(frozen=True)
class Entry:
    """One row of a table.

    Attributes:
        name: the method, and what tells it from the other rows of its name.
        method: the method alone.
        params: those parameters that tell it apart.
        default: whether it is its method's row nearest to the installed defaults.
        plugins: its plugins, with distribution and version.
        folder: its result files, below the results folder.
        results: the files' content; not part of `Table.plain()`.
        seeds: ascending.
        lacks: seeds that other rows of the table have and it has not.
        accuracies: accuracy of each of its seeds.
        mean: of the accuracies.
        std: their deviation (ddof=1); None for one seed.
        interval: 95 % interval of the mean, see `flbench.leaderboard.stats`.
        worst_decile: mean over the seeds that have one, as of all that follow; None = none has.
        ari: how well the true groups were found.
        groups: number of groups found.
        mb_per_client: megabytes sent and received.
        seconds: wall time of a run.
        unseen: accuracy of clients that joined at the end, for each seed that had some.
        unseen_tuned: the same after some local epochs.
        to_oracle: how far it is below the oracle, over common seeds.
        gain: how far it is above the better of training alone and one model for all.
        printed: the paper's number, if it has one.
        status: `self-reported` or `reproduced`, both where seeds differ; or `outdated`.
        reference: why it is not ranked; empty where it is.
        outdated: why it is stale; empty where it is not.
        tuning: how its parameters were found, if they were searched for.
        rank: among the rows of its kind (at defaults, or tuned with the same budget); None = not
            ranked.
        ties: letters that it shares with rows it cannot be told from.
    """

    name: str
    method: str
    params: Mapping[str, Any]
    default: bool
    plugins: tuple[Plugin, ...]
    folder: str
    results: tuple[Result, ...]
    seeds: tuple[int, ...]
    lacks: tuple[int, ...]
    accuracies: tuple[float, ...]
    mean: float
    std: float | None
    interval: tuple[float, float]
    worst_decile: float | None
    ari: float | None
    groups: float | None
    mb_per_client: float | None
    seconds: float | None
    unseen: tuple[float, ...]
    unseen_tuned: tuple[float, ...]
    to_oracle: float | None
    gain: float | None
    printed: Printed | None
    status: str
    reference: str
    outdated: str
    tuning: Tuning | None
    rank: int | None
    ties: str

    @property
    def told(self) -> bool:
        """Whether it is the oracle."""
        return Row(self.name, self.results).told

    @property
    def baseline(self) -> bool:
        """Whether it is what others must beat."""
        return Row(self.name, self.results).baseline


@dataclass(frozen=True)
class Facts:
    """What a table knows beside its rows.

    Attributes:
        seeds: all seeds of the table.
        printed: method -> name in a summary -> number that the paper prints on this data set.
        folders: fingerprint of a row -> its folder, below the results folder.
        stale: fingerprint of a row -> why it is outdated; only those that are.
    """

    seeds: tuple[int, ...]
    printed: Mapping[str, Mapping[str, float]]
    folders: Mapping[str, str]
    stale: Mapping[str, str]


def entries_of(rows: Sequence[Row], others: Sequence[Row], facts: Facts) -> list[Entry]:
    """Entries of rows that are ranked among each other, the best mean first.

    Args:
        rows: of one kind: at defaults, or tuned with one budget, or outdated (then no rank).
        others: rows beside them, where an oracle and baselines are looked for too.
    """
    rows = named(rows)
    peers = [*rows, *others]
    found = compare([_clients(row) for row in rows])
    ranked = [
        at for at, row in enumerate(rows) if not row.reference and row.config not in facts.stale
    ]
    among = np.ix_(ranked, ranked)
    places = dict(zip(ranked, ranks(found.better[among]), strict=True))
    ties = dict(zip(ranked, letters(found.separable[among]), strict=True))
    nearest: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: (departures(row.results[0].method), row.name)):
        nearest.setdefault(row.method, row.config)
    return [
        Entry(
            name=row.name,
            method=row.method,
            params=telling(row, rows),
            default=nearest[row.method] == row.config,
            plugins=tuple(row.results[0].method.plugins),
            folder=facts.folders[row.config],
            results=row.results,
            seeds=row.seeds,
            lacks=tuple(seed for seed in facts.seeds if seed not in row.seeds),
            accuracies=tuple(row.column("accuracy_mean")),
            mean=mean(row.column("accuracy_mean")),
            std=stdev(row.column("accuracy_mean")) if len(row.seeds) > 1 else None,
            interval=(float(found.intervals[at, 0]), float(found.intervals[at, 1])),
            worst_decile=_mean(row.column("accuracy_worst_decile")),
            ari=_mean(row.column("ari")),
            groups=_mean(row.column("groups")),
            mb_per_client=_mean(row.column("mb_per_client")),
            seconds=_mean([one.seconds["total"] for one in row.results if "total" in one.seconds]),
            unseen=tuple(row.column("unseen_accuracy")),
            unseen_tuned=tuple(row.column("unseen_accuracy_tuned")),
            to_oracle=distances(row, peers)[0],
            gain=distances(row, peers)[1],
            printed=_printed(row, nearest[row.method] == row.config, facts.printed),
            status="outdated"
            if row.config in facts.stale
            else ", ".join(sorted({result.status for result in row.results})),
            reference=row.reference,
            outdated=facts.stale.get(row.config, ""),
            tuning=row.results[0].tuning,
            rank=places.get(at),
            ties=ties.get(at, ""),
        )
        for at, row in enumerate(rows)
    ]


def _clients(row: Row) -> dict[int, Floats]:
    """Accuracy of every client, shape (N,), by seed."""
    return {
        one.seed: np.array(one.clients.correct) / np.array(one.clients.test) for one in row.results
    }


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _printed(row: Row, default: bool, numbers: Mapping[str, Mapping[str, float]]) -> Printed | None:
    """The paper's number under the row's own name, or its method's for the row at defaults."""
    told = numbers.get(row.name) or (numbers.get(row.method) if default else None) or {}
    if "accuracy_mean" not in told:
        return None
    accuracy = told["accuracy_mean"]
    return Printed(accuracy, told.get("accuracy_std"), mean(row.column("accuracy_mean")) - accuracy)
