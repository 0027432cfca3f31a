"""FedLC, MOON, q-FedAvg, power-of-choice, kNN-Per and pFedHN by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import batch, create, toy_upload
from toy import (
    WIDTH,
    Play,
    composition,
    plain_work,
    toy_dataset,
    watching,
)

import flbench as fl


def test_fedlc_by_hand() -> None:
    """Counts 1 and 16: margins 1 and .5. Logits (0, 0) become (-1, -.5): -log e^-1/(e^-1+e^-.5)."""
    ctx = SimpleNamespace(
        own_label_counts=lambda ids: torch.tensor([[1, 16, 0]])[ids], initial=torch.zeros(1)
    )
    stage = fl.Stage("train", torch.tensor([0]), 1)
    margin = create("fedlc").dispatch(stage, ctx).client_memory["margin"][0]
    assert margin.tolist() == [1.0, 0.5, float("inf")]
    loss = create("fedlc").batch_loss()(batch([[0.0, 0.0, 9.0]], [0], margin=margin))
    assert loss.item() == pytest.approx(math.log(1 + math.exp(0.5)))
    newcomer = create("fedlc").batch_loss()(batch([[0.0, 0.0]], [0]))
    assert newcomer.item() == pytest.approx(math.log(2)), "counts are not known"


def test_moon_by_hand() -> None:
    """z = (1, 0), global (1, 0), previous (0, 1), tau .5: -log e^2 / (e^2 + e^0)."""
    ends = {0: torch.tensor([[1.0, 0.0]]), 1: torch.tensor([[0.0, 1.0]])}
    module = SimpleNamespace(
        start=0, received={"previous": 1}, with_row=lambda row, function, x: ends[row]
    )
    one = fl.Batch(
        module,  # type: ignore[arg-type]
        torch.zeros(1, 1),
        torch.tensor([0]),
        torch.zeros(1, 2),
        torch.tensor([[1.0, 0.0]]),
    )
    found = create("moon", tau=0.5).contrast(one)
    assert found.item() == pytest.approx(math.log(1 + math.exp(-2)))


def test_moon_does_not_remember_the_models_of_a_probe() -> None:
    module: Any = SimpleNamespace(row=lambda: torch.ones(1))
    kept = {}
    for kind in ("train", "probe"):
        report = create("moon").report(stage=fl.Stage(kind, torch.arange(1), 1))
        kept[kind] = report and report(module, None, None).kept
    assert kept == {"train": {"moon.previous": 1.0}, "probe": None}


def test_q_fedavg_by_hand() -> None:
    """w = (0, 0), w_1 = (-.1, 0), w_2 = (0, -.2), L = 10, F = (1, 2), q = 1.

    Delta = (1, 0), (0, 2); h = 1 + 10, 4 + 20; step = ((1, 0) + 2 (0, 2)) / 35.
    """
    ctx = SimpleNamespace(
        layout=SimpleNamespace(parameters=2, counters=torch.zeros(2, dtype=torch.bool)),
        local=fl.LocalTraining(lr=0.1),
        send=lambda *sent: None,
    )
    home = fl.Membership(torch.zeros(2, dtype=torch.int64))
    state = fl.State(0, torch.zeros(1, 2), home)
    upload = toy_upload([[-0.1, 0.0], [0.0, -0.2]], [1.0, 2.0])
    found = create("q-fedavg").aggregate(state, upload, home, ctx)
    torch.testing.assert_close(found.rows, torch.tensor([[-1 / 35, -4 / 35]]))
    flat = create("q-fedavg", q=0.0).aggregate(state, upload, home, ctx)
    torch.testing.assert_close(flat.rows, torch.tensor([[-0.05, -0.1]]))


def test_power_of_choice_takes_the_largest_losses(play_toy: Play) -> None:
    uploads: list[Any] = []
    layers = (("poc", create("power-of-choice", d=6)), ("watch", watching(uploads)))
    played = play_toy(composition(*layers), rounds=1)
    ctx = played.run.context
    losses = ctx.evaluate(ctx.initial[None], ctx.everybody, "train")[:, 0]
    assert uploads[0].ids.tolist() == sorted(losses.topk(3).indices.tolist())
    down = played.run.ledger.totals["down"]["model"]
    assert down == 6 * WIDTH * 4, "six candidates; those who train have it already"
    assert played.run.ledger.totals["up"]["loss"] == 6 * 4


@pytest.mark.slow
def test_the_mean_over_the_chosen_is_uniform(play_toy: Play) -> None:
    """And with `weighting=samples` that of FedAvg; with another method, it is that method's."""
    for layer, by in (({}, "uniform"), ({"weighting": "samples"}, "samples")):
        uploads: list[Any] = []
        stack = composition(
            ("poc", create("power-of-choice", **layer)), ("watch", watching(uploads))
        )
        played = play_toy(stack, rounds=1, dataset=toy_dataset(samples=105))
        (upload,), ctx = uploads, played.run.context
        n = ctx.samples[upload.ids].double()
        assert len(n.unique()) > 1
        weights = n / n.sum() if by == "samples" else torch.full((3,), 1 / 3).double()
        torch.testing.assert_close(
            played.state.models[0].double(), weights @ upload.selected().double()
        )
        assert upload.samples.tolist() == (n.tolist() if by == "samples" else [1, 1, 1])
    clipped = play_toy("power-of-choice+norm-bound", rounds=2)
    assert not clipped.said


def test_neighbours_by_hand() -> None:
    """Neighbours at distances 0 and log 3, of classes 0 and 1: 3/4 and 1/4; the model says 1/2."""
    keys = torch.tensor([[0.0], [math.log(3)], [50.0], [torch.nan]])
    received = {"knn.keys": keys, "knn.labels": torch.tensor([0.0, 1.0, 1.0, torch.nan])}
    module = SimpleNamespace(received=received, features=lambda x: (x, torch.zeros(1, 2)))
    found = create("knn-per", k=2, share=0.5).mixture(module, torch.zeros(1, 1), 2)
    assert found.exp()[0].tolist() == pytest.approx([0.625, 0.375])


def test_a_label_of_which_neither_model_nor_neighbours_know_has_a_finite_loss() -> None:
    """In float32 the probability of a logit that is smaller by 1000 is 0."""
    received = {"knn.keys": torch.zeros(1, 1), "knn.labels": torch.zeros(1)}
    sure = torch.tensor([[1000.0, 0.0]])
    module = SimpleNamespace(received=received, features=lambda x: (x, sure))
    found = create("knn-per", k=1, share=0.5).mixture(module, torch.zeros(1, 1), 2)
    assert found.isfinite().all()
    assert found[0, 0] == 0.0


def test_pfedhn_moves_a_model_along_its_own_update(play_toy: Play) -> None:
    """One client, one step: the new model is nearer to what the client trained."""
    method = create("pfedhn", lr=0.05)
    uploads: list[Any] = []
    stack = composition(("watch", watching(uploads)), ("pfedhn", method))
    played = play_toy(stack, rounds=1, participation=1.0)
    state, ctx = played.state, played.run.context
    first = method.setup(ctx).memory
    before = method.models(*(first[f"pfedhn.{name}"].value for name in ("phi", "v")), ctx)
    after = method.models(*(state.memory[f"pfedhn.{name}"] for name in ("phi", "v")), ctx)
    stage = fl.Stage("train", ctx.everybody, ctx.local.epochs)
    begun = played.run.hooks.dispatch(
        replace(state, memory={name: memory.value for name, memory in first.items()}), stage, ctx
    )
    trained = played.run.executor.fit(begun, stage, plain_work(stage), 1).selected()
    distance = [(model - trained).square().sum().item() for model in (before, after)]
    assert distance[1] < distance[0]
