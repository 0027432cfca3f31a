"""What becomes of buffers under each policy."""

from __future__ import annotations

import torch
from torch import nn
from toy import Play

from flbench import Personal
from flbench.core.state import Dispatched
from flbench.engine import batchnorm


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))


def test_own_models_are_evaluated_with_own_buffers(play_toy: Play) -> None:
    played = play_toy("fedavg", net=net, rounds=1, buffers="local")
    layout, state = played.run.context.layout, played.state
    ids = torch.tensor([1, 3])
    own = state.memory[batchnorm.OWN].clone()
    own[ids] = torch.arange(2.0)[:, None] + 7
    state = state.remember({batchnorm.OWN: own})
    further = Personal(row=state.membership.home[ids])
    personal = Personal(row=state.membership.home[ids], others={"further": further})
    found = batchnorm.before_evaluation("local", personal, state, ids, layout)
    for one in (found, found.others["further"]):
        assert one.params is not None
        assert one.params[:, layout.parameters :].unique(dim=1).tolist() == [[7.0], [8.0]]
        assert torch.equal(
            one.params[:, : layout.parameters],
            state.models[state.membership.home[ids], : layout.parameters],
        )


def test_clients_start_with_their_own_buffers(play_toy: Play) -> None:
    played = play_toy("fedavg", net=net, rounds=1, buffers="local")
    layout, state, initial = played.run.context.layout, played.state, played.run.context.initial
    own = torch.arange(6.0)[:, None].expand(6, layout.width - layout.parameters)
    state = state.remember({batchnorm.OWN: own})
    start = Dispatched.whole(state.models[[0, 0]])
    ids = torch.tensor([2, 5])
    found = batchnorm.before_training("local", start, state, ids, layout, initial)
    assert found.params[:, 0, layout.parameters :].unique(dim=1).tolist() == [[2.0], [5.0]]
    assert not found.sent_mask[:, layout.parameters :].any(), "they stay with the client"
