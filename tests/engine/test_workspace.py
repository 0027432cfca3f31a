"""The one module of a run, and the seed of its dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toy import Play, composition, watching

from flbench import ClientModule, LocalTraining
from flbench.core.layout import ParameterLayout
from flbench.engine.workspace import Workspace


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
