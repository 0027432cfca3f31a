"""Evaluation of clients' personal models; the only reader of the test split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from flbench.core.client_module import LocalWork
from flbench.core.model_bank import plain, row_of, take
from flbench.core.per_client import entries
from flbench.core.state import Dispatched, Membership, Personal, Stage, State
from flbench.core.targets import task_of
from flbench.engine.client_metrics import ClientMetrics
from flbench.engine.lanes.evaluation import (
    OWN,
    PooledLanes,
    evaluate_many,
    most_models,
    on_their_own_samples,
    passes,
)
from flbench.engine.model_evaluation import BY_LOSS, CHUNK, Judged, Judging, chunk, evaluate_model
from flbench.engine.processes.process_group import ProcessGroup
from flbench.engine.sequential import Sequential
from flbench.engine.workspace import Workspace
from flbench.errors import FlbenchError, PluginError, in_one_line
from flbench.federation.federation import Samples
from flbench.federation.pooled import Pooled
from flbench.metrics import BINS, ClientValues, calibration_error, clustering_error
from flbench.plugin.isolation import streams_kept
from flbench.run.history import Evaluation, mean_known
from flbench.run.own_models import OwnModels
from flbench.run.saving import Saving
from flbench.tasks import TASKS, TaskName
from flbench.toolbox.heterogeneity import label_overlap_truth

T = TypeVar("T")
WorkOf = Callable[[Stage], LocalWork]
"""Gives what the methods of a run say about local training in a stage."""


@streams_kept()
def evaluate(
    executor: Sequential,
    personal: Personal,
    state: State,
    held_out: Samples,
    clients: Tensor,
    work: WorkOf,
    fine_tune: int = 0,
    metrics: ClientMetrics | None = None,
    saving: Saving | None = None,
) -> Evaluation:
    """Evaluate clients (ids, shape (n,)) on their test samples and on their validation samples.

    Args:
        personal: the checked answer of `personalise` for these clients.
        held_out: the pool with the split "test".
        work: what the methods say about training in a stage.
        fine_tune: local epochs after which they are evaluated once more, as a further figure.
        metrics: what is computed of test samples beside accuracy and loss; of another task than
            `classes` the headline at least.
        saving: takes the models and what they say, for files beside the result; None = nobody.
    """
    others = {
        name: _tested(executor, other, state, held_out, clients, work, metrics)
        for name, other in personal.others.items()
    }
    personal = adapted_models(executor, personal, state, personal.adaptation, work)
    if fine_tune:
        stage = Stage("train", clients, fine_tune, name="fine-tune")
        tuned = replace(personal, adaptation=stage)
        others["fine_tuned"] = _tested(executor, tuned, state, held_out, clients, work, metrics)
    task, own = task_of(held_out.y), None if metrics is None else metrics.own
    outputs = saving is not None and saving.keep.predictions
    bins = BINS if task == "classes" else 0
    judging = Judging(bins=bins, metrics=own, keeps_outputs=outputs)
    judged = _evaluate_split(executor, personal, state, held_out, "test", clients, judging)
    if saving is not None:
        saving.take(state, clients, personal, held_out, judged.outputs)
    found = {} if own is None else _by_label(own, judged.values)
    if metrics is not None and metrics.common is not None:
        values = _on_common_samples(executor, personal, state, held_out, clients, metrics.common)
        found |= _by_label(metrics.common, values)
    judging, samples = _by_headline(metrics), executor.samples
    validated = _evaluate_split(executor, personal, state, samples, "validation", clients, judging)
    test, validation = judged.sums, validated.sums
    return Evaluation(
        round=state.round,
        task=task,
        values=_headlines(task, judged),
        validation_values=_headlines(task, validated),
        correct=test[:, 1].long().tolist(),
        tested=test[:, 2].long().tolist(),
        loss=test[:, 0].tolist(),
        validation_correct=validation[:, 1].long().tolist(),
        validation_tested=validation[:, 2].long().tolist(),
        labels=_plain_labels(state.membership.labels()),
        ece=calibration_error(judged.calibration.numpy()) if task == "classes" else None,
        others=others,
        client_metrics={
            label: found[label]
            for label in ([] if metrics is None else metrics.labels)
            if label in found
        },
    )


def _by_headline(metrics: ClientMetrics | None) -> Judging:
    """Judging by loss and headline alone; accuracy is counted without a metric."""
    return BY_LOSS if metrics is None else Judging(metrics=metrics.headline)


def _headlines(task: TaskName, judged: Judged) -> list[float | None] | None:
    """Headline of each client where samples have no classes; None = undefined for the client."""
    return None if task == "classes" else _rounded(judged.values[:, 0])


def _rounded(values: Tensor) -> list[float | None]:
    """Values with six decimals; None for those that are not finite."""
    return [round(value, 6) if math.isfinite(value) else None for value in values.tolist()]


def _by_label(metrics: ClientMetrics, values: Tensor) -> dict[str, ClientValues]:
    """Values of clients and metrics, shape (n, metrics), as a history keeps them.

    The headline of a task without classes is not among them.
    """
    columns = zip(metrics.labels, values.T, strict=True)
    return {
        label: ClientValues(_rounded(column), metrics.directions[label])
        for label, column in columns
        if label != TASKS[metrics.task].headline
    }


def evaluate_judged(
    executor: Sequential,
    personal: Personal,
    state: State,
    held_out: Samples,
    judged: Tensor,
    work: WorkOf,
    fine_tune: int = 0,
    metrics: ClientMetrics | None = None,
    saving: Saving | None = None,
) -> Evaluation:
    """`evaluate` the clients that are judged; the others have tested nothing.

    Args:
        personal: the checked answer of `personalise` for all N clients.
        judged: ids, shape (n,), ascending.
    """
    clients = len(held_out.splits["test"])
    further = work, fine_tune, metrics, saving
    if len(judged) == clients:
        return evaluate(executor, personal, state, held_out, judged, *further)
    some = personal.select(judged)
    found = evaluate(executor, some, state, held_out, judged, *further)

    def spread(values: list[T], empty: T) -> list[T]:
        known = dict(zip(judged.tolist(), values, strict=True))
        return [known.get(client, empty) for client in range(clients)]

    return replace(
        found,
        correct=spread(found.correct, 0),
        tested=spread(found.tested, 0),
        loss=spread(found.loss, 0.0),
        validation_correct=spread(found.validation_correct, 0),
        validation_tested=spread(found.validation_tested, 0),
        values=found.values and spread(found.values, None),
        validation_values=found.validation_values and spread(found.validation_values, None),
        client_metrics={
            label: ClientValues(spread(list(one.values), None), one.higher_is_better)
            for label, one in found.client_metrics.items()
        },
    )


@streams_kept()
def with_own_models(
    executor: Sequential,
    own: OwnModels,
    personal: Personal,
    state: State,
    held_out: Samples,
    served: Evaluation,
    metrics: ClientMetrics | None = None,
) -> Evaluation:
    """An evaluation with what the clients' own models get right, too.

    They predict as `personal` says, and are not adapted. A client that has not trained is judged
    with what serves it.

    Args:
        personal: the checked answer of `personalise` for all N clients.
        served: how they were judged with that.
        metrics: as of `evaluate`.
    """
    tested = torch.tensor(served.tested)
    clients = (own.trained & (tested > 0)).nonzero()[:, 0]
    correct, values = torch.tensor(served.correct), list(served.values or ())
    if len(clients):
        some = replace(personal, adaptation=None, others={}).select(clients)
        some = replace(some, row=None, params=take(own.rows, clients))
        judging = _by_headline(metrics)
        found = _evaluate_split(executor, some, state, held_out, "test", clients, judging)
        correct[clients] = found.sums[:, 1].long()
        headlines = _headlines(served.task, found) or ()
        for client, value in zip(clients.tolist(), headlines, strict=False):
            values[client] = value
    judged = tested > 0
    if served.task == "classes":
        mean = round(float((correct[judged] / tested[judged].double()).mean()), 6)
        return replace(
            served,
            own_correct=correct.tolist(),
            own_trained=own.trained.tolist(),
            others={**served.others, "own": mean},
        )
    known = mean_known(values)
    return replace(
        served,
        own_values=values,
        own_trained=own.trained.tolist(),
        others={**served.others, "own": None if known is None else round(known, 6)},
    )


SELECTION = ("selection_error", "selection_false_positives", "selection_false_negatives")


def selection_quality(
    membership: Membership, groups: Tensor | None, counts: Tensor
) -> dict[str, float | None]:
    """Wrong and missing members per client, where groups overlap; None where they do not.

    The truth are the true groups; without them, where all clients hold equally many labels, whose
    labels overlap by half (FLIS).

    Args:
        membership: of N clients; those without a row of their own are left out.
        groups: true group per client, shape (N,), or None.
        counts: training samples per client and label, shape (N, C).
    """
    chosen = membership.weights
    if chosen is None or (groups is None and len((counts > 0).sum(dim=1).unique()) > 1):
        return dict.fromkeys(SELECTION)
    known = membership.home >= 0  # flis-dc: the last cohort
    if not known.any():
        return dict.fromkeys(SELECTION)
    truth = label_overlap_truth(counts[known].numpy())
    if groups is not None:
        truth = (groups[known][:, None] == groups[known]).numpy()
    picked = (chosen[membership.home[known]][:, known] > 0).numpy()
    quality = clustering_error(truth, picked)
    return {name: quality[name.removeprefix("selection_")] for name in SELECTION}


ADAPT_BATCH = 100
"""Clients whose models are adapted at once; all of them need not fit in memory."""


def adapted_models(
    executor: Sequential, personal: Personal, state: State, stage: Stage | None, work: WorkOf
) -> Personal:
    """Train a copy of each personal model for a stage; None = leave them as they are."""
    if stage is None:
        return personal
    rows = personal.models(state)
    tuned, of_stage = rows.clone(), replace(work(stage), terms=(), reports=())
    layout = executor.workspace.layout
    for places in torch.arange(len(rows)).split(ADAPT_BATCH):
        received = {name: tensor[places] for name, tensor in personal.extras.items()}
        start = Dispatched.whole(rows[places], received)
        if layout.which is not None:
            start = start.within(layout.of_networks[layout.network_of(rows[places])])
        some = stage.select(places)
        tuned[places] = executor.fit(start, some, of_stage, state.round).selected()
    return replace(personal, row=None, params=tuned, adaptation=None, others={})


def _tested(
    executor: Sequential,
    personal: Personal,
    state: State,
    held_out: Samples,
    clients: Tensor,
    work: WorkOf,
    metrics: ClientMetrics | None,
) -> float | None:
    """Mean test headline over clients; None where no sample counts, or it is defined for nobody."""
    personal = adapted_models(executor, personal, state, personal.adaptation, work)
    judging = replace(_by_headline(metrics), labels=personal.labels)
    found = _evaluate_split(executor, personal, state, held_out, "test", clients, judging)
    if (values := _headlines(task_of(held_out.y), found)) is not None:
        mean = mean_known(values)
        return None if mean is None else round(mean, 6)
    table = found.sums
    counted = table[table[:, 2] > 0]
    return round(float((counted[:, 1] / counted[:, 2]).mean()), 6) if len(counted) else None


def _on_common_samples(
    executor: Sequential,
    personal: Personal,
    state: State,
    held_out: Samples,
    clients: Tensor,
    metrics: ClientMetrics,
) -> Tensor:
    """Metrics of each client's model on the test samples of all clients, shape (n, metrics).

    Each sample counts once, however many clients have it; a model of several clients is asked once.
    """
    models = _models(personal)
    first = torch.stack([places[0] for _, places in models])
    union = Pooled.union(held_out, "test", clients)
    judged = _evaluate_split(
        executor,
        personal.select(first),
        state,
        held_out,
        "test",
        clients[first],
        Judging(metrics=metrics),
        union,
    )
    values = torch.empty(len(clients), len(metrics.labels), dtype=torch.float64)
    for (_, places), found in zip(models, judged.values, strict=True):
        values[places] = found
    return values


def _evaluate_split(
    executor: Sequential,
    personal: Personal,
    state: State,
    samples: Samples,
    split: str,
    clients: Tensor,
    judging: Judging,
    union: Pooled | None = None,
) -> Judged:
    """Evaluate clients on one of their splits; each process evaluates some of the models.

    Args:
        union: samples on which each of them is evaluated instead; no two clients have one model.

    Returns:
        What is known of all clients; the calibration is the sum of each model's, so it does not
        depend on their distribution over processes.
    """
    judging = replace(judging, predictor=personal.predictor, whole=personal.transductive)
    models = _models(personal)
    one = _Split(executor, personal, state, samples, split, clients, judging, models, union)
    ranks = ProcessGroup.of(executor.workspace.fabric)
    metrics = 0 if judging.metrics is None else len(judging.metrics.labels)
    table = torch.zeros(len(clients), 3, dtype=torch.float64)
    calibration = torch.zeros(len(one.models), judging.bins, 3, dtype=torch.float64)
    values = torch.zeros(len(clients), metrics, dtype=torch.float64)
    found: dict[int, Judged] = {}

    def evaluate_own_share() -> None:
        for together in one.passes(ranks):
            found.update(one.evaluated(together))
        if found:
            places = torch.cat([one.models[number][1] for number in found])
            table[places] = torch.cat([each.sums for each in found.values()]).cpu()
            calibration[list(found)] = torch.stack([each.calibration for each in found.values()])
            values[places] = torch.cat([each.values for each in found.values()])

    ranks.attempt(evaluate_own_share)
    tables = ranks.all_reduce_sum(table), ranks.all_reduce_sum(calibration).sum(dim=0)
    outputs = one.outputs(found, ranks) if judging.keeps_outputs else None
    return Judged(*tables, ranks.all_reduce_sum(values), outputs)


@dataclass(frozen=True)
class _Split:
    """What clients, ids of shape (n,), are evaluated on, and with what.

    Attributes:
        models: the answer of `_models`.
        union: as in `_evaluate_split`.
    """

    executor: Sequential
    personal: Personal
    state: State
    samples: Samples
    split: str
    clients: Tensor
    judging: Judging
    models: Sequence[tuple[int, Tensor]]
    union: Pooled | None = None

    def passes(self, ranks: ProcessGroup) -> list[list[int]]:
        """The models of this process, by their numbers: those of each pass."""
        sizes = self.samples.sizes(self.split)[self.clients].tolist()
        tested = [sum(map(sizes.__getitem__, places.tolist())) for _, places in self.models]
        own = ranks.share(tested)
        if self.union is not None:
            return [[number] for number in own]
        if not self.executor.evaluates_in_lanes or not self.judging.is_alike_for_many:
            return [[number] for number in own]
        tokens = CHUNK // chunk(self.samples.y)
        return passes(own, [tokens * size for size in tested], most_models(self._space))

    def evaluated(self, together: list[int]) -> dict[int, Judged]:
        """What the models of a pass are worth, by their numbers."""
        return evaluate_many(self._space, OWN, together, self._in_one_pass, self._alone)

    def outputs(self, found: Mapping[int, Judged], ranks: ProcessGroup) -> Tensor:
        """What the models say of the samples, one client after the other, shape (m, ...).

        Args:
            found: what the models of this process are worth, by their numbers.
        """
        sizes = self.samples.sizes(self.split)[self.clients]
        lists = torch.arange(int(sizes.sum())).split(sizes.tolist())
        said = {number: each.outputs for number, each in found.items() if each.outputs is not None}
        shapes = ranks.all_gather_object([tuple(one.shape[1:]) for one in said.values()][:1])
        table = torch.zeros(int(sizes.sum()), *next(shape for some in shapes for shape in some))
        for number, each in said.items():
            table[torch.cat([lists[place] for place in self.models[number][1].tolist()])] = each
        return ranks.all_reduce_sum(table)

    @property
    def _space(self) -> Workspace:
        return self.executor.workspace

    @property
    def _bank(self) -> Tensor:
        rows = self.personal.params
        return self.state.models if rows is None else rows

    def _in_one_pass(self, numbers: list[int]) -> list[Judged]:
        """Evaluate models in one pass."""
        some = [self.models[number] for number in numbers]
        rows = plain(take(self._bank, torch.tensor([index for index, _ in some])))
        owners = [places for _, places in some]
        received = entries(self.personal.extras, torch.stack([places[0] for places in owners]))
        received = self._on_device(received)
        clients, counts = self.clients[torch.cat(owners)], list(map(len, owners))
        lanes = PooledLanes.of(self.samples, self.split, clients, counts)
        rows = rows.to(self._space.device)
        return on_their_own_samples(self._space, rows, lanes, received, self.judging)

    def _on_device(self, received: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What clients receive for evaluation, where the models are, as in training."""
        return {name: tensor.to(self._space.device) for name, tensor in received.items()}

    def _alone(self, number: int) -> Judged:
        """Evaluate one model.

        Raises:
            PluginError: a plugin's prediction failed; names the client and the round.
        """
        index, places = self.models[number]
        ids, row = self.clients[places], row_of(self._bank, index)
        received = {name: tensor[places[0]] for name, tensor in self.personal.extras.items()}
        received = self._on_device(received)
        pooled = self.union or Pooled.of(self.samples, self.split, ids)
        try:
            return evaluate_model(self._space, row, pooled, received, self.judging)
        except (FlbenchError, KeyboardInterrupt):
            raise
        except BaseException as error:
            own = self.judging.predictor is None
            raise PluginError(
                f"round {self.state.round}: the evaluation of client {int(ids[0])} failed in"
                f" {self._space.module.provided_by if own else 'its predictor'}:"
                f" {in_one_line(error)}"
            ) from error


def _models(personal: Personal) -> list[tuple[int, Tensor]]:
    """Each distinct model and the places of the clients it is evaluated on: one pass per model.

    Where what a client receives or its other samples matter, one pass per client.
    """
    if personal.params is not None:
        return list(enumerate(torch.arange(len(personal.params)).split(1)))
    assert personal.row is not None
    if personal.extras or personal.transductive:
        places = torch.arange(len(personal.row)).split(1)
        return list(zip(personal.row.tolist(), places, strict=True))
    rows = personal.row.unique().tolist()
    return [(row, (personal.row == row).nonzero()[:, 0]) for row in rows]


def _plain_labels(labels: Tensor) -> list[int]:
    """Labels renumbered by first appearance, so that equal groupings look equal; -1 stays."""
    seen: dict[int, int] = {-1: -1}
    return [seen.setdefault(label, len(seen) - 1) for label in labels.tolist()]
