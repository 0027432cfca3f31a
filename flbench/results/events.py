"""RunInfo and RoundRecord: what sinks receive while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flbench.tasks import TaskName


@dataclass(frozen=True)
class RunInfo:
    """Description of a run, sent to the sinks before it begins.

    Attributes:
        method: "pfedlia" or "pfedlia+fedavgm".
        params: the method's parameters.
        suite: its name.
        dataset: its name.
        seed: the run's seed.
        rounds: rounds to play.
        first: the round it begins with, more than 1 after a resume.
        settings: the suite's settings.
        fingerprint: 8 hex digits of suite, method and parameters.
        groups: true group per client, or None.
        path: where the result file will lie.
        task: what is predicted; `flbench.tasks` has the metric that ranks and its direction.
    """

    method: str
    params: Mapping[str, Any]
    suite: str
    dataset: str
    seed: int
    rounds: int
    first: int
    settings: Mapping[str, Any]
    fingerprint: str
    groups: list[int] | None = None
    path: str = ""
    task: TaskName = "classes"


@dataclass(frozen=True)
class RoundRecord:
    """One round in plain data, sent to the sinks.

    Attributes:
        round: 1-based.
        rounds: R.
        metrics: numbers of this round; None = not measured in this round.
        labels: group label per client, if evaluated.
        notes: what methods noted, "<method>.<name>" -> value.
        warnings: what the person should know, new in this round.
    """

    round: int
    rounds: int
    metrics: Mapping[str, float | None]
    labels: list[int] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
