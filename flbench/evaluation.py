"""Evaluation of every client's personal model; the only reader of the test split."""

from __future__ import annotations

import torch
from torch import Tensor

from flbench.engine.cross_eval import judge
from flbench.engine.sequential import Sequential
from flbench.federation import Samples
from flbench.history import Evaluation
from flbench.state import Dispatched, Personal, State


def evaluate(
    executor: Sequential,
    personal: Personal,
    state: State,
    held_out: Samples,
    round_: int,
) -> Evaluation:
    """Judge all N clients on their test samples (and, for choosing, their validation samples).

    Args:
        executor: trains the adaptation stage, if there is one; its workspace judges.
        personal: the checked answer of `personalise` for clients 0..N-1.
        state: where rows of the bank are looked up.
        held_out: the pool with the split "test".
        round_: the round just played.
    """
    clients = torch.arange(len(state.membership.home))
    if personal.adaptation is not None:
        personal = _adapted(executor, personal, state, round_)
    tables = {}
    for split, samples in (("test", held_out), ("validation", executor.samples)):
        table = torch.zeros(len(clients), 3, dtype=torch.float64)
        for row, served in _models(personal, state, clients):
            received = {name: tensor[served[0]] for name, tensor in personal.extras.items()}
            table[served] = judge(
                executor.workspace,
                row,
                samples,
                split,
                served,
                personal.predictor,
                received,
            ).cpu()
        tables[split] = table
    test, validation = tables["test"], tables["validation"]
    return Evaluation(
        round=round_,
        correct=test[:, 1].long().tolist(),
        judged=test[:, 2].long().tolist(),
        loss=test[:, 0].tolist(),
        validation_correct=validation[:, 1].long().tolist(),
        validation_judged=validation[:, 2].long().tolist(),
        labels=_plain_labels(state.membership.labels()),
    )


def _models(personal: Personal, state: State, clients: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Each distinct model and the clients it is judged on: one pass per model."""
    if personal.params is not None:
        return [(personal.params[i], clients[i : i + 1]) for i in range(len(clients))]
    assert personal.row is not None
    if personal.extras:
        return [(state.models[personal.row[i]], clients[i : i + 1]) for i in range(len(clients))]
    rows = personal.row.unique()
    return [(state.models[row], clients[personal.row == row]) for row in rows]


def _adapted(executor: Sequential, personal: Personal, state: State, round_: int) -> Personal:
    """Train a copy of each personal model as `personal.adaptation` says."""
    stage = personal.adaptation
    assert stage is not None
    rows = state.models[personal.row] if personal.params is None else personal.params
    everything = torch.ones(rows.shape, dtype=torch.bool)
    start = Dispatched(
        params=rows[:, None, :],
        active=torch.ones(len(rows), 1, dtype=torch.bool),
        rows=None,
        crosses=everything,
        returns=everything,
        own=personal.extras,
    )
    upload = executor.fit(start, stage, (), round_)
    return Personal(params=upload.kept(), predictor=personal.predictor, extras=personal.extras)


def _plain_labels(labels: Tensor) -> list[int]:
    """Labels renumbered by first appearance, so that equal groupings look equal; -1 stays."""
    seen: dict[int, int] = {-1: -1}
    return [seen.setdefault(label, len(seen) - 1) for label in labels.tolist()]
