"""Methods named together: each decides its part, and with a part switched off the other is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from by_hand import create
from mentions import mention
from torch import nn
from toy import Play, Played, composition, toy_suite

import flbench as fl
from flbench.errors import Undefined


def same(one: Played, other: Played) -> bool:
    """Whether two runs end with the same models, to the bit."""
    return torch.equal(one.state.models, other.state.models) and one.personal.equal(other.personal)


OFF = [
    ("moon+fedlc", {"moon.mu": 0.0}, "fedlc", {}),
    ("moon+fedlc", {"fedlc.tau": 0.0}, "moon", {}),
    ("fedbabu+fedlc", {"fedlc.tau": 0.0}, "fedbabu", {}),
    ("scaffold+fedlc", {"fedlc.tau": 0.0}, "scaffold", {}),
    ("ifca+q-fedavg", {"ifca.k": 1}, "q-fedavg", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("names", "settings", "other", "its"), OFF)
@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_a_part_that_is_switched_off_leaves_the_other(
    names: str, settings: Any, other: str, its: Any, executor: str, play_toy: Play
) -> None:
    both = play_toy(names, settings=settings, executor=executor, rounds=3)
    assert same(both, play_toy(other, settings=its or None, executor=executor, rounds=3))


@pytest.mark.slow
@pytest.mark.parametrize("names", ["moon+fedlc", "fedbabu+fedlc", "scaffold+fedlc"])
def test_both_losses_count(names: str, play_toy: Play) -> None:
    first, second = names.split("+")
    settings = {"moon.mu": 3.0} if first == "moon" else None
    both, one, other = (
        play_toy(names, settings=settings, rounds=3),
        play_toy(first, settings={"mu": 3.0} if first == "moon" else None, rounds=3),
        play_toy(second, rounds=3),
    )
    assert not same(both, one) and not same(both, other)


@pytest.mark.slow
def test_fedbabu_never_moves_the_head(play_toy: Play) -> None:
    played = play_toy("fedbabu+fedlc", rounds=3)
    ctx = played.run.context
    head, body = ctx.layout.head, ctx.layout.body
    assert torch.equal(played.state.models[0][head], ctx.initial[head])
    assert not torch.equal(played.state.models[0][body], ctx.initial[body])
    sent = played.run.ledger.totals
    assert sent["up"]["model"] == 3 * 3 * 4 * int(body.sum()), "3 rounds, 3 clients, 4 bytes"


def test_scaffold_keeps_its_variates_under_another_loss(play_toy: Play) -> None:
    played = play_toy("scaffold+fedlc", rounds=2)
    assert played.state.memory["scaffold.c_i"].abs().sum() > 0


@pytest.mark.slow
def test_q_fedavg_in_every_group_of_ifca(play_toy: Play) -> None:
    """q = 0 is the uniform mean in each group."""
    uniform = play_toy("ifca", settings={"weighting": "uniform"}, rounds=3, participation=1.0)
    fair = play_toy("ifca+q-fedavg", settings={"q-fedavg.q": 0.0}, rounds=3, participation=1.0)
    torch.testing.assert_close(fair.state.models, uniform.state.models)
    other = play_toy("ifca+q-fedavg", settings={"q-fedavg.q": 2.0}, rounds=3, participation=1.0)
    assert not torch.allclose(other.state.models, uniform.state.models)


@pytest.mark.slow
def test_power_of_choice_leaves_the_probe_of_pfedlia_alone(play_toy: Play) -> None:
    suite = toy_suite(participation=0.5, rounds=4)
    both = play_toy("power-of-choice+pfedlia", settings={"pfedlia.warmup": 2}, suite=suite)
    assert both.run.history.scores is not None
    assert both.run.history.scores.values.shape == (6, 6), "everybody is probed"
    alone = play_toy("pfedlia", settings={"warmup": 2}, suite=suite)
    assert not same(both, alone)
    whole = toy_suite(participation=1.0, rounds=4)
    both = play_toy("power-of-choice+pfedlia", settings={"pfedlia.warmup": 2}, suite=whole)
    assert same(both, play_toy("pfedlia", settings={"warmup": 2}, suite=whole))


@pytest.mark.slow
def test_neighbours_of_the_models_of_fedrep(play_toy: Play) -> None:
    alone, off, mixed = (
        play_toy("fedrep", rounds=2),
        play_toy("knn-per+fedrep", settings={"knn-per.share": 0.0}, rounds=2),
        play_toy("knn-per+fedrep", rounds=2),
    )
    assert alone.run.history.last.correct == off.run.history.last.correct
    assert same(alone, mixed), "only the prediction is another"
    assert mixed.run.history.last.loss != alone.run.history.last.loss
    assert mixed.run.history.last.others["model"] == pytest.approx(
        alone.run.history.curves["accuracy"][-1], abs=1e-6
    )


class OwnLoss(fl.ClientModule):
    """A module that takes no `batch_loss`."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return fl.cross_entropy(self(x), y)


@dataclass(frozen=True)
class Alone:
    """A method with such a module."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return OwnLoss(net, ctx.local)


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_a_loss_that_another_method_does_not_take_is_refused(executor: str, play_toy: Play) -> None:
    stack = composition(("alone", Alone()), ("fedlc", create("fedlc")))
    with pytest.raises(Undefined, match=mention("fedlc", "training_step")):
        play_toy(stack, executor=executor, rounds=1)
