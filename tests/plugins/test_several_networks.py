"""Methods for federations of different networks."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import THREE, Constant, batch, create, toy_upload, wrapped
from mentions import mention
from torch import nn
from toy import (
    WIDTH,
    Play,
    composition,
    refused,
    watching,
)

import flbench as fl


def test_heterofl_by_hand(play_toy: Play) -> None:
    """3 -> 3 -> 4 with half the width: 2 of 3 hidden units: 2 x 3 + 2 and 4 x 2 + 4 scalars."""
    method = create("heterofl", widths="1,0.5")
    played = play_toy(composition(("heterofl", method)), rounds=1, participation=1.0)
    masks = method.masks(torch.arange(2), played.run.context)
    assert masks.sum(dim=1).tolist() == [WIDTH, 6 + 2 + 8 + 4]
    assert played.run.ledger.totals["up"]["model"] == 3 * 4 * (WIDTH + 20)
    home = played.state.membership
    upload = toy_upload([[1.0] * WIDTH, [3.0] * WIDTH], [1.0, 1.0])
    zero = fl.State(0, torch.zeros(1, WIDTH), home)
    found = method.aggregate(zero, upload, home, played.run.context).rows[0]
    assert found[masks[1]].unique().tolist() == [2.0], "both have it"
    assert found[~masks[1]].unique().tolist() == [1.0], "the wide client alone"


def test_a_shortcut_of_heterofl_has_the_inputs_of_its_own() -> None:
    """Two convolutions of 4 and 8 units, then a shortcut from the 4 to 8; half the width."""
    sizes = {"first": (3, 4), "second": (4, 8), "shortcut": (4, 8), "third": (8, 6)}
    net = nn.ModuleDict({name: nn.Conv2d(*size, 1, bias=False) for name, size in sizes.items()})
    layout = fl.ParameterLayout.of(net, head="none")
    ctx: Any = SimpleNamespace(layout=layout)
    half = create("heterofl").part(0.5, ctx)
    kept = [int(half[slot.start : slot.stop].sum()) for slot in layout.slots]
    assert kept == [3 * 2, 2 * 4, 2 * 4, 4 * 3]
    assert create("heterofl").part(1.0, ctx).all()


def test_batches_are_counted_not_averaged_by_heterofl() -> None:
    """Two weights, of which one client has one; and 2 and 4 batches, of which 4 is the most."""
    weights = fl.Slot("net.w", (2,), 0, 2, "parameter", head=False)
    layout = fl.ParameterLayout((weights, fl.Slot("net.n", (), 2, 3, "counter", head=False)), 2, 1)
    ctx: Any = SimpleNamespace(layout=layout)
    home = fl.Membership(torch.tensor([0, 0]))
    upload = toy_upload([[2.0, 7.0, 2.0], [4.0, 0.0, 4.0]], [1.0, 1.0])
    state = fl.State(0, torch.zeros(1, 3), home)
    found = create("heterofl", widths="1,0.5").aggregate(state, upload, home, ctx)
    assert found.rows.tolist() == [[3.0, 7.0, 4.0]]


@pytest.mark.parametrize("widths", ["wide", "", "1,0", "-0.5", "2", "nan", "1,,1"])
def test_widths_of_heterofl_are_shares(widths: str) -> None:
    with pytest.raises(fl.UserError, match=mention("0", "1 expected")):
        next(create("heterofl", widths=widths).client_module())


def test_heterofl_refuses_layers_that_it_cannot_cut() -> None:
    with pytest.raises(fl.Undefined, match=mention("Linear", "Conv", "Bilinear")):
        wrapped(create("heterofl").client_module(), nn.Sequential(nn.Bilinear(2, 2, 2)))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    assert wrapped(create("heterofl").client_module(), net) is net


def test_the_scaler_and_the_mask_of_heterofl_by_hand() -> None:
    """1 -> 1 -> 3: 2 x + 1 = 7, over .5 in training; the client has labels 0 and 2."""
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 3))
    for parameter, value in zip(
        net.parameters(), ([[2.0]], [1.0], [[1.0]] * 3, [0.0, 1.0, 2.0]), strict=True
    ):
        parameter.data = torch.tensor(value)
    module = wrapped(create("heterofl").client_module(), fl.ClientModule(net, fl.LocalTraining()))
    x = torch.tensor([[3.0]])
    assert module(x).tolist() == [[7.0, 8.0, 9.0]], "nothing is known of the client"
    own = {
        "heterofl.width": torch.tensor(0.5),
        "heterofl.labels": torch.tensor([True, False, True]),
    }
    module.received.update(own)
    assert module(x).tolist() == [[14.0, 0.0, 16.0]]
    assert module.eval()(x).tolist() == [[7.0, 0.0, 9.0]], "tests have the mask alone"


def test_what_clients_of_heterofl_know(play_toy: Play) -> None:
    method = create("heterofl", widths="1,0.5")
    played = play_toy(composition(("heterofl", method)), rounds=1, participation=1.0)
    ctx, state = played.run.context, played.state
    stage = fl.Stage("train", torch.tensor([1, 2]), 1)
    known = method.dispatch(state, stage, ctx).client_memory
    assert known["heterofl.width"].tolist() == [0.5, 1.0]
    assert torch.equal(known["heterofl.labels"], ctx.label_counts[stage.clients] > 0)
    assert not known["heterofl.labels"].all()
    tested = method.personalise(state, stage.clients, ctx)
    assert torch.equal(tested.extras["heterofl.labels"], known["heterofl.labels"])
    assert not tested.others["whole"].extras


WIDE: dict[str, Any] = {"further_models": [{"name": "mlp", "hidden": 5}]}
NORMED: dict[str, Any] = {"further_models": [{"name": "mlp", "hidden": 3, "norm": True}]}


def test_fedmd_digests_by_hand() -> None:
    """f(x) = (1, 0), (0, 3) and a mean of (0, 0), (0, 1): distances 1, 0, 0, 2."""
    common, stage = torch.zeros(2, 3), fl.Stage("train", torch.arange(2), 1, name="digest")
    ctx = SimpleNamespace(server_data=lambda: (common, None))
    one = batch([[0.0, 0.0]], [0])
    predicted, mean = torch.tensor([[1.0, 0], [0, 3]]), torch.tensor([[0.0, 0], [0, 1]])
    module: Any = Predictor(predicted, {"mean": mean})
    loss = create("fedmd").batch_loss(stage, ctx)(fl.Batch(module, one.x, one.y))
    assert loss.item() == 0.75
    assert create("fedmd").batch_loss(replace(stage, name=""), ctx) is None


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4)])
def test_fedmd_sends_the_mean_to_everyone_of_text_too(shape: tuple[int, ...]) -> None:
    """Two common samples, and of text three tokens each."""
    state = fl.State(1, torch.zeros(1, 3), fl.Membership(torch.zeros(3, dtype=torch.int64)))
    state = state.remember({"fedmd.mean": torch.ones(shape)})
    ctx: Any = SimpleNamespace(layout=THREE)
    stage = fl.Stage("train", torch.arange(3), 1, name="digest")
    assert create("fedmd").dispatch(state, stage, ctx).extras["mean"].shape == (3, *shape)


class Predictor:
    """A module that predicts the same, whatever it gets."""

    def __init__(self, predicted: torch.Tensor, received: dict[str, torch.Tensor]) -> None:
        self.predicted, self.received = predicted, received

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.predicted


@pytest.mark.slow
def test_fedmd_sends_predictions_across_networks(play_toy: Play) -> None:
    """b common samples, 4 labels: each of 6 clients sends 4 b numbers; the mean goes back once."""
    uploads: list[Any] = []
    stack = composition(("fedmd", create("fedmd", steps=3)), ("watch", watching(uploads)))
    played = play_toy(stack, rounds=2, participation=1.0, server_samples=12, **WIDE)
    ctx = played.run.context
    assert ctx.networks is not None and len(ctx.networks.unique()) == 2
    x, _ = ctx.server_data()
    revisit, digest, last = uploads
    assert (digest.steps == 3).all()
    mean = ctx.logits(last.selected(), x).mean(dim=0)
    torch.testing.assert_close(played.state.memory["fedmd.mean"], mean)
    size = 6 * 4 * len(x) * 4
    assert played.run.ledger.totals["up"] == {"model": 0, "logits": 2 * size}
    assert played.run.ledger.totals["down"] == {"model": 0, "mean": size}
    first = ctx.logits(revisit.selected(), x)
    gaps = [
        (ctx.logits(rows, x) - first.mean(dim=0)).abs().mean()
        for rows in (revisit.selected(), digest.selected())
    ]
    assert gaps[1] < gaps[0], "what clients predict came nearer to the mean"


def test_the_class_means_of_fedgh_by_hand() -> None:
    """Features 1, 3 of class 0 and 5 of class 2."""
    module = SimpleNamespace(eval=lambda: None, features=lambda x: (x, None))
    ctx = SimpleNamespace(classes=3)
    x, y = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2])
    sent = create("fedgh").report(ctx)(module, x, y).sent["means"].flatten().tolist()
    assert (sent[0], sent[2]) == (2.0, 5.0)
    assert math.isnan(sent[1])


def test_a_step_of_the_head_of_fedgh_by_hand() -> None:
    """One mean, 2 of class 0, and a head of zeros: p = (.5, .5), slopes (-.5, .5) (2 and 1)."""
    means = torch.tensor([[[2.0], [math.nan]]])
    head = create("fedgh", steps=1, lr=0.1).trained(torch.zeros(4), means)
    assert head.tolist() == pytest.approx([0.1, -0.1, 0.05, -0.05])


@pytest.mark.slow
def test_fedgh_sends_a_head_down_and_class_means_up(play_toy: Play) -> None:
    """The head has 3 x 4 + 4 scalars; of each class that a client holds 3 features go up."""
    stack = composition(("fedgh", create("fedgh")))
    played = play_toy(stack, rounds=2, participation=1.0, common_head=True, **NORMED)
    ctx, rows, ledger = played.run.context, played.state.models, played.run.ledger
    head = ctx.layout.head & ctx.layout.common
    assert int(head.sum()) == 16
    assert len(rows[:, head].unique(dim=0)) == 1
    assert not torch.equal(rows[0, head], ctx.initial[head])
    assert len(rows[:, ~head].unique(dim=0)) == 6
    assert ledger.totals["down"] == {"model": 2 * 6 * 16 * 4}
    held = int((ctx.label_counts > 0).sum())
    assert ledger.totals["up"] == {"model": 0, "means": 2 * held * 3 * 4}
    with pytest.raises(fl.Undefined, match="no head in common"):
        play_toy(stack, rounds=1, **NORMED)


def test_fedgh_says_which_head_it_needs(play_toy: Play) -> None:
    """No head, and a head without biases; `common_head` would help neither."""
    bare = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 4, bias=False))
    for net in (lambda: Constant(0.0, 0.0, 0.0, 0.0), lambda: bare):
        assert "no linear head with biases" in refused(play_toy, "fedgh", net=net, rounds=1)
    assert "no head in common" in refused(play_toy, "fedgh", rounds=1, **NORMED)
