"""FedEM: the E-step, the M-step and the mixture by hand; components that become different."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import Constant, create
from small import NEWCOMERS, Door
from toy import CLIENTS, Play, composition

import flbench as fl
from flbench_plugins.fedem import MEMORY, Components

TRAIN = fl.Stage("train", torch.arange(2), 1)
X, Y = torch.zeros(3, 1), torch.tensor([0, 0, 1])
THREE_TO_ONE = [math.log(3), 0.0]


def client(*pi: float) -> Components:
    """Two components that give label 0 the probabilities 3/4 and 1/4."""
    module = Components(Constant(*THREE_TO_ONE), fl.LocalTraining(), 2)
    other: Any = module.others[0]
    other.logits.data = torch.tensor(THREE_TO_ONE).flip(0)
    module.layout = fl.ParameterLayout.of(module)
    module.start = module.row()
    module.received.update({"pi": torch.tensor(pi)} if pi else {})
    return module


def test_an_e_step_by_hand() -> None:
    """pi = (1/2, 1/2): q of label 0 is (3/4, 1/4), of label 1 (1/4, 3/4).

    With pi = (3/4, 1/4): 9/16 to 1/16, and 3/16 to 3/16.
    """
    for module in (client(0.5, 0.5), client()):
        q = module.shares(module.losses(X, Y))
        torch.testing.assert_close(q, torch.tensor([[0.75, 0.75, 0.25], [0.25, 0.25, 0.75]]))
    uneven = client(0.75, 0.25)
    q = uneven.shares(uneven.losses(X, Y))
    torch.testing.assert_close(q[0], torch.tensor([0.9, 0.9, 0.5]))


def test_an_m_step_by_hand() -> None:
    """pi is the mean of 3/4, 3/4 and 1/4: 7/12. It is that of the start, wherever training ends."""
    module, rule = client(0.5, 0.5), create("fedem", m=2)
    other: Any = module.net
    other.logits.data += 5.0 * torch.tensor([1.0, 0.0])
    kept = rule.report(TRAIN)(module, X, Y).kept[MEMORY]
    torch.testing.assert_close(kept, torch.tensor([7 / 12, 5 / 12]))


def test_a_step_by_hand() -> None:
    """One sample of label 0: 3/4 (-log 3/4) + 1/4 (-log 1/4); slopes 3/4 (3/4 - 1), 1/4 (1/4 - 1).

    After the first component has moved, q is still that of the start.
    """
    module = client(0.5, 0.5)
    loss = module.training_step((X[:1], Y[:1]), 0)
    loss.backward()
    assert loss.item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    slopes = [p.grad[0].item() for p in module.parameters() if p.grad is not None]
    assert slopes == pytest.approx([-3 / 16, -3 / 16])
    net: Any = module.net
    net.logits.data = torch.zeros(2)
    assert module.training_step((X[:1], Y[:1]), 0).item() == pytest.approx(
        0.75 * math.log(2) - 0.25 * math.log(0.25)
    )


def test_the_mixture_by_hand() -> None:
    """3/4 of 3/4 and 1/4 of 1/4: 10/16."""
    assert client(0.75, 0.25).predict(X[:1]).exp()[0].tolist() == pytest.approx([0.625, 0.375])


def test_a_newcomer_by_hand() -> None:
    """Labels 0, 0, 1: one EM step gives 7/12; each component is asked by itself."""
    module = client()
    assert module.layout is not None

    def logits(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([module.with_row(row, module.predict, x) for row in rows])

    ctx: Any = SimpleNamespace(
        layout=module.layout, client_data=lambda client: (X, Y), logits=logits
    )
    found = create("fedem", m=2, fit_steps=1).fitted(module.row(), 7, ctx)
    torch.testing.assert_close(found, torch.tensor([7 / 12, 5 / 12]))


# --- in a run -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_components_start_apart_and_groups_prefer_different_ones(play_toy: Play) -> None:
    swapped = {"partition": {"name": "label-groups", "groups": 2}, "participation": 1.0}
    played = play_toy("fedem", settings={"m": 2}, rounds=8, **swapped)
    rule, ctx = create("fedem", m=2), played.run.context
    parts = rule.parts(ctx)
    first = rule.setup(ctx).models[0]
    assert torch.equal(first[parts[0]], ctx.initial[parts[0]])
    assert torch.equal(first[parts[1]], ctx.fresh_initial(1)[parts[0]])
    assert not torch.equal(first[parts[0]], first[parts[1]])
    pi, groups = played.state.memory[MEMORY], played.run.groups
    torch.testing.assert_close(pi.sum(dim=1), torch.ones(CLIENTS))
    mean = torch.stack([pi[groups == group].mean(dim=0) for group in (0, 1)])
    assert (mean[0] - mean[1]).abs().max() > 0.2


@pytest.mark.slow
def test_newcomers_fit_their_mixture_weights(play_toy: Play) -> None:
    found: list[Any] = []

    def look(state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> Any:
        rule = create("fedem")
        assert rule.dispatch(state, TRAIN).client_memory["pi"].shape == (2, 3)
        return rule.join(state, clients, ctx).extras["pi"]

    layers = (("fedem", create("fedem")), ("door", Door(look, found)))
    played = play_toy(composition(*layers), **NEWCOMERS)
    assert len(played.result.unseen.correct) == 3
    torch.testing.assert_close(found[0].sum(dim=1), torch.ones(3))
    assert (found[0] - 1 / 3).abs().amax(dim=1).min() > 1e-3
