"""Runs that newcomers join after the last round: three of nine clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from every import run_of
from toy import Play, Played, both, toy_dataset

from flbench import Personal
from flbench.engine.batches import orders
from flbench.results.schema import Unseen
from flbench.run import newcomers
from flbench.run.evaluation import evaluate

N, M = 6, 3
JOIN: dict[str, Any] = {
    "clients": N + M, "unseen": 0.34, "unseen_epochs": 2, "dataset": toy_dataset(samples=108),
}  # fmt: skip


def joined(play_toy: Play, method: Any, **changes: Any) -> Played:
    """A run that three newcomers will join, of six that train."""
    return run_of(play_toy, method, **{**JOIN, **changes})


def greeted(played: Played) -> tuple[Unseen, list[Personal]]:
    """What `welcome` says, and the two sets of models it judged: as they came, and trained."""
    judged: list[Personal] = []
    real = evaluate

    def watched(executor: Any, personal: Personal, *rest: Any, **more: Any) -> Any:
        judged.append(personal)
        return real(executor, personal, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newcomers, "evaluate", watched)
        unseen = newcomers.evaluate_newcomers(played.run, played.state)
    assert unseen is not None, played.said
    return unseen, judged


def rows(played: Played, personal: Personal) -> torch.Tensor:
    if personal.params is not None:
        return personal.params
    return played.state.models[personal.row]


def by_hand(played: Played, row: torch.Tensor, guest: int, epochs: int, name: str) -> torch.Tensor:
    """Plain cross-entropy with torch's SGD on a newcomer's training samples."""
    run, samples = played.run, both(played.run.newcomers)
    space, own = run.executor.workspace, samples.splits["train"][guest]
    space.load(row)
    net = space.module
    x, y, local = samples.x[own], samples.y[own], run.suite.local
    rule = torch.optim.SGD(net.parameters(), lr=local.lr, momentum=local.momentum)
    address = (run.suite.rounds, N + guest, name, 0)
    net.train()
    for order in orders(len(y), epochs, run.seed, *address):
        for at in range(0, len(y), local.batch_size):
            batch = order[at : at + local.batch_size]
            rule.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            rule.step()
    net.zero_grad()
    return space.row.clone()
