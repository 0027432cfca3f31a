"""Evaluation of clients' personal models; the only reader of the test split."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from flbench.core.client import LocalWork
from flbench.core.model_bank import plain, row_of, take
from flbench.core.state import Dispatched, Membership, Personal, Stage, State
from flbench.engine.client_metrics import ClientMetrics, Stream
from flbench.engine.cross_evaluation import CHUNK, chunk, evaluate_model
from flbench.engine.lanes.evaluation import PooledLanes, evaluate_lanes, most_models, passes
from flbench.engine.processes.process_group import ProcessGroup
from flbench.engine.sequential import Sequential
from flbench.errors import FlbenchError, PluginError, in_one_line
from flbench.federation.federation import Samples
from flbench.federation.pooled import Pooled
from flbench.metrics import BINS, ClientValues, calibration_error, clustering_error
from flbench.plugin.isolation import streams_kept
from flbench.run.history import Evaluation
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
) -> Evaluation:
    """Evaluate clients (ids, shape (n,)) on their test samples and on their validation samples.

    Args:
        personal: the checked answer of `personalise` for these clients.
        held_out: the pool with the split "test".
        work: what the methods say about training in a stage.
        fine_tune: local epochs after which they are evaluated once more, as a further figure.
        metrics: what is computed of each client's test samples beside accuracy and loss.
    """
    others = {
        name: _tested(executor, other, state, held_out, clients, work)
        for name, other in personal.others.items()
    }
    personal = adapted_models(executor, personal, state, personal.adaptation, work)
    if fine_tune:
        stage = Stage("train", clients, fine_tune, name="fine-tune")
        tuned = replace(personal, adaptation=stage)
        others["fine_tuned"] = _tested(executor, tuned, state, held_out, clients, work)
    test, calibration, values = _evaluate_split(
        executor, personal, state, held_out, "test", clients, BINS, metrics
    )
    validation, *_ = _evaluate_split(
        executor, personal, state, executor.samples, "validation", clients
    )
    return Evaluation(
        round=state.round,
        correct=test[:, 1].long().tolist(),
        tested=test[:, 2].long().tolist(),
        loss=test[:, 0].tolist(),
        validation_correct=validation[:, 1].long().tolist(),
        validation_tested=validation[:, 2].long().tolist(),
        labels=_plain_labels(state.membership.labels()),
        ece=calibration_error(calibration.numpy()),
        others=others,
        client_metrics={} if metrics is None else _by_label(metrics, values),
    )


def _by_label(metrics: ClientMetrics, values: Tensor) -> dict[str, ClientValues]:
    """Values of clients and metrics, shape (n, metrics), as a history keeps them."""
    return {
        label: ClientValues(
            [round(value, 6) if math.isfinite(value) else None for value in column.tolist()],
            metrics.directions[label],
        )
        for label, column in zip(metrics.labels, values.T, strict=True)
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
) -> Evaluation:
    """`evaluate` the clients that are judged; the others have tested nothing.

    Args:
        personal: the checked answer of `personalise` for all N clients.
        judged: ids, shape (n,), ascending.
    """
    clients = len(held_out.splits["test"])
    if len(judged) == clients:
        return evaluate(executor, personal, state, held_out, judged, work, fine_tune, metrics)
    some = only(personal, judged)
    found = evaluate(executor, some, state, held_out, judged, work, fine_tune, metrics)

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
        client_metrics={
            label: ClientValues(spread(list(one.values), None), one.higher_is_better)
            for label, one in found.client_metrics.items()
        },
    )


def only(personal: Personal, places: Tensor) -> Personal:
    """What a client is tested with, of some of the clients: those at `places`, shape (n,)."""
    stage = personal.adaptation
    return replace(
        personal,
        row=None if personal.row is None else personal.row[places],
        params=None if personal.params is None else take(personal.params, places),
        adaptation=stage and stage.select(places),
        extras={name: tensor[places] for name, tensor in personal.extras.items()},
        others={name: only(other, places) for name, other in personal.others.items()},
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
) -> float | None:
    """Mean test accuracy over clients; None where no sample counts."""
    personal = adapted_models(executor, personal, state, personal.adaptation, work)
    table, *_ = _evaluate_split(
        executor, personal, state, held_out, "test", clients, labels=personal.labels
    )
    counted = table[table[:, 2] > 0]
    return round(float((counted[:, 1] / counted[:, 2]).mean()), 6) if len(counted) else None


def _evaluate_split(
    executor: Sequential,
    personal: Personal,
    state: State,
    samples: Samples,
    split: str,
    clients: Tensor,
    bins: int = 0,
    metrics: ClientMetrics | None = None,
    labels: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate clients on one of their splits; each process evaluates some of the models.

    Returns:
        Loss sum, number correct, number tested per client, shape (n, 3), float64; the calibration,
        shape (bins, 3), the sum of each model's, so it does not depend on their distribution over
        processes; values of metrics, shape (n, metrics).
    """
    space, models, whole = executor.workspace, _models(personal), personal.transductive
    bank = state.models if personal.params is None else personal.params
    ranks, sizes = ProcessGroup.of(space.fabric), samples.sizes(split)[clients].tolist()
    table = torch.zeros(len(clients), 3, dtype=torch.float64)
    calibration = torch.zeros(len(models), bins, 3, dtype=torch.float64)
    asked = 0 if metrics is None else len(metrics.labels)
    values = torch.zeros(len(clients), asked, dtype=torch.float64)

    def evaluate_alone(number: int) -> None:
        index, places = models[number]
        row = row_of(bank, index)
        received = {name: tensor[places[0]] for name, tensor in personal.extras.items()}
        ids, rule = clients[places], personal.predictor
        sure = calibration[number] if bins else None
        pooled = Pooled.of(samples, split, ids)
        stream = None
        if metrics is not None:
            stream = Stream(metrics, pooled.positions, pooled.lengths)
        try:
            sums = evaluate_model(
                space, row, pooled, rule, received, sure, stream, labels, whole=whole
            )
        except FlbenchError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginError(
                f"round {state.round}: the evaluation of client {int(ids[0])} failed in"
                f" {space.module.provided_by if rule is None else 'its predictor'}:"
                f" {in_one_line(error)}"
            ) from error
        table[places] = sums.cpu()
        if stream is not None:
            values[places] = stream.values

    def evaluate_in_lanes(numbers: list[int]) -> bool:
        """Whether it could be done."""
        some = [models[number] for number in numbers]
        rows = plain(take(bank, torch.tensor([index for index, _ in some])))
        owners = [places for _, places in some]
        received = {
            name: tensor[torch.stack([places[0] for places in owners])]
            for name, tensor in personal.extras.items()
        }
        lanes = PooledLanes.of(samples, split, clients[torch.cat(owners)], list(map(len, owners)))
        found = evaluate_lanes(space, rows.to(space.device), lanes, received, bins, labels)
        if found is None:
            return False
        table[torch.cat(owners)] = found.sums
        calibration[numbers] = found.calibration
        if metrics is not None:
            for places, pooled, logits in zip(owners, lanes.pools, found.logits, strict=True):
                stream = Stream(metrics, pooled.positions, pooled.lengths)
                stream.add(0, logits, pooled.y)
                values[places] = stream.values
        return True

    def evaluate_own_share() -> None:
        tested = [sum(map(sizes.__getitem__, places.tolist())) for _, places in models]
        own = ranks.share(tested)
        together = [[number] for number in own]
        if executor.evaluates_in_lanes and personal.predictor is None and not whole:
            tokens = CHUNK // chunk(samples.y)
            predictions = [tokens * size for size in tested]
            together = passes(own, predictions, most_models(space))
        for numbers in together:
            if len(numbers) == 1 or not evaluate_in_lanes(numbers):
                for number in sorted(numbers):
                    evaluate_alone(number)

    ranks.attempt(evaluate_own_share)
    calibrations = ranks.all_reduce_sum(calibration).sum(dim=0)
    return ranks.all_reduce_sum(table), calibrations, ranks.all_reduce_sum(values)


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
