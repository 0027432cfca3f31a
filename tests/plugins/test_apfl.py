"""APFL by hand: the step of a share, the mixture that is predicted with, and who has which."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import create
from small import cohorts
from torch import nn
from toy import Play

import flbench as fl
from flbench_plugins.apfl import SHARE, Mixture

# Logits of two labels are the model: w, then v.
NET = torch.tensor([True, True, False, False])
LAYOUT: Any = SimpleNamespace(
    submodule=lambda name: NET if name == "net" else ~NET, trainable=torch.ones(4, dtype=torch.bool)
)


class Logits:
    """A context whose models are their logits."""

    round, layout = 3, LAYOUT

    def __init__(self, labels: list[int], lr: float) -> None:
        self.y, self.local = torch.tensor(labels), fl.LocalTraining(batch_size=2, lr=lr)

    def rng(self, *_: object, client: int) -> Any:
        return SimpleNamespace(permutation=lambda size: list(range(size)))

    def client_data(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(self.y), 1), self.y

    def forward(self, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """As `Mixture.predict` with a share of .125, whatever the client's own is."""
        return (0.875 * rows[:, :2] + 0.125 * rows[:, 2:])[:, None].expand(-1, len(x), -1)


@pytest.mark.parametrize(
    ("labels", "lr", "expected"),
    [
        # u = .25 v = (.5, -.5): the slope of u is (-q, q), q = 1 / (1 + e); <v - w, .> = -4 q
        ([0, 0], 0.1, 0.25 + 0.1 * 4 / (1 + math.e)),
        ([0, 0], 9.0, 1.0),
        # of label 1 it is (p, -p), p = 1 - q
        ([1, 1], 0.05, 0.25 - 0.05 * 4 * math.e / (1 + math.e)),
        ([1, 1], 9.0, 0.0),
        # of one sample each, in a batch of two; the third is in no batch
        ([0, 1, 1], 0.1, 0.25 - 0.1 * 2 * (math.e - 1) / (1 + math.e)),
    ],
)
def test_a_step_of_the_share_by_hand(labels: list[int], lr: float, expected: float) -> None:
    """w = (0, 0), v = (2, -2), alpha = 1/4."""
    row, alpha = torch.tensor([0.0, 0.0, 2.0, -2.0]), torch.tensor(0.25)
    ctx: Any = Logits(labels, lr)
    found = create("apfl").moved(row, alpha, 0, ctx)
    assert found.item() == pytest.approx(expected)
    assert (row.tolist(), alpha.item()) == ([0, 0, 2, -2], 0.25), "nothing else has changed"
    assert not alpha.requires_grad and not found.requires_grad


def test_predictions_are_those_of_the_client_s_mixture() -> None:
    """w = 1, v = 5: a quarter of v gives 2, the parameter alpha = 1/2 gives 3."""
    module = Mixture(nn.Linear(1, 1, bias=False), fl.LocalTraining(), 0.5)
    module.net.weight.data.fill_(1.0)
    module.own.weight.data.fill_(5.0)
    x = torch.ones(1, 1)
    assert module.predict(x).item() == 3.0
    module.received[SHARE] = torch.tensor(0.25)
    assert module.predict(x).item() == 2.0


def test_the_loss_of_the_mixture_trains_the_own_model_alone() -> None:
    """Logits (0, 0) of label 0: slopes (-.5, .5), of v times alpha."""
    module = Mixture(nn.Linear(1, 2, bias=False), fl.LocalTraining(), 0.25)
    for net in (module.net, module.own):
        net.weight.data.zero_()
    module.training_step((torch.ones(1, 1), torch.tensor([0])), 0).backward()
    assert module.net.weight.grad.flatten().tolist() == [-0.5, 0.5]
    assert module.own.weight.grad.flatten().tolist() == [-0.125, 0.125]


@pytest.mark.slow
def test_who_trains_moves_its_share_and_keeps_it(play_toy: Play) -> None:
    """In round 1 both models are the initial one, so that the share has no slope."""
    played = play_toy("apfl", rounds=2)
    shares, (_, second) = played.state.memory[SHARE], cohorts(played)
    assert 0 < len(second) < len(shares)
    for client, share in enumerate(shares.tolist()):
        assert (share != 0.5) is (client in second)
        assert 0 <= share <= 1
    fixed = play_toy("apfl", rounds=2, settings={"adaptive": False})
    assert SHARE not in fixed.state.memory
    assert fixed.run.ledger.totals == played.run.ledger.totals, "the share stays at the client"
    assert not torch.equal(fixed.personal, played.personal)
