"""Results: one canonical JSON per (suite, data set, method, parameters, seed).

Canonical means: sorted keys, one line per top-level key, no NaN, and the same bytes for the same
run but for the keys in VOLATILE. This module is the schema; `result_files` reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flbench.matrix import Floats, unpacked
from flbench.result_fields import (
    Count,
    Group,
    Label,
    Line,
    Mark,
    Name,
    Number,
    Plain,
    Positive,
    Text,
    Whole,
    contradictions,
    refuse,
    settings,
)

SCHEMA = 2
VOLATILE = ("seconds", "environment")
"""Keys that differ between two runs of the same thing."""


@dataclass(frozen=True)
class RunInfo:
    """What a run is, told to the sinks before it begins.

    Attributes:
        method: "pfedlia" or "pfedlia+fedavgm".
        params: the method's parameters.
        suite: name of the suite.
        dataset: name of the data set.
        seed: the run's seed.
        rounds: rounds to play.
        first: the round it begins with, more than 1 after a resume.
        settings: the suite's settings.
        fingerprint: 8 hex digits of suite, method and parameters.
        groups: true group per client, or None.
        path: where the result file will lie.
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


@dataclass(frozen=True)
class RoundRecord:
    """One round in plain data, told to the sinks.

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


class Plugin(BaseModel):
    """One plugin of a method: where it came from, what it openly uses, what it is beside others.

    A baseline is what a personalised method must beat to be worth anything. `source` is a hash of
    its module's files; "" in results from before it was kept.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    name: Name
    distribution: Line
    version: Line
    uses_true_groups: bool = False
    paper_leak: bool = False
    pools_data: bool = False
    baseline: bool = False
    source: Line = ""


class Method(BaseModel):
    """The method of a row."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    name: Name
    params: dict[Name, Plain]
    plugins: list[Plugin]


class Fingerprint(BaseModel):
    """What makes two rows comparable, in clear; hashes are hex.

    `config` covers suite, method and parameters (it names the folder); `suite` the suite's
    settings alone: rows of one table share it. The others belong to the seed.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    config: Mark
    suite: Mark
    data: Mark
    partition: Mark
    initial_weights: Mark
    cohorts: Mark


class Clients(BaseModel):
    """Per-client arrays, index = client id, at the round the summary reports.

    Attributes:
        train: training samples, as `validation` and `test`.
        correct: test samples the personal model got right.
        loss: sum of its losses on the test samples, in nats.
        group: true group, if the suite has any.
        bytes: sent and received in the whole run.
        labels: training samples by label, label -> count; None where samples have no label.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    train: list[Count]
    validation: list[Count]
    test: list[Count]
    correct: list[Count]
    loss: list[Number]
    group: list[Group] | None
    bytes: list[Count]
    labels: list[dict[Label, Count]] | None = None


class Change(BaseModel):
    """Groups from a round on: of all clients, or of those named, the others staying."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    round: Count
    labels: list[Group]
    clients: list[Count] | None = None


class ScoreMatrix(BaseModel):
    """The last of the largest score matrices that groups were made from; higher is better.

    Attributes:
        round: when it was measured.
        columns: what is judged: models of the bank, or clients.
        row_ids: judging clients.
        column_ids: judged models or clients.
        low: value of the lowest entry, as `high` of the highest.
        cells: entries row by row, a byte each, in base64: see `flbench.matrix`.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    round: Count
    columns: Literal["models", "clients"]
    row_ids: list[Count]
    column_ids: list[Count]
    low: Number
    high: Number
    cells: str

    def values(self) -> Floats:
        """The scores, shape (rows, columns); NaN = not asked."""
        return unpacked(self.cells, self.low, self.high, len(self.row_ids))


class Tuning(BaseModel):
    """How the parameters of a row were found, where they are not the defaults.

    Attributes:
        budget: sets of parameters that might be tried, the defaults among them.
        tried: sets that there were to try; fewer where the method has few parameters.
        seeds: seeds they were tried on; never those that are scored.
        score: what was to be high: a curve's last value, averaged over the seeds.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    budget: Positive
    tried: Positive
    seeds: list[Count]
    score: Line


class Unseen(BaseModel):
    """Clients that joined after the last round, index = newcomer.

    `correct` is of the model they got, `correct_tuned` of the same after `epochs` local epochs.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    epochs: Count
    train: list[Count]
    test: list[Count]
    correct: list[Count]
    correct_tuned: list[Count]
    group: list[Group] | None


class Result(BaseModel):
    """Everything a run leaves behind."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    schema_version: int = Field(default=SCHEMA, ge=1)
    status: Literal["self-reported", "reproduced"] = "self-reported"
    suite: dict[Name, Plain]
    dataset: Name
    method: Method
    seed: Count
    fingerprint: Fingerprint
    summary: dict[Name, Number | Whole | None]
    curves: dict[Name, list[Whole | Number | None]]
    clients: Clients
    unseen: Unseen | None = None
    membership: list[Change]
    scores: ScoreMatrix | None = None
    tuning: Tuning | None = None
    bytes: dict[Name, dict[Name, Count]]
    notes: list[dict[Name, Plain]]
    warnings: list[Text]
    seconds: dict[Name, Number]
    environment: dict[Name, Line]

    @model_validator(mode="after")
    def _fits(self) -> Result:
        refuse(contradictions(self))
        return self

    def memberships(self) -> list[tuple[int, list[int]]]:
        """Rounds in which groups changed, with everybody's group from then on."""
        found: list[tuple[int, list[int]]] = []
        for change in self.membership:
            labels = list(found[-1][1]) if change.clients is not None else change.labels
            for client, label in zip(change.clients or (), change.labels, strict=False):
                labels[client] = label
            found.append((change.round, labels))
        return found

    def canonical(self) -> str:
        """The file's text."""
        table = self.model_dump()  # not mode="json", which would turn NaN into null unseen
        lines = (
            f"{json.dumps(key)}: "
            + json.dumps(table[key], sort_keys=True, allow_nan=False, separators=(",", ":"))
            for key in sorted(table)
        )
        return "{\n" + ",\n".join(lines) + "\n}\n"


class Skip(BaseModel):
    """Why a method was not run on a suite: it is not defined there. Lies where results would."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    suite: dict[Name, Plain]
    suite_hash: Mark
    dataset: Name
    method: Method
    reason: Text

    @model_validator(mode="after")
    def _fits(self) -> Skip:
        refuse(settings(self.suite))
        return self

    def canonical(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(), sort_keys=True, indent=1) + "\n"
