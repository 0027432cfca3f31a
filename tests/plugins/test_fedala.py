"""FedALA: a step of the weights by hand, when it ends, and the setting in which it is FedAvg."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import THREE, create
from small import cohorts
from toy import CLIENTS, Play, composition, watching

import flbench as fl
from flbench_plugins.fedala import LOCAL, MOST, WEIGHTS

TRAIN = fl.Stage("train", torch.arange(2), 1)


class Logits:
    """A context whose models are their logits of three classes; counts the passes."""

    round, clients, layout = 5, 2, THREE
    local = fl.LocalTraining(batch_size=10)

    def __init__(self) -> None:
        self.passes = 0

    def rng(self, *_: object, client: int) -> Any:
        return SimpleNamespace(permutation=lambda size: list(range(size)))

    def client_data(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)

    def forward(self, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return rows[:, None].expand(-1, len(x), -1)


def test_a_step_of_the_weights_by_hand() -> None:
    """w = 0, w_i = (3, -3, 0): p = 1/3 each, label 0: slopes (-2/3, 1/3, 1/3), gaps (-3, 3, 0).

    W = 1 - .1 (2, 1, 0); with eta = 2 the first two are clipped to 0.
    """
    common, own, ones = torch.zeros(3), torch.tensor([3.0, -3.0, 0.0]), torch.ones(3)
    rule: Any = create("fedala", layers=2, eta=0.1, share=1.0)
    ctx: Any = Logits()
    found = rule.learned(common, own, ones, 0, ctx)
    torch.testing.assert_close(found, torch.tensor([0.8, 0.9, 1.0]))
    assert ctx.passes == 1, "one epoch of one batch"
    rule = create("fedala", layers=2, eta=2.0, share=1.0)
    assert rule.learned(common, own, ones, 0, ctx).tolist() == [0.0, 0.0, 1.0]


def test_the_start_by_hand() -> None:
    """Only the head is mixed: .25 of 8 and .75 of 4; who has no own model starts from w.

    Clients are tested with what they would start from.
    """
    memory = {
        LOCAL: torch.tensor([[1.0, 2.0, 4.0], [torch.nan] * 3]),
        WEIGHTS: torch.tensor([[0.25], [torch.nan]]),
    }
    home = fl.Membership(torch.zeros(2, dtype=torch.int64))
    state, ctx = fl.State(0, torch.full((1, 3), 8.0), home, memory), Logits()
    rule: Any = create("fedala")
    assert rule.dispatch(state, TRAIN, ctx).params[:, 0].tolist() == [[8, 8, 5], [8, 8, 8]]
    found = rule.personalise(state, torch.arange(2), ctx)
    assert found.params.tolist() == [[8, 8, 5], [8, 8, 8]]
    assert found.others["local"].params.tolist() == [[1, 2, 4], [8, 8, 8]]


def test_the_first_use_goes_on_until_losses_settle() -> None:
    rule: Any = create("fedala", threshold=0.5)
    assert not rule.settled([2.0] * 10), "eleven are needed, so that the first does not count"
    assert rule.settled([99.0] + [2.0] * 10)
    assert rule.settled([2.0] * 6 + [2.9] * 5), "five of ten losses are .9 apart: .45"
    assert not rule.settled([2.0] * 6 + [3.1] * 5)
    assert rule.settled([0.0, 9.0] * (MOST // 2))
    common, own, ctx = torch.zeros(3), torch.tensor([3.0, -3.0, 0.0]), Logits()
    assert create("fedala").threshold == 0.1  # type: ignore[attr-defined]
    first: Any = create("fedala", layers=2, eta=0.1, threshold=0.01)
    found = first.learned(common, own, torch.full((3,), torch.nan), 0, ctx)
    assert 11 <= ctx.passes < MOST
    assert found[0] == 0.0, "its own logit of the only label is the better one"
    assert math.isclose(found[2], 1.0)


# --- in a run -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_weights_that_stay_one_are_fedavg(play_toy: Play) -> None:
    uploads: list[Any] = []
    layers = (("fedala", create("fedala", eta=0.0)), ("watch", watching(uploads)))
    played, fedavg = play_toy(composition(*layers)), play_toy("fedavg")
    assert torch.equal(played.state.models, fedavg.state.models)
    assert played.run.ledger.totals == fedavg.run.ledger.totals
    curves = played.run.history.curves, fedavg.run.history.curves
    assert curves[0]["accuracy_global"] == curves[1]["accuracy"]
    own = played.state.memory[LOCAL]
    assert torch.equal(own[uploads[-1].ids], uploads[-1].selected()), "who trained last"
    mixed = play_toy("fedala")
    assert not torch.equal(mixed.state.models, fedavg.state.models)


@pytest.mark.slow
def test_who_trains_again_has_weights(play_toy: Play) -> None:
    played = play_toy("fedala", settings={"layers": 2}, rounds=2)
    first, second = cohorts(played)
    weights = played.state.memory[WEIGHTS]
    assert set(first) & set(second) and set(second) - set(first)
    for client in range(CLIENTS):
        learned = client in first and client in second
        assert bool(weights[client].isnan().any()) is not learned
        if learned:
            assert 0 <= weights[client].min() < 1
            assert weights[client].max() <= 1
