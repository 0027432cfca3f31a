"""Parts of a model that live at the server: what crosses the cut, counted by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mentions
from torch import Tensor, nn
from toy import Play, Played, composition, refused

import flbench as fl
from flbench.core.client_module import LocalWork
from flbench.engine import split_training

ALL = {"epochs": 1, "batch_size": 4, "lr": 0.1}
N, SAMPLES = 6, 9
"""Clients, and training samples of each: an epoch has steps of 4, 4 and 1 samples."""


@dataclass(frozen=True)
class Split:
    """FedAvg of which some parts of the network live at the server."""

    at_server: tuple[str, ...]
    stage: Any = field(default_factory=dict)
    more: Any = field(default_factory=dict)

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        return (fl.Stage(**{"kind": "train", "epochs": 1, "clients": ctx.everybody, **self.stage}),)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        masks = [ctx.layout.submodule(f"net.{name}") for name in self.at_server]
        mask = torch.stack(masks).any(dim=0)
        assert mask.any(), "the parts are there"
        return fl.Start(server_mask=mask, **self.more)


def stored(batch: fl.Batch) -> Tensor:
    """A loss with numbers that the client stores, and with others that the server has sent."""
    logits = batch.logits * batch.module.received["own"] * batch.module.received["sent"]
    return fl.cross_entropy(logits, batch.y)


@dataclass(frozen=True)
class Loss:
    """Another loss of a batch."""

    loss: Callable[[fl.Batch], Tensor]

    @fl.hookimpl
    def batch_loss(self) -> fl.BatchLoss:
        return self.loss


def play(play_toy: Play, *at_server: str, others: Any = (), net: Any = None, **more: Any) -> Played:
    """A round of all six clients, 9 training samples each, one epoch."""
    suite = {"rounds": 1, "validation_fraction": 0, "local": ALL, **more.pop("suite", {})}
    executor = more.pop("executor", "sequential")
    method = composition(("split", Split(at_server, **more)), *others)
    return play_toy(method, net=net, executor=executor, **suite)


def per_sample(played: Played) -> dict[tuple[str, str], float]:
    """Scalars that crossed in training, of one sample in one step; whole models are left out."""
    found = {
        (way, item): bits / 32 / (N * SAMPLES)
        for way, items in played.run.ledger.bits.items()
        for item, bits in items.items()
        if item != "model" and bits
    }
    return {key: int(value) if value == int(value) else value for key, value in found.items()}


def sequence() -> nn.Module:
    """3 -> 5 -> 2 -> 4."""
    return nn.Sequential(
        nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2), nn.Tanh(), nn.Linear(2, 4)
    )  # fmt: skip


class Block(nn.Module):
    """What a layer makes is added to its input: 3 -> 3 -> 4."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 6), nn.Linear(6, 3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        added: Tensor = x + self.second(self.first(x).relu())
        return self.head(added)  # type: ignore[no-any-return]


class Twice(nn.Module):
    """A layer of the server uses what the client made in two operations."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return self.a(z) + self.b(z)  # type: ignore[no-any-return]


UP, DOWN = "up", "down"
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...], dict[tuple[str, str], int]]] = {
    "the last layers": (
        sequence,
        ("2", "4"),
        {(UP, "activations"): 5, (UP, "labels"): 1, (DOWN, "gradients"): 5},
    ),
    "the last layer": (
        sequence,
        ("4",),
        {(UP, "activations"): 2, (UP, "labels"): 1, (DOWN, "gradients"): 2},
    ),
    "the middle: labels stay with clients": (
        sequence,
        ("2",),
        {(UP, "activations"): 5, (DOWN, "gradients"): 5, (DOWN, "activations"): 2,
         (UP, "gradients"): 2},
    ),
    "the first layers: samples go up, and no gradient comes back for them": (
        sequence,
        ("0", "2"),
        {(UP, "samples"): 3, (DOWN, "activations"): 2, (UP, "gradients"): 2},
    ),
    "everything": (sequence, ("0", "2", "4"), {(UP, "samples"): 3, (UP, "labels"): 1}),
    "both ends of the network": (
        sequence,
        ("0", "4"),
        {(UP, "samples"): 3, (DOWN, "activations"): 5, (UP, "gradients"): 5,
         (UP, "activations"): 2, (DOWN, "gradients"): 2, (UP, "labels"): 1},
    ),
    "within a block: its input crosses as well": (
        Block,
        ("second", "head"),
        {(UP, "activations"): 6 + 3, (UP, "labels"): 1, (DOWN, "gradients"): 6},
    ),
    "after a block": (
        Block,
        ("head",),
        {(UP, "activations"): 3, (UP, "labels"): 1, (DOWN, "gradients"): 3},
    ),
    "a tensor that is used twice crosses once": (
        Twice,
        ("a", "b"),
        {(UP, "activations"): 7, (UP, "labels"): 1, (DOWN, "gradients"): 7},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_crosses_for_a_sample(case: str, play_toy: Play) -> None:
    net, at_server, expected = CASES[case]
    played = play(play_toy, *at_server, net=net)
    assert per_sample(played) == expected
    layout = played.run.context.layout
    own = sum(int(layout.submodule(f"net.{name}").sum()) for name in at_server)
    models = {way: played.run.ledger.bits[way].get("model", 0) / 32 / N for way in (UP, DOWN)}
    assert models == dict.fromkeys((UP, DOWN), layout.width - own)


def test_the_models_are_those_of_training_in_one_place(play_toy: Play) -> None:
    split = play(play_toy, "2", net=sequence, suite={"participation": 1.0})
    alike = play_toy(
        "fedavg", rounds=1, validation_fraction=0, local=ALL, net=sequence, participation=1.0
    )
    assert torch.equal(split.state.models, alike.state.models)


def test_lanes_send_as_much(play_toy: Play) -> None:
    one = play(play_toy, "2", net=sequence, stage={"epochs": 2.5})
    lanes = play(play_toy, "2", net=sequence, stage={"epochs": 2.5}, executor="vectorised")
    assert lanes.run.executor.name == "vectorised"
    assert lanes.run.ledger.bits == one.run.ledger.bits
    for way in (UP, DOWN):
        assert torch.equal(lanes.run.ledger.client_bits[way], one.run.ledger.client_bits[way])
    seen = 2 * SAMPLES + 4  # of half an epoch of three steps one is made
    assert one.run.ledger.bits[UP]["activations"] == N * 32 * 5 * seen


def test_a_part_of_the_model_may_live_at_the_edge(play_toy: Play) -> None:
    more = {"edges": torch.arange(N) % 2}
    plain, edges = play(play_toy, "2", net=sequence), play(play_toy, "2", net=sequence, stage=more)
    found = edges.run.ledger.bits
    assert not found[UP] and not found[DOWN]
    assert sum(found["client-edge"].values()) == sum(
        sum(plain.run.ledger.bits[way].values()) for way in (UP, DOWN)
    )


def test_a_client_without_a_step_sends_nothing(play_toy: Play) -> None:
    played = play(play_toy, "2", net=sequence, stage={"epochs": torch.tensor([1.0, 0, 0, 0, 0, 2])})
    activations = played.run.ledger.bits[UP]["activations"]
    assert activations == 32 * 5 * SAMPLES * 3
    model = 32 * (played.run.context.layout.width - 12)
    assert int(played.run.ledger.client_bits[UP][1]) == model


def test_each_client_may_have_a_cut_of_its_own(play_toy: Play) -> None:
    """Clients 0 to 2 keep all layers but the last; clients 3 to 5 the first one."""

    @dataclass(frozen=True)
    class Cuts:
        @fl.hookimpl
        def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
            return (fl.Stage("train", ctx.everybody, 1),)

        @fl.hookimpl
        def dispatch(self, ctx: fl.Context) -> fl.Start:
            last, middle = ctx.layout.submodule("net.4"), ctx.layout.submodule("net.2")
            masks = torch.stack([last] * 3 + [last | middle] * 3)
            return fl.Start(server_mask=masks)

    more: dict[str, Any] = {"rounds": 1, "validation_fraction": 0, "local": ALL}
    played = play_toy(composition(("cuts", Cuts())), net=sequence, **more)
    ledger, width = played.run.ledger, played.run.context.layout.width
    early, late = width - 12, width - 12 - 12
    steps = [SAMPLES * (2 + 1)] * 3 + [SAMPLES * (5 + 1)] * 3
    assert ledger.client_bits[UP].tolist() == [
        32 * (model + step) for model, step in zip([early] * 3 + [late] * 3, steps, strict=True)
    ]


def test_frozen_layers_of_clients_get_no_gradients(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Frozen:
        @fl.hookimpl
        def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
            module = fl.ClientModule(net, ctx.local)
            module.get_parameter("net.0.weight").requires_grad_(False)
            module.get_parameter("net.0.bias").requires_grad_(False)
            return module

    played = play(play_toy, "2", "4", net=sequence, others=[("frozen", Frozen())])
    assert per_sample(played) == {(UP, "activations"): 5, (UP, "labels"): 1}


def test_measured_losses_are_two_passes_without_gradients(play_toy: Play) -> None:
    played = play(play_toy, "2", "4", net=sequence, stage={"losses": True})
    assert per_sample(played) == {
        (UP, "activations"): 3 * 5, (UP, "labels"): 3, (DOWN, "gradients"): 5
    }  # fmt: skip


def test_every_candidate_sends_for_itself(play_toy: Play) -> None:
    more = {"params": torch.zeros(N, 2, 3 * 5 + 5 + 5 * 2 + 2 + 2 * 4 + 4)}
    played = play(play_toy, "4", net=sequence, more=more, stage={"kind": "trial", "name": "two"})
    assert per_sample(played) == {
        (UP, "activations"): 4, (UP, "labels"): 2, (DOWN, "gradients"): 4
    }  # fmt: skip


def test_a_loss_with_two_passes_sends_twice(play_toy: Play) -> None:
    """The second pass is of other samples; the sum of both losses is made at the server."""

    def loss(batch: fl.Batch) -> Tensor:
        again = batch.module(-batch.x)
        return fl.cross_entropy(batch.logits, batch.y) + fl.cross_entropy(again, batch.y)

    played = play(play_toy, "2", "4", net=sequence, others=[("loss", Loss(loss))])
    assert per_sample(played) == {
        (UP, "activations"): 10, (UP, "labels"): 1, (DOWN, "gradients"): 10
    }  # fmt: skip


def test_a_number_of_a_step_is_counted_by_step(play_toy: Play) -> None:
    """The client computes a penalty of its features, a scalar; the server adds it to its loss."""

    def loss(batch: fl.Batch) -> Tensor:
        penalty = batch.module.net[0](batch.x).square().mean()
        return fl.cross_entropy(batch.logits, batch.y) + penalty

    played = play(play_toy, "2", "4", net=sequence, others=[("loss", Loss(loss))])
    bits = played.run.ledger.bits
    assert bits[UP]["activations"] == 32 * N * (5 * SAMPLES + 3), "in each of three steps"
    assert bits[DOWN]["gradients"] == 32 * N * (5 * SAMPLES + 3)


def test_what_the_client_stores_crosses_in_every_step(play_toy: Play) -> None:
    more = {"client_memory": {"own": torch.ones(N, 4)}, "extras": {"sent": torch.ones(N, 4)}}
    played = play(play_toy, "2", "4", net=sequence, more=more, others=[("loss", Loss(stored))])
    bits = played.run.ledger.bits
    assert bits[UP].keys() == {"activations", "labels", "model", "own"}
    assert bits[UP]["own"] == 32 * N * 4 * 3, "in each of three steps"
    assert bits[DOWN]["sent"] == 32 * N * 4, "once"


def whole_row(batch: fl.Batch) -> Tensor:
    """A loss that compares with the model from which the client started."""
    before = batch.module.with_row(batch.module.start, lambda x: batch.module(x), batch.x)
    return fl.cross_entropy(batch.logits, batch.y) + (batch.logits - before).square().mean()


def mixed(batch: fl.Batch) -> Tensor:
    return fl.cross_entropy(batch.logits, batch.y) + batch.module.flat().square().sum()


def hidden(batch: fl.Batch) -> Tensor:
    """Operations on the tensors of `vmap`, which stand for others."""
    doubled = torch.func.vmap(lambda logits: 2 * logits)(batch.logits)
    return fl.cross_entropy(doubled, batch.y)


def left(take: Callable[[Tensor], Any]) -> Callable[[fl.Batch], Tensor]:
    """A loss that gets numbers of the features as something else than a tensor."""

    def loss(batch: fl.Batch) -> Tensor:
        seen = torch.as_tensor(take(batch.features.detach()))
        return fl.cross_entropy(batch.logits, batch.y) * (1 + seen.double().mean().float())

    return loss


def in_buffer(features: Tensor) -> list[float]:
    """Numbers in the memory of a tensor."""
    return list(ctypes.cast(features.data_ptr(), ctypes.POINTER(ctypes.c_float))[:2])


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (whole_row, "weights of both ends"),
        (mixed, "weights of both ends"),
        (hidden, "cannot be followed"),
        (left(lambda z: z.numpy()), "'numpy' .* out of torch"),
        (left(np.asarray), "'__array__' .* out of torch"),
        (left(lambda z: z.tolist()), "'tolist' .* out of torch"),
        (left(lambda z: z.sum().item()), "'item' .* out of torch"),
        (left(lambda z: float(z[0, 0])), "'__float__' .* out of torch"),
        (left(lambda z: 1.0 if z.sum() > 0 else 0.0), "'__bool__' .* out of torch"),
        (left(lambda z: torch.equal(z, z)), "'equal' .* out of torch"),
        (left(lambda z: np.from_dlpack(z)), "out of torch"),
        (left(in_buffer), "'data_ptr' .* out of torch"),
        (left(lambda z: list(z.untyped_storage())), "'untyped_storage' .* out of torch"),
    ],
)
def test_what_cannot_be_divided_is_undefined(
    loss: Callable[[fl.Batch], Tensor], why: str, play_toy: Play
) -> None:
    method = composition(("split", Split(("2", "4"))), ("loss", Loss(loss)))
    with pytest.raises(fl.Undefined, match=why):
        play_toy(method, net=sequence)


def test_what_no_value_is_or_weights_alone_may_leave_torch(play_toy: Play) -> None:
    """Shapes are no values; BatchNorm asks for the count of its steps, which is a weight."""

    def counted() -> nn.Module:
        norm = nn.BatchNorm1d(5, momentum=None)
        return nn.Sequential(nn.Linear(3, 5), norm, nn.ReLU(), nn.Linear(5, 4))

    def halved(batch: fl.Batch) -> Tensor:
        loss = fl.cross_entropy(batch.logits, batch.y)
        batch.module.log("loss", loss)
        return loss * len(batch.features) / (2 * batch.features.shape[0])

    played = play(play_toy, "3", net=counted, others=[("loss", Loss(halved))])
    trained = 8 / SAMPLES  # BatchNorm leaves out a step of one sample
    assert per_sample(played)[UP, "activations"] == pytest.approx(5 * trained)


def test_a_term_of_weights_is_each_ends_own(play_toy: Play) -> None:
    """The proximal term is a sum over scalars: nothing crosses for it."""
    played = play(play_toy, "2", "4", net=sequence)
    term = fl.hookimpl(lambda self: lambda module: module.flat().square().sum())
    other = dataclass(frozen=True)(type("Term", (), {"local_term": term}))()
    with_term = play(play_toy, "2", "4", net=sequence, others=[("term", other)])
    assert per_sample(with_term) == per_sample(played)
    assert not torch.equal(with_term.state.models, played.state.models)


def test_several_batches_in_a_step_are_refused(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Two:
        @fl.hookimpl
        def phases(self) -> fl.PhaseRule:
            return lambda module, epochs: (fl.LocalPhase(epochs, batches_per_step=2),)

    method = composition(("split", Split(("4",))), ("two", Two()))
    with pytest.raises(fl.Undefined, match="several batches"):
        play_toy(method, net=sequence)


def test_a_tensor_is_not_divided(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Half:
        @fl.hookimpl
        def dispatch(self, ctx: fl.Context) -> fl.Start:
            return fl.Start(server_mask=torch.arange(ctx.layout.width) > 3)

    line = refused(play_toy, composition(("half", Half())), net=sequence)
    assert mentions(line, "half.dispatch", "server_mask", "net.0.weight")


def test_following_a_step_changes_no_number(play_toy: Play) -> None:
    """Dropout and BatchNorm: neither random numbers nor statistics know of the steps followed."""

    def noisy() -> nn.Module:
        norm = nn.BatchNorm1d(5)
        return nn.Sequential(
            nn.Linear(3, 5), norm, nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 4)
        )  # fmt: skip

    more: dict[str, Any] = {"rounds": 2, "local": {**ALL, "batch_size": 3}, "participation": 1.0}
    plain = play_toy("fedavg", net=noisy, **more)
    split = play(play_toy, "4", net=noisy, suite={"validation_fraction": 0.2, **more})
    assert torch.equal(split.state.models, plain.state.models)
    run, stage = split.run, fl.Stage("train", torch.arange(N), 1)
    start = run.hooks.dispatch(split.state, stage, run.context)
    before = torch.get_rng_state()
    assert split_training.follow(run.executor, start, stage, LocalWork(), 3).keys() == set(range(N))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_simulated_time_has_what_crosses(play_toy: Play) -> None:
    """100 bits a second up, 50 down: a model without the server's part, and what steps send."""
    clock = {"seconds_per_step": 1.0, "up": 100.0, "down": 50.0}
    played = play(play_toy, "2", "4", net=sequence, suite={"clock": clock})
    own = 3 * 5 + 5
    down, up = 32 * (own + 5 * SAMPLES), 32 * (own + (5 + 1) * SAMPLES)
    assert played.state.seconds == pytest.approx(down / 50 + up / 100 + 3)


def test_a_model_that_a_client_has_is_not_sent_again(play_toy: Play) -> None:
    """A probe and then the training of one round: its part of the model is sent once."""

    @dataclass(frozen=True)
    class Probing:
        @fl.hookimpl(wrapper=True)
        def plan(self, ctx: fl.Context) -> Generator[None, Any, Sequence[fl.Stage]]:
            stages = yield
            return [fl.Stage("probe", ctx.everybody, 0), *stages]

    played = play(play_toy, "2", "4", net=sequence, others=[("probing", Probing())])
    assert played.run.ledger.bits[DOWN]["model"] == 32 * N * (3 * 5 + 5)
    assert played.run.ledger.bits[UP]["model"] == 2 * 32 * N * (3 * 5 + 5)
