"""FedAdagrad, FedAdam and FedYogi: steps by hand, laws, groups."""

from __future__ import annotations

from math import sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import create, toy_upload
from small import cohorts
from toy import Play

import flbench as fl

NAMES = ["fedadagrad", "fedadam", "fedyogi"]
HAND: dict[str, Any] = {"tau": 0.1, "server_lr": 1.0, "beta1": 0.5}


def after(name: str, rounds: list[list[list[float]]], **settings: float) -> fl.State:
    """Three parameters at 0, which two clients with 10 and 30 samples move in each round."""
    rule, home = create(name, **HAND, **settings), fl.Membership(torch.zeros(2, dtype=torch.int64))
    ctx: Any = SimpleNamespace(layout=fl.ParameterLayout((), 3, 0), initial=torch.zeros(3))
    memory = {key: kept.value for key, kept in rule.setup(ctx).memory.items()}
    state = fl.State(0, torch.zeros(1, 3), home, memory)
    for moves in rounds:
        upload = toy_upload((state.models + torch.tensor(moves)).tolist(), [1.0, 1.0])
        upload.samples[1] = 30
        models = rule.aggregate(state, upload, home, ctx)
        state = fl.State(0, models.rows, home, models.memory)
    return state


# The mean moves are (1 * .1 + 3 * .5) / 4 = .4, (0 + 3 * .8) / 4 = .6 and (.24 + 0) / 4 = .06.
ONCE = [[0.1, 0.0, 0.24], [0.5, 0.8, 0.0]]


@pytest.mark.parametrize(
    ("name", "v"),
    [
        ("fedadagrad", [0.17, 0.37, 0.0136]),  # .01 + (.16, .36, .0036)
        ("fedadam", [0.0475, 0.0975, 0.0084]),  # .75 * .01 + .25 * (.16, .36, .0036)
        ("fedyogi", [0.05, 0.1, 0.0091]),  # .01 + .25 * (.16, .36), and .01 - .25 * .0036
    ],
)
def test_a_step_by_hand(name: str, v: list[float]) -> None:
    """v starts at tau^2 = .01; m = .5 (.4, .6, .06); each scalar moves by m / (sqrt(v) + .1)."""
    state = after(name, [ONCE], **({} if name == "fedadagrad" else {"beta2": 0.75}))
    moved = [m / (sqrt(s) + 0.1) for m, s in zip([0.2, 0.3, 0.03], v, strict=True)]
    assert state.memory["fedopt.v"][0].tolist() == pytest.approx(v)
    assert state.memory["fedopt.m"][0].tolist() == pytest.approx([0.2, 0.3, 0.03])
    assert state.models[0].tolist() == pytest.approx(moved)


def test_a_second_step_by_hand() -> None:
    """Nobody moves: m = .5 (.2, ...) = (.1, ...), v = .75 * .0475 = .035625."""
    still = [[0.0] * 3] * 2
    first, second = (after("fedadam", moves, beta2=0.75) for moves in ([ONCE], [ONCE, still]))
    assert second.memory["fedopt.m"][0, 0].item() == pytest.approx(0.1)
    assert second.memory["fedopt.v"][0, 0].item() == pytest.approx(0.035625)
    moved = (second.models - first.models)[0, 0].item()
    assert moved == pytest.approx(0.1 / (sqrt(0.035625) + 0.1), rel=1e-5)


@pytest.mark.slow
def test_momentum_without_adaptation_is_fedavgm(play_toy: Play) -> None:
    """m of FedAdam is .1 times the momentum of FedAvgM."""
    plain = {"tau": 2.0**60, "beta2": 0.0, "server_lr": 10 * 2.0**60}
    adam, momentum = play_toy("fedadam", settings=plain), play_toy("fedavgm")
    torch.testing.assert_close(adam.state.models, momentum.state.models, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_group_has_moments_of_its_own(name: str, play_toy: Play) -> None:
    played = play_toy(f"oracle+{name}", settings={"warmup": 1}, participation=1.0)
    m = played.state.memory["fedopt.m"]
    assert m.shape == (2, played.run.context.layout.parameters)
    assert not torch.equal(m[0], m[1])
    assert not play_toy(f"ifca+{name}").said


def test_a_row_without_uploads_stays(play_toy: Play) -> None:
    played = play_toy("local-only+fedadam", rounds=1)
    state, ctx = played.state, played.run.context
    (cohort,) = cohorts(played)
    absent = [i for i in range(ctx.clients) if i not in cohort]
    assert len(absent) == 3 and not state.memory["fedopt.m"][absent].any()
    assert torch.equal(state.models[absent], ctx.initial.expand(len(absent), -1))
    assert state.memory["fedopt.m"][cohort].any(dim=1).all()
