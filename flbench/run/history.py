"""History: what a run has measured so far; it is part of the checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flbench.core.state import Scores, Stage, Upload
from flbench.metrics import ClientValues, Floats, Measurements
from flbench.run.own_models import OwnModels
from flbench.tasks import TASKS, TaskName

MOST_SCORES = 200 * 200
"""Entries of a score matrix that is kept; a larger one would fill its result file."""


@dataclass
class Evaluation:
    """Every client's personal model evaluated in one round; lists are per client.

    A client that is not judged has 0 test samples and is in no mean. Losses are sums over the
    client's samples, in nats; `ece` is the expected calibration error over all clients' test
    samples; `others` are mean test accuracies of further models (`Personal.others`);
    `client_metrics` are metrics that were asked for, by label. Where own models are judged too,
    `own_correct` is what these got right, and `own_trained` says who has one; the others are
    judged with what serves them. Of another task than `classes`, nothing is right or wrong:
    `values` are the headlines of clients (`flbench.tasks`), `validation_values` and `own_values`
    likewise; None = undefined for the client, or it is not judged.
    """

    round: int
    correct: list[int]
    tested: list[int]
    loss: list[float]
    validation_correct: list[int]
    validation_tested: list[int]
    labels: list[int]
    ece: float | None = None
    others: dict[str, float | None] = field(default_factory=dict)
    client_metrics: dict[str, ClientValues] = field(default_factory=dict)
    own_correct: list[int] | None = None
    own_trained: list[bool] | None = None
    task: TaskName = "classes"
    values: list[float | None] | None = None
    validation_values: list[float | None] | None = None
    own_values: list[float | None] | None = None

    def headline(self) -> float | None:
        """Unweighted mean over clients of the test headline; None if it is defined for nobody."""
        if self.values is not None:
            return mean_known(self.values)
        return self._mean(self.correct, self.tested)

    def validation_headline(self) -> float | None:
        """The same on the validation split; None where clients have none."""
        judged = np.asarray(self.tested) > 0
        if not np.asarray(self.validation_tested)[judged].all():
            return None
        if self.validation_values is not None:
            return mean_known(self.validation_values)
        return self._mean(self.validation_correct, self.validation_tested)

    def mean_loss(self) -> float:
        """Unweighted mean over clients of test loss, in nats."""
        return self._mean(self.loss, self.tested)

    def _mean(self, sums: Sequence[float], counts: Sequence[int]) -> float:
        """Unweighted mean of sums over counts, over the clients that are judged."""
        judged = np.asarray(self.tested) > 0
        return float(np.mean(np.divide(np.asarray(sums)[judged], np.asarray(counts)[judged])))

    def outcome(self, groups: Sequence[int] | None) -> Measurements:
        """What the metrics of one round are computed from; true groups per client, or None."""
        return Measurements(
            correct=np.asarray(self.correct) if self.task == "classes" else None,
            tested=np.asarray(self.tested),
            loss=np.asarray(self.loss),
            labels=np.asarray(self.labels),
            groups=None if groups is None else np.asarray(groups),
            client_metrics=self.client_metrics,
            own_correct=None if self.own_correct is None else np.asarray(self.own_correct),
            task=self.task,
            values=_with_nan(self.values),
            own_values=_with_nan(self.own_values),
        )


def mean_known(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are there; None if none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _with_nan(values: Sequence[float | None] | None) -> Floats | None:
    return None if values is None else np.array(values, dtype=np.float64)


@dataclass(frozen=True)
class KeptScores:
    """A score matrix as it was measured; the result file holds it in eight bits per entry.

    Attributes:
        columns: what is scored: "models" of the bank, or "clients".
        values: shape (row_ids, column_ids), float64; NaN = not asked.
    """

    round: int
    columns: str
    row_ids: list[int]
    column_ids: list[int]
    values: Tensor


@dataclass
class History:
    """Curves with one entry per round, two evaluations, notes and warnings.

    Attributes:
        curves: name -> one number per round; None = not measured in that round.
        membership: rounds at which the groups changed, with the labels from then on.
        chosen: the evaluation with the best validation headline so far, the first of equals.
        scores: the last of the largest score matrices.
        source_changes: where the run was resumed with other code, libraries or options: the last
            round before, what has changed, and both hashes, versions or values.
        trained: local epochs of all clients so far; None = a checkpoint did not know.
        reads: what hooks have read of clients that no byte was counted for, sorted; None = a
            checkpoint did not know.
        own: the own models of all clients; None = the suite does not ask for them.
        rounds_read: whether a method has read how many rounds the run has; None = a checkpoint did
            not know.
        executor, processor: by which the last round was computed; "" = none was, or a checkpoint
            did not know. Lanes of several processes say how many these are.
    """

    curves: dict[str, list[float | None]] = field(default_factory=dict)
    membership: list[dict[str, Any]] = field(default_factory=list)
    last: Evaluation | None = None
    chosen: Evaluation | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    scores: KeptScores | None = None
    source_changes: list[dict[str, Any]] = field(default_factory=list)
    trained: float | None = 0.0
    reads: list[str] | None = field(default_factory=list)
    own: OwnModels | None = None
    rounds_read: bool | None = False
    executor: str = ""
    processor: str = ""

    def add_round(self, metrics: dict[str, float | None], evaluation: Evaluation | None) -> None:
        """Append one round."""
        past = max((len(curve) for curve in self.curves.values()), default=0)
        for name in {**self.curves, **metrics}:
            self.curves.setdefault(name, [None] * past).append(metrics.get(name))
        if evaluation is None:
            return
        self.last = evaluation
        score, task = evaluation.validation_headline(), TASKS[evaluation.task]
        best = None if self.chosen is None else self.chosen.validation_headline()
        is_better = score is not None and (best is None or task.gain(score, best) > 0)
        if self.chosen is None or is_better:
            self.chosen = evaluation
        if not self.membership or self.membership[-1]["labels"] != evaluation.labels:
            self.membership.append({"round": evaluation.round, "labels": evaluation.labels})

    def add_own(self, stage: Stage, upload: Upload) -> None:
        """Keep what clients have trained, if own models are asked for."""
        if self.own is not None:
            self.own = self.own.after(stage, upload)

    def add_reads(self, found: Collection[str]) -> None:
        """Keep what hooks have read, if all that they read before is known."""
        if self.reads is not None:
            self.reads = sorted({*self.reads, *found})

    def add_rounds_read(self, read: bool) -> None:
        """Keep whether a method has read the number of rounds, if that is known of before."""
        if self.rounds_read is not None:
            self.rounds_read = self.rounds_read or read

    def add_scores(self, round_: int, scores: Scores | None) -> None:
        """Keep a score matrix, unless there is a larger one already or it is too large to keep."""
        if scores is None or not 1 < scores.values.numel() <= MOST_SCORES:
            return
        if self.scores and scores.values.numel() < self.scores.values.numel():
            return
        values = scores.values.detach().to("cpu", torch.float64, copy=True)
        rows, columns = scores.row_ids.tolist(), scores.column_ids.tolist()
        self.scores = KeptScores(round_, scores.columns, rows, columns, values)

    def changes(self) -> list[dict[str, Any]]:
        """The membership as a result file has it: clients that moved, or all if that is shorter.

        Example:
            >>> first = {"round": 1, "labels": [0, 0, 0, 0, 0, 0]}
            >>> second = {"round": 3, "labels": [0, 0, 0, 0, 0, 1]}
            >>> History(membership=[first, second]).changes()[1]
            {'round': 3, 'clients': [5], 'labels': [1]}
        """
        found = self.membership[:1]
        for before, after in pairwise(self.membership):
            pairs = zip(before["labels"], after["labels"], strict=True)
            moved = {client: new for client, (old, new) in enumerate(pairs) if old != new}
            few = 2 * len(moved) < len(after["labels"])
            change = {"clients": list(moved), "labels": list(moved.values())}
            found.append({"round": after["round"], **change} if few else after)
        return found

    def outcome(
        self,
        headline: str,
        groups: list[int] | None,
        target: float | None = None,
        newcomers: Mapping[str, Floats] | None = None,
        is_text: bool = False,
        periods: Sequence[int] = (),
    ) -> Measurements:
        """What the metrics are computed from, at the last round or the one validation chose."""
        found = self.shown(headline).outcome(groups)
        return replace(
            found,
            curves=self.curves,
            memberships=[np.asarray(entry["labels"]) for entry in self.membership],
            target=target,
            newcomers=newcomers,
            is_text=is_text,
            periods=periods,
        )

    def measured_in_run(self, headline: str) -> dict[str, float | None]:
        """Numbers of the summary that follow from no array of a result file."""
        assert self.last is not None and self.chosen is not None, "the last round is evaluated"
        shown, chosen = self.shown(headline), self.chosen.validation_headline()
        tuned, name = self.last.others.get("fine_tuned"), TASKS[shown.task].headline
        return {
            "round": shown.round,
            f"{name}_last": self.last.headline(),
            f"{name}_chosen": None if chosen is None else self.chosen.headline(),
            **({"ece": shown.ece} if shown.task == "classes" else {}),
            **({} if tuned is None else {f"{name}_fine_tuned": tuned}),
        }

    def shown(self, headline: str) -> Evaluation:
        """The evaluation the summary reports."""
        shown = self.last if headline == "last" else self.chosen
        assert shown is not None, "the last round is evaluated"
        return shown

    def copy(self) -> History:
        """A copy that later rounds do not change."""
        return replace(
            self,
            curves={name: list(curve) for name, curve in self.curves.items()},
            membership=list(self.membership),
            notes=list(self.notes),
            warnings=list(self.warnings),
            seconds=dict(self.seconds),
            source_changes=list(self.source_changes),
        )

    def plain(self) -> dict[str, Any]:
        """As JSON-plain data without scores' values and own models; it shares the lists."""
        table = dict(vars(self))
        del table["own"]
        if self.scores is not None:
            about = vars(self.scores)
            table["scores"] = {name: about[name] for name in about if name != "values"}
        for name in ("last", "chosen"):
            table[name] = table[name] and vars(table[name])
        return table

    @classmethod
    def of(
        cls, plain: dict[str, Any], scores: Tensor | None = None, own: OwnModels | None = None
    ) -> History:
        """From what `plain` gave, the values of the scores and own models where there are some."""
        if plain["scores"] is not None:
            assert scores is not None, "a checkpoint holds their values"
            plain["scores"] = KeptScores(**plain["scores"], values=scores)
        for name in ("last", "chosen"):
            if plain[name] is not None:
                plain[name] = Evaluation(**plain[name])
                found = plain[name].client_metrics.items()
                plain[name].client_metrics = {label: ClientValues(*one) for label, one in found}
        unknown = dict.fromkeys(("trained", "reads", "rounds_read"))
        return cls(**{**unknown, **plain}, own=own)
