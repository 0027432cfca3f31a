"""The example plugins: short, right by hand, and lawful as installed from elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from every import LONG_CHECKS
from example_plugins import POINTS, create
from small import Drift
from torch import nn
from toy import (
    WIDTH,
    Play,
    Played,
    Typed,
    composition,
    plain_work,
    refused,
    toy_suite,
    watching,
)

import flbench as fl
from flbench.core.state import Message, Stage
from flbench.run.composition import compose
from flbench.testing import MethodCheck, parametrize_with_checks


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(one, id=name, marks=[pytest.mark.long] if one.check in LONG_CHECKS else [])
        for one, name in ((p.values[0], p.id) for p in parametrize_with_checks(*POINTS).args[1])
    ],
)
def test_every_example_conforms(check: MethodCheck) -> None:
    check()


# --- what clients send, by hand ---------------------------------------------------------------


def message(update: list[float], **fields: Any) -> Message:
    """Client 0 has moved from (1, 1, ...) by an update."""
    start = torch.ones(len(update))
    mask = torch.ones(len(update), dtype=torch.bool)
    return Message(0, start, start + torch.tensor(update), mask, **fields)


class Drawn:
    """A context whose clients draw fixed numbers."""

    round, clients = 1, 4

    def __init__(self, *numbers: float) -> None:
        self.numbers = np.array(numbers, dtype="float32")

    def rng(self, *address: object, client: int) -> Drawn:
        self.client = client
        return self

    def random(self, size: int = 0, dtype: str = "") -> Any:
        return self.numbers if size else self.numbers[self.client]

    standard_normal = random


STAGE = Stage("train", torch.arange(4), 1)


def test_qsgd_by_hand(example: Callable[..., Any]) -> None:
    """|v| = 5, s = 2: (3, -4) / 5 is 1.2 and 1.6 levels; draws .7 and .5 give levels 1 and 2."""
    sent = example("qsgd", levels=2).encode(STAGE, Drawn(0.7, 0.5))(message([3.0, -4.0]))
    assert sent.update.tolist() == [2.5, -5.0]
    assert (sent.bits, sent.overhead) == (3, 32)  # -2..2 are five values


@pytest.mark.slow
def test_qsgd_sends_the_update_in_the_mean(example: Callable[..., Any]) -> None:
    draws = (np.arange(1000) + 0.5) / 1000
    one = example("qsgd", levels=2)
    sent = [one.encode(STAGE, Drawn(x, x))(message([3.0, -4.0])).update for x in draws]
    assert torch.stack(sent).mean(dim=0).tolist() == pytest.approx([3.0, -4.0], abs=1e-2)


def test_top_k_by_hand(example: Callable[..., Any]) -> None:
    """(1, 0, 3, 0) and a rest of (0, 2, 0, 0): half of four scalars, two bits for each place."""
    rest = {"top-k.rest": torch.tensor([0.0, 2.0, 0.0, 0.0])}
    sent = example("top-k", share=0.5).sparse(message([1.0, 0.0, 3.0, 0.0], memory=rest))
    assert sent.mask.tolist() == [False, True, True, False]
    assert sent.update.tolist() == [0.0, 2.0, 3.0, 0.0]
    assert sent.memory["top-k.rest"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert (sent.bits, sent.overhead) == (32, 4)


def test_top_k_of_everything_costs_no_places(example: Callable[..., Any]) -> None:
    rest = {"top-k.rest": torch.zeros(3)}
    sent = example("top-k", share=1.0).sparse(message([1.0, 0.0, 3.0], memory=rest))
    assert sent.update.tolist() == [1.0, 0.0, 3.0]
    assert sent.overhead == 0


def test_dp_fedavg_by_hand(example: Callable[..., Any]) -> None:
    """(3, 4) is clipped to norm 1; noise of z S / sqrt(4) = .1 times the draws is added."""
    one = example("dp-fedavg", clip=1.0, noise=0.2)
    sent = one.encode(STAGE, Drawn(1.0, -1.0))(message([3.0, 4.0]))
    assert sent.update.tolist() == pytest.approx([0.7, 0.7])
    short = example("dp-fedavg", clip=10.0, noise=0.0).encode(STAGE, Drawn(0, 0))
    assert short(message([3.0, 4.0])).update.tolist() == [3.0, 4.0]


def test_attackers_that_are_named_are_not_judged(
    example: Callable[..., Any], play_toy: Play
) -> None:
    """The average learns from nobody else, and what they send back is the opposite."""
    flip = example("sign-flip", attackers=(0, 5), scale=3.0)
    coder = flip.encode(Drawn(0.1, 0.2, 0.3, 0.4))
    assert [coder(replace(message([1.0]), client=i)).update.item() for i in (0, 1)] == [-3.0, 1.0]
    played = play_toy(composition(("sign-flip", flip)), not_judged=[0, 5], metrics=("ece",))
    assert [n > 0 for n in played.result.clients.test] == [False, *[True] * 4, False]
    assert played.result.summary["ece_clients"] == 4


@pytest.mark.usefixtures("examples")
def test_a_result_is_told_lists_as_its_file_holds_them() -> None:
    """Otherwise `flbench verify` takes them for other parameters."""
    params = compose("sign-flip", {"attackers": [0, 5]}).described.params
    assert params == {"attackers": [0, 5], "scale": 1.0, "share": 0.2}


def test_sign_flip_by_hand(example: Callable[..., Any]) -> None:
    flip = example("sign-flip", share=0.25, scale=2.0).encode(Drawn(0.1, 0.2, 0.3, 0.4))
    assert flip(message([3.0, 4.0])).update.tolist() == [-6.0, -8.0]
    honest = replace(message([3.0, 4.0]), client=1)
    assert flip(honest) is honest


def test_krum_by_hand(example: Callable[..., Any]) -> None:
    """n = 5, f = 1: two neighbours count. 1 and 2 score 2; 2 is nearer to all."""
    uploads = torch.tensor([[0.0], [1.0], [2.0], [3.0], [90.0]])
    assert example("krum").nearest(uploads) == [2]
    assert example("krum", chosen=2).nearest(uploads) == [2, 1]


@pytest.mark.slow
def test_krum_keeps_what_the_majority_learned(example: Callable[..., Any], play_toy: Play) -> None:
    """Under the attack, FedAvg loses more than Krum."""
    flip = ("sign-flip", example("sign-flip", share=0.3, scale=5.0))
    krum = ("krum", example("krum", byzantine=2, chosen=3))
    suite = toy_suite(participation=1.0)
    attacked = play_toy(composition(flip), rounds=5, suite=suite)
    defended = play_toy(composition(flip, krum), rounds=5, suite=suite)
    loss = [played.run.history.last.mean_loss() for played in (attacked, defended)]
    assert loss[1] < loss[0]


# --- servers that do not wait, by hand --------------------------------------------------------


class Three(nn.Module):
    """Three parameters, of which a label each makes use."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x * self.weight, (0, 1))


def two_clients(play_toy: Play, method: tuple[str, object], **clock: Any) -> Played:
    """Client 0 moves by (1, 0, 2) in a second, client 1 by (0, 4, 0) in three seconds."""
    drift = ("drift", Drift(torch.tensor([[1.0, 0.0, 2.0], [0.0, 4.0, 0.0]])))
    return play_toy(
        composition(drift, method),
        clients=2,
        participation=1.0,
        rounds=2,
        local={"epochs": 1, "batch_size": 1000, "lr": 1.0},
        clock={"seconds_per_step": [1.0, 3.0], **clock},
        net=Three,
    )


def test_fedasync_by_hand(example: Callable[..., Any], play_toy: Play) -> None:
    """Client 0 arrives at 1, 2 and 3, never stale: .6, 1.2 and 1.8 of its move.

    At second 3 client 1 arrives after it, three updates late: its weight is .6 / sqrt(4) = .3.
    """
    played = two_clients(play_toy, ("fedasync", example("fedasync")))
    expected = [0.7 * 1.8, 0.3 * 4.0, 0.7 * 3.6]
    assert played.state.models[0].tolist() == pytest.approx(expected)
    assert played.run.history.curves["simulated_seconds"] == [2, 3]
    assert played.state.memory["fedasync.version"] == 4
    assert played.state.memory["fedasync.seen"].tolist() == [3, 4]
    assert played.state.memory["fedasync.called"].tolist() == [3.0, 3.0]
    given = [[1.8, 0.0, 3.6], expected]
    torch.testing.assert_close(played.state.memory["fedasync.given"][:], torch.tensor(given))


def test_fedbuff_by_hand(example: Callable[..., Any], play_toy: Play) -> None:
    """Steps of two uploads: twice client 0; then client 0, and client 1 that is one step late."""
    played = two_clients(play_toy, ("fedbuff", example("fedbuff", size=2)))
    expected = [1 + 1 / 2, 4 / 2**0.5 / 2, 2 + 2 / 2]
    assert played.state.models[0].tolist() == pytest.approx(expected)
    assert played.run.history.curves["simulated_seconds"] == [2, 3]
    assert played.state.memory["fedbuff.version"] == 2
    assert played.state.memory["fedbuff.seen"].tolist() == [1, 2]
    assert played.state.memory["fedbuff.buffer"].tolist() == [0.0] * 4


def test_a_buffer_is_kept_between_rounds(example: Callable[..., Any], play_toy: Play) -> None:
    """Three of four uploads make a step; the last one, of client 1 and a step late, waits."""
    played = two_clients(play_toy, ("fedbuff", example("fedbuff", size=3)))
    assert played.state.models[0].tolist() == [1.0, 0.0, 2.0]
    kept = played.state.memory["fedbuff.buffer"]
    assert kept.tolist() == pytest.approx([1.0, 0.0, 4 / 2**0.5, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedasync", "fedbuff"])
def test_a_server_that_does_not_wait_loses_what_is_not_sent(
    name: str, example: Callable[..., Any], play_toy: Play
) -> None:
    """A client whose upload is lost goes on; nobody stands still."""
    method = (name, example(name))
    played = two_clients(play_toy, method, dropout=0.5)
    full = two_clients(play_toy, method)
    sent = [one.run.ledger.bits["up"].get("model", 0) for one in (played, full)]
    assert sent[0] < sent[1]
    assert played.state.seconds >= full.state.seconds - 1


@pytest.mark.parametrize("name", ["fedasync", "fedbuff"])
def test_a_server_that_does_not_wait_needs_a_clock(
    name: str, example: Callable[..., Any], play_toy: Play
) -> None:
    assert "the suite has no clock" in refused(play_toy, composition((name, example(name))))


PAIRS = ("top-k+qsgd", "pfedlia+qsgd", "krum+dp-fedavg", "scaffold+top-k", "fedrep+qsgd")


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("names", PAIRS)
def test_coders_go_with_other_methods(names: str, play_toy: Play) -> None:
    """Every coder acts: its models are others than without it, and no message is larger."""
    first, coder = names.split("+")
    played, plain = play_toy(names, rounds=2), play_toy(first, rounds=2)
    assert not played.state.models.equal(plain.state.models)
    up = [one.run.ledger.bits["up"]["model"] for one in (played, plain)]
    assert up[0] == up[1] if coder == "dp-fedavg" else up[0] < up[1]


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_bits_of_top_k_and_qsgd_by_hand(play_toy: Play) -> None:
    """A toy row has 28 scalars: 3 of them (a tenth, rounded up), 4 bits each, 5 bits a place.

    Three clients in each of two rounds send them with a norm of 32 bits.
    """
    played = play_toy("top-k+qsgd", rounds=2)
    assert played.run.ledger.bits["up"]["model"] == 2 * 3 * (3 * (4 + 5) + 32)


# --- losses, phases, choices and a learning server, by hand -----------------------------------


def batch(logits: list[list[float]], labels: list[int], **received: torch.Tensor) -> fl.Batch:
    """Samples whose logits are given."""
    module = SimpleNamespace(received=received)
    y, x = torch.tensor(labels), torch.zeros(len(labels), 1)
    return fl.Batch(module, x, y, torch.tensor(logits))  # type: ignore[arg-type]


def test_fedlc_by_hand(example: Callable[..., Any]) -> None:
    """Counts 1 and 16: margins 1 and .5. Logits (0, 0) become (-1, -.5): -log e^-1/(e^-1+e^-.5)."""
    ctx = SimpleNamespace(label_counts=torch.tensor([[1, 16, 0]]), initial=torch.zeros(1))
    stage = fl.Stage("train", torch.tensor([0]), 1)
    margin = example("fedlc").dispatch(stage, ctx).client_memory["margin"][0]
    assert margin.tolist() == [1.0, 0.5, float("inf")]
    loss = example("fedlc").batch_loss()(batch([[0.0, 0.0, 9.0]], [0], margin=margin))
    assert loss.item() == pytest.approx(math.log(1 + math.exp(0.5)))
    newcomer = example("fedlc").batch_loss()(batch([[0.0, 0.0]], [0]))
    assert newcomer.item() == pytest.approx(math.log(2)), "counts are not known"


def test_moon_by_hand(example: Callable[..., Any]) -> None:
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
    found = example("moon", tau=0.5).contrast(one)
    assert found.item() == pytest.approx(math.log(1 + math.exp(-2)))


def toy_upload(params: list[list[float]], losses: list[float]) -> fl.Upload:
    """Two clients' models."""
    n = len(params)
    table = torch.tensor(params)[:, None]
    loss = torch.tensor(losses, dtype=torch.float64)
    return fl.Upload(
        ids=torch.arange(n),
        params=table,
        active=torch.ones(n, 1, dtype=torch.bool),
        samples=torch.tensor([10] * n),
        steps=torch.ones(n, dtype=torch.int64),
        loss=loss,
        loss_start=loss[:, None],
        loss_end=loss[:, None],
        chosen=torch.zeros(n, dtype=torch.int64),
    )


def test_q_fedavg_by_hand(example: Callable[..., Any]) -> None:
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
    found = example("q-fedavg").aggregate(state, upload, home, ctx)
    torch.testing.assert_close(found.rows, torch.tensor([[-1 / 35, -4 / 35]]))
    flat = example("q-fedavg", q=0.0).aggregate(state, upload, home, ctx)
    torch.testing.assert_close(flat.rows, torch.tensor([[-0.05, -0.1]]))


@pytest.mark.usefixtures("examples")
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


def test_neighbours_by_hand(example: Callable[..., Any]) -> None:
    """Neighbours at distances 0 and log 3, of classes 0 and 1: 3/4 and 1/4; the model says 1/2."""
    keys = torch.tensor([[0.0], [math.log(3)], [50.0], [torch.nan]])
    received = {"knn.keys": keys, "knn.labels": torch.tensor([0.0, 1.0, 1.0, torch.nan])}
    module = SimpleNamespace(received=received, features=lambda x: (x, torch.zeros(1, 2)))
    found = example("knn-per", k=2, share=0.5).mixture(module, torch.zeros(1, 1), 2)
    assert found.exp()[0].tolist() == pytest.approx([0.625, 0.375])


@pytest.mark.usefixtures("examples")
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


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_the_rows_and_bytes_of_lora_by_hand(play_toy: Play) -> None:
    """3 -> 3 -> 4: the first matrix has rank-2 adapters, 2 (3 + 3) scalars; the head none."""
    played = play_toy(composition(("lora", create("lora", rank=2))), rounds=2)
    assert played.state.models.shape == (1, 12)
    for way in ("down", "up"):
        assert played.run.ledger.bits[way]["model"] == 2 * 3 * 32 * 12
    module, ctx = played.run.executor.workspace.module, played.run.context
    plain = play_toy("fedavg", rounds=1).run.context
    frozen = plain.layout.unflatten(plain.initial)
    assert torch.equal(module.net.head.weight, frozen["net.head.weight"])
    x = ctx.client_data(0)[0]
    same = ctx.logits(ctx.initial[None], x)
    torch.testing.assert_close(
        same[0], play_toy("fedavg", rounds=1).run.context.logits(plain.initial[None], x)[0]
    )
    headed = play_toy(composition(("lora", create("lora", rank=2, head=True))), rounds=1)
    assert headed.state.models.shape == (1, 12 + 16)


ADAPTERS = 4 * (32 + 96) + 4 * (32 + 32) + 4 * (32 + 128) + 4 * (128 + 32)
"""Scalars of rank-4 adapters in the one block of 32 features that `bigrams` has."""


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_gpt_2_learns_in_rows_as_wide_as_its_adapters(typed: Typed) -> None:
    words = ("run", "-p", "lora", "-s", "nordic-text", "--dataset", "bigrams", "--rounds", "2")
    code, _, _ = typed(*words)
    assert code == 0
    (path,) = Path().glob("*/nordic-text/**/seed-0.json")
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["curves"]["accuracy"][-1] > 0
    assert result["curves"]["slowest_down"] == [4 * ADAPTERS] * 2


@pytest.mark.usefixtures("examples")
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


# --- different networks -----------------------------------------------------------------------

WIDE: dict[str, Any] = {"further_models": [{"name": "mlp", "hidden": 5}]}
NORMED: dict[str, Any] = {"further_models": [{"name": "mlp", "hidden": 3, "norm": True}]}


def test_fedmd_digests_by_hand(example: Callable[..., Any]) -> None:
    """f(x) = (1, 0), (0, 3) and a mean of (0, 0), (0, 1): distances 1, 0, 0, 2."""
    common, stage = torch.zeros(2, 3), fl.Stage("train", torch.arange(2), 1, name="digest")
    ctx = SimpleNamespace(server_data=lambda: (common, None))
    one = batch([[0.0, 0.0]], [0])
    predicted, mean = torch.tensor([[1.0, 0], [0, 3]]), torch.tensor([[0.0, 0], [0, 1]])
    module: Any = Predictor(predicted, {"mean": mean})
    loss = example("fedmd").batch_loss(stage, ctx)(fl.Batch(module, one.x, one.y))
    assert loss.item() == 0.75
    assert example("fedmd").batch_loss(replace(stage, name=""), ctx) is None


CODED = {"qsgd": (4, 32), "dp-fedavg": (32, 0), "sign-flip": (32, 0), "top-k": None}
"""Bits of a scalar, and of a message beside its scalars."""


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("name", CODED)
def test_coders_send_what_the_network_of_a_client_has(name: str, play_toy: Play) -> None:
    """28 and 44 scalars; a tenth of them is 3 with places of 5 bits, and 5 with places of 6."""
    played = play_toy(f"fedavg+{name}", rounds=1, participation=1.0, **WIDE)
    networks = played.run.context.networks
    assert networks is not None
    counted = [int((networks == which).sum()) for which in (0, 1)]
    assert min(counted) > 0
    bits = CODED[name]
    sizes = [3 * (32 + 5), 5 * (32 + 6)]
    if bits is not None:
        sizes = [scalars * bits[0] + bits[1] for scalars in (28, 44)]
    total = sum(size * count for size, count in zip(sizes, counted, strict=True))
    assert played.run.ledger.totals["up"]["model"] == -(-total // 8)


class Predictor:
    """A module that predicts the same, whatever it gets."""

    def __init__(self, predicted: torch.Tensor, received: dict[str, torch.Tensor]) -> None:
        self.predicted, self.received = predicted, received

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.predicted


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
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


def test_the_class_means_of_fedgh_by_hand(example: Callable[..., Any]) -> None:
    """Features 1, 3 of class 0 and 5 of class 2."""
    module = SimpleNamespace(eval=lambda: None, features=lambda x: (x, None))
    ctx = SimpleNamespace(classes=3)
    x, y = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2])
    sent = example("fedgh").report(ctx)(module, x, y).sent["means"].flatten().tolist()
    assert (sent[0], sent[2]) == (2.0, 5.0)
    assert math.isnan(sent[1])


def test_a_step_of_the_head_of_fedgh_by_hand(example: Callable[..., Any]) -> None:
    """One mean, 2 of class 0, and a head of zeros: p = (.5, .5), slopes (-.5, .5) (2 and 1)."""
    means = torch.tensor([[[2.0], [math.nan]]])
    head = example("fedgh", steps=1, lr=0.1).trained(torch.zeros(4), means)
    assert head.tolist() == pytest.approx([0.1, -0.1, 0.05, -0.05])


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
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
