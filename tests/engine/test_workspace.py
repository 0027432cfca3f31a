"""The one module of a run, and the seed of its dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from mentions import mention
from torch import nn
from toy import Play, composition, watching

import flbench as fl
from flbench import ClientModule, LocalTraining
from flbench.core.layout import ParameterLayout
from flbench.engine.workspace import Workspace
from flbench.errors import PluginError


def test_a_seed_decides_what_torch_draws(play_toy: Play) -> None:
    space = play_toy("fedavg", rounds=1).run.executor.workspace
    drawn = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2, 1):
            space.seed(seed)
            drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[2] != drawn[1]


class Drawn(nn.Linear):
    """Notes a number that is drawn in every step."""

    numbers: list[float]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.numbers.append(float(torch.rand(())))
        return super().forward(x)


def test_dropout_is_seeded_by_round_and_client(play_toy: Play) -> None:
    """Of three rounds of all six clients, no two draw the same."""
    layer = Drawn(3, 4)
    layer.numbers = []
    uploads: list[Any] = []
    play_toy(
        composition(("watch", watching(uploads))),
        net=lambda: layer,
        participation=1.0,
        rounds=3,
        local=LocalTraining(epochs=1, batch_size=100, lr=0.1),
    )
    steps = sum(int(upload.steps.sum()) for upload in uploads)
    assert len(set(layer.numbers)) == len(layer.numbers) == steps == 18


@pytest.mark.parametrize(
    ("layer", "found"), [(nn.BatchNorm1d(3), True), (nn.BatchNorm2d(3), True), (nn.ReLU(), False)]
)
def test_batchnorm_is_found_in_every_form(play_toy: Play, layer: nn.Module, found: bool) -> None:
    run = play_toy("fedavg", rounds=1).run
    module = ClientModule(nn.Sequential(layer, nn.Linear(3, 4)), run.context.local)
    layout = ParameterLayout.of(module, head="net.1")
    space = Workspace(run.executor.workspace.fabric, module, layout)
    assert space.has_batchnorm is found


class Replaces(fl.ClientModule):
    """Puts another tensor in the place of a buffer."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining, way: str) -> None:
        super().__init__(net, local)
        self.way = way
        self.register_buffer("seen", torch.zeros(2))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        seen = self.get_buffer("seen")
        if self.way == "written":
            seen.add_(1)
        elif self.way == "assigned":
            self.seen = seen + 1
        else:
            seen.data = seen + 1
        loss: torch.Tensor = super().training_step(batch, batch_idx)
        return loss


@dataclass(frozen=True)
class ReplacesBuffers:
    """Trains with that module."""

    way: str

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Replaces(net, ctx.local, self.way)


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
@pytest.mark.parametrize("way", ["written", "assigned", "data"])
def test_a_buffer_is_written_and_not_replaced(play_toy: Play, way: str, executor: Any) -> None:
    """Its new value would be lost, as it is a view of the row; lanes say so, too."""
    plugin = composition(("mine", ReplacesBuffers(way)))
    if way == "written":
        played = play_toy(plugin, rounds=1, executor=executor)
        (slot,) = (one for one in played.run.executor.workspace.layout.slots if one.name == "seen")
        assert bool((played.state.models[:, slot.start : slot.stop] > 0).all())
        return
    with pytest.raises(PluginError, match=mention("mine", "seen", "self.seen.copy_")):
        play_toy(plugin, rounds=1, executor=executor)
