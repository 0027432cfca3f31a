"""FedPHP: transfers and the inherited model by hand, and the setting in which it is FedAvg."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import THREE, create, wrapped
from toy import Play, composition, watching

import flbench as fl
from flbench_plugins.fedphp import PRIVATE, TIMES, mmd

TRAIN = fl.Stage("train", torch.arange(2), 1)


def test_the_discrepancy_by_hand() -> None:
    """One feature each, at distance 3: the mean squared distance is 9, whatever the distance.

    Each kernel is 1 with itself and e^(-1 / 2^k) with the other, k = -2..2.
    """
    found = mmd(torch.tensor([[0.0]]), torch.tensor([[3.0]]))
    other = sum(math.exp(-(2.0**-k)) for k in range(-2, 3))
    assert found.item() == pytest.approx(2 * 5 - 2 * other)
    z = torch.tensor([[0.0, 1.0], [2.0, 3.0]], requires_grad=True)
    same = mmd(z, z.detach())
    assert same.item() == pytest.approx(0.0, abs=1e-6)
    assert torch.autograd.grad(same, z)[0].isfinite().all()


def batch(times: float) -> Any:
    """The client predicts 1/2, 1/2; its private model 3/4, 1/4 at temperature 2."""
    taught = torch.tensor([[2 * math.log(3), 0.0]])
    received = {"fedphp.private": torch.zeros(1), "fedphp.times": torch.tensor(times)}
    module: Any = SimpleNamespace(
        received=received, forward=None, with_row=lambda row, function, x: taught
    )
    return fl.Batch(module, torch.zeros(1, 1), torch.tensor([0]), torch.zeros(1, 2))


def test_the_transfer_of_predictions_by_hand() -> None:
    """KL = 3/4 log (3/2) + 1/4 log (1/2); a fourth of the loss, but in a client's first round."""
    rule = create("fedphp", transfer="kl", temperature=2.0, lam=0.25)
    loss = wrapped(rule.batch_loss(), lambda batch: torch.tensor(8.0))
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert loss(batch(1.0)).item() == pytest.approx(6 + divergence / 4)
    assert loss(batch(0.0)).item() == 8.0


def test_features_need_a_head() -> None:
    ctx: Any = SimpleNamespace(layout=fl.ParameterLayout((), 3, 0))
    with pytest.raises(fl.Undefined, match="transfer=kl"):
        create("fedphp").setup(ctx)


@pytest.mark.parametrize(("times", "expected"), [(0, 2.0), (1, 5.6), (2, 9.2), (5, 9.2)])
def test_the_inherited_model_by_hand(times: int, expected: float) -> None:
    """q = 10, w = 2; of 4 rounds a client expects 2: mu = .9 times 0, 1/2, 1 and 1."""
    ctx: Any = SimpleNamespace(layout=THREE, cohort=torch.arange(3), clients=6, rounds=4)
    received = {
        "fedphp.private": torch.full((3,), 10.0),
        "fedphp.times": torch.tensor(float(times)),
    }
    module: Any = SimpleNamespace(received=received, row=lambda: torch.full((3,), 2.0))
    kept = create("fedphp").report(TRAIN, ctx)(module, torch.empty(0), torch.empty(0)).kept
    assert kept[PRIVATE].tolist() == pytest.approx([expected] * 3)
    assert kept[TIMES] == times + 1


@pytest.mark.slow
def test_without_transfer_the_server_is_that_of_fedavg(play_toy: Play) -> None:
    uploads: list[Any] = []
    rule = create("fedphp", lam=0.0, mu=0.0)
    played = play_toy(composition(("fedphp", rule), ("watch", watching(uploads))))
    fedavg = play_toy("fedavg")
    assert torch.equal(played.state.models, fedavg.state.models)
    curves = played.run.history.curves, fedavg.run.history.curves
    assert curves[0]["accuracy_global"] == curves[1]["accuracy"]
    private = played.state.memory[PRIVATE]
    assert torch.equal(private[uploads[-1].ids], uploads[-1].selected()), "nothing is inherited"


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["mmd", "kl"])
def test_private_models_teach_from_the_second_round_on(transfer: str, play_toy: Play) -> None:
    one, two = (
        [play_toy(m, rounds=r, participation=1.0, settings=s).state.models for r in (1, 2)]
        for m, s in (("fedavg", None), ("fedphp", {"transfer": transfer, "lam": 0.5}))
    )
    assert torch.equal(one[0], two[0])
    assert not torch.equal(one[1], two[1])


@pytest.mark.slow
def test_any_loss_may_be_mixed_with_the_transfer(play_toy: Play) -> None:
    more = {"rounds": 2, "participation": 1.0}
    both, alone, other = (play_toy(m, **more) for m in ("fedphp+fedlc", "fedphp", "fedlc"))
    models = [played.state.models for played in (both, alone, other)]
    assert not torch.equal(models[0], models[1]) and not torch.equal(models[0], models[2])
