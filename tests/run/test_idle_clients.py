"""Clients that make no training step are told of, and where they are most, the run is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from toy import Play, composition

from flbench.core.client_module import ClientModule
from flbench.core.hookspecs import hookimpl
from flbench.core.state import Stage
from flbench.errors import UserError
from flbench.run.idle_clients import message, of_sizes


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))


class Threes(ClientModule):
    batches_per_step = 3


def test_a_step_of_several_batches_needs_them(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Method:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return Threes(net, ctx.local)

    with pytest.raises(UserError, match=r"3 of 3 clients make no training step .* takes 3 batches"):
        play_toy(composition(("threes", Method())), local={"batch_size": 4})


@dataclass(frozen=True)
class Small:
    """Some of the clients train on one sample."""

    few: int

    @hookimpl
    def plan(self, state: Any, ctx: Any) -> list[Stage]:
        everybody = torch.arange(6)
        few, others = everybody[: self.few], everybody[self.few :]
        return [
            Stage("probe", everybody, 1, name="whole"),
            Stage("train", others, 1),
            Stage("probe", few, 1, name="single", samples=1),
        ]


def test_a_single_sample_before_batchnorm_is_no_step(play_toy: Play) -> None:
    with pytest.raises(UserError, match=r"2 of 2 clients .* stage 'single' .* of one sample"):
        play_toy(composition(("small", Small(2))), net=normed)
    played = play_toy(composition(("small", Small(2))))
    assert not [line for line in played.said if "no training step" in line]


@dataclass(frozen=True)
class Resting:
    """Some clients are given no epoch."""

    idle: int

    @hookimpl
    def plan(self, state: Any, ctx: Any) -> list[Stage]:
        epochs = (torch.arange(6) >= self.idle).float()
        return [Stage("train", torch.arange(6), epochs)]


def test_clients_that_are_to_rest_are_not_idle(play_toy: Play) -> None:
    played = play_toy(composition(("resting", Resting(5))))
    assert not [line for line in played.said if "no training step" in line]


def test_the_clients_that_are_idle_are_counted(play_toy: Play) -> None:
    """In batches of four: 5 and 9 samples leave one over, 1 sample leaves none to train on."""
    space = play_toy("fedavg", net=normed, local={"batch_size": 4}).run.executor.workspace
    assert of_sizes(space, torch.tensor([1, 5, 9, 4, 1])) == 2
    assert "2 of 5 clients make no training step in stage 'train'" in message(2, 5, "train", space)
    assert message(0, 5, "train", space) == ""
    with pytest.raises(UserError, match="3 of 5 clients"):
        message(3, 5, "train", space)
    plain = play_toy("fedavg", local={"batch_size": 4}).run.executor.workspace
    assert of_sizes(plain, torch.tensor([1, 5, 9, 4, 1])) == 0
