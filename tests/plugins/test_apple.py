"""APPLE: a step and the mixtures by hand, then what moves in a run and what does not."""

from __future__ import annotations

from math import nan
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import Constant, create
from torch import nn
from toy import CLIENTS, Play, composition, watching

import flbench as fl
from flbench_plugins.apple import Relations

TRAIN = fl.Stage("train", torch.tensor([0]), 1)
X, Y = torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)


def client(scale: float) -> Relations:
    """w_1 = (1, 0), w_2 = (0, 2), p = (.5, .5), f(v) = ||v||^2 / 2."""
    module = Relations(Constant(1.0, 0.0), fl.LocalTraining(), torch.tensor([0.5, 0.5]), scale)
    module.loss_function = lambda batch: batch.logits[0].square().sum() / 2
    module.received.update({"cores": torch.tensor([[nan, nan], [0.0, 2.0]])})
    return module


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_step_by_hand(scale: float) -> None:
    """v = (.5, 1) is the slope of f: that of w_1 is half of it, those of p are .5 and 2.

    eta_1 = .1 and scale^2 = eta_2 / eta_1: p = .5 - eta_2 (.5, 2).
    """
    module, rate = client(scale), 0.1 * scale**2
    loss = module.training_step((X, Y), 0)
    loss.backward()
    assert loss.item() == (0.25 + 1) / 2
    net: Any = module.net
    assert net.logits.grad.tolist() == [0.25, 0.5]
    with torch.no_grad():
        module.relation -= 0.1 * module.relation.grad
    assert module.p.tolist() == pytest.approx([0.5 - rate * 0.5, 0.5 - rate * 2])


@pytest.mark.parametrize(("round_", "weight"), [(1, 0.75), (2, 0.25), (4, None)])
def test_the_term_by_hand(round_: int, weight: float | None) -> None:
    """p - p_0 = (.25, -.25); mu = 16 and L = 3: l(1) = (cos 60 + 1) / 2 = .75, l(2) = .25.

    Half of 16 times l times 2 / 16 is l.
    """
    ctx: Any = SimpleNamespace(
        samples=torch.tensor([10, 30]), clients=2, initial=torch.zeros(1), rounds=6, round=round_
    )
    term = create("apple", mu=16.0, share=0.5).local_term(ctx)
    assert (term is None) is (weight is None)
    if term is not None:
        assert term(client(1.0)).item() == pytest.approx(weight)


def test_mixtures_by_hand(play_toy: Play) -> None:
    """Core models of ones, twos, ...: p_0 gives their mean by samples, p = (0, .., 0, 1) sixes."""
    run = play_toy("apple", rounds=1).run
    rule, ctx = create("apple"), run.context
    core, relation = rule.core(ctx), rule.relation(ctx)
    assert (int(core.sum()), int(relation.sum())) == (28, CLIENTS)
    rows = ctx.initial.repeat(CLIENTS, 1)
    rows[:, core] = torch.arange(1.0, CLIENTS + 1)[:, None]
    first = rule.first(ctx)
    torch.testing.assert_close(rows[0, relation] / rows[0, relation].sum(), first)
    rows[1, relation] = 0.0
    rows[1, relation.nonzero()[5, 0]] = ctx.initial[relation].sum()  # p = 1 for client 5
    state = fl.State(1, rows, fl.Membership(ctx.everybody))
    found = rule.personalise(state, torch.tensor([0, 1]), ctx).params[:, core]
    expected = float(first @ torch.arange(1.0, CLIENTS + 1))
    assert found[:, 0].tolist() == pytest.approx([expected, 6.0])


@pytest.mark.slow
def test_only_ones_own_core_model_and_relations_move(play_toy: Play) -> None:
    uploads: list[Any] = []
    layers = (("apple", create("apple")), ("watch", watching(uploads)))
    played = play_toy(composition(*layers), rounds=1)
    rows, initial = played.state.models, played.run.context.initial
    for client in range(CLIENTS):
        assert torch.equal(rows[client], initial) is (client not in uploads[0].ids.tolist())
    sent = played.run.ledger.totals
    assert sent["down"] == {"model": 0, "cores": 3 * 5 * 28 * 4}
    assert sent["up"] == {"model": 3 * 28 * 4}


def test_buffers_that_nobody_reads_are_not_sent(play_toy: Play) -> None:
    """3 x 4 + 4, 4 + 4 and 4 x 4 + 4 parameters of each client of the cohort."""

    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))

    played = play_toy("apple", net=normed, rounds=1)
    assert played.run.ledger.totals["up"] == {"model": 3 * (16 + 8 + 20) * 4}


@pytest.mark.slow
def test_alone_and_without_relations_to_learn_it_is_local_training(play_toy: Play) -> None:
    one = {"clients": 1, "participation": 1.0, "partition": {"name": "iid"}}
    played = play_toy("apple", settings={"relation_lr": 1e-12}, **one)
    found = played.served[0, create("apple").core(played.run.context)]
    alone = play_toy("local-only", **one).served[0]
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_relations_to_clients_of_ones_own_group_grow(play_toy: Play) -> None:
    settings = {"relation_lr": 0.01, "mu": 0.0}
    played = play_toy("apple", settings=settings, rounds=8, participation=1.0)
    ctx, groups = played.run.context, played.run.groups
    relation = create("apple").relation(ctx)
    p = played.state.models[ctx.everybody][:, relation] / ctx.initial[relation].sum()
    mates = groups[:, None] == groups
    assert p[mates].mean() > p[~mates].mean()
