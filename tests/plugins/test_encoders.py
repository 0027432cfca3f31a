"""What clients send instead of their models: by hand, and with other methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Drawn, create, message
from toy import (
    Play,
    composition,
    toy_suite,
)

from flbench.core.state import Stage
from flbench.run.composition import compose

STAGE = Stage("train", torch.arange(4), 1)


def test_qsgd_by_hand() -> None:
    """|v| = 5, s = 2: (3, -4) / 5 is 1.2 and 1.6 levels; draws .7 and .5 give levels 1 and 2."""
    sent = create("qsgd", levels=2).encode(STAGE, Drawn(0.7, 0.5))(message([3.0, -4.0]))
    assert sent.update.tolist() == [2.5, -5.0]
    assert (sent.bits, sent.overhead) == (3, 32)  # -2..2 are five values


@pytest.mark.slow
def test_qsgd_sends_the_update_in_the_mean() -> None:
    draws = (np.arange(1000) + 0.5) / 1000
    one = create("qsgd", levels=2)
    sent = [one.encode(STAGE, Drawn(x, x))(message([3.0, -4.0])).update for x in draws]
    assert torch.stack(sent).mean(dim=0).tolist() == pytest.approx([3.0, -4.0], abs=1e-2)


def test_top_k_by_hand() -> None:
    """(1, 0, 3, 0) and a rest of (0, 2, 0, 0): half of four scalars, two bits for each place."""
    rest = {"top-k.rest": torch.tensor([0.0, 2.0, 0.0, 0.0])}
    sent = create("top-k", share=0.5).sparse(message([1.0, 0.0, 3.0, 0.0], memory=rest))
    assert sent.mask.tolist() == [False, True, True, False]
    assert sent.update.tolist() == [0.0, 2.0, 3.0, 0.0]
    assert sent.memory["top-k.rest"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert (sent.bits, sent.overhead) == (32, 4)


def test_top_k_of_everything_costs_no_places() -> None:
    rest = {"top-k.rest": torch.zeros(3)}
    sent = create("top-k", share=1.0).sparse(message([1.0, 0.0, 3.0], memory=rest))
    assert sent.update.tolist() == [1.0, 0.0, 3.0]
    assert sent.overhead == 0


def test_one_scalar_of_top_k_has_a_place_too() -> None:
    rest = {"top-k.rest": torch.zeros(4)}
    sent = create("top-k", share=0.25).sparse(message([1.0, 0.0, 3.0, 0.0], memory=rest))
    assert (int(sent.mask.sum()), sent.overhead) == (1, 2)


def test_a_probe_is_coded_too_and_top_k_forgets_its_rest() -> None:
    probe = replace(STAGE, kind="probe")
    rest = {"top-k.rest": torch.tensor([0.0, 9.0, 0.0, 0.0])}
    one = message([1.0, 0.0, 3.0, 0.0], memory=rest)
    sent = create("top-k", share=0.5).encode(probe)(one)
    assert sent.mask.tolist() == [True, False, True, False]
    assert sent.memory is one.memory
    quantised = create("qsgd", levels=2).encode(probe, Drawn(0.7, 0.5))(message([3.0, -4.0]))
    assert quantised.update.tolist() == [2.5, -5.0]


def test_scalars_that_top_k_may_not_send_keep_their_rest() -> None:
    one = message([1.0, 3.0, 9.0], memory={"top-k.rest": torch.tensor([0.0, 0.0, 5.0])})
    sent = create("top-k", share=0.5).sparse(replace(one, mask=torch.tensor([True, True, False])))
    assert sent.update.tolist() == [0.0, 3.0, 0.0]
    assert sent.memory["top-k.rest"].tolist() == [1.0, 0.0, 5.0]


def test_dp_fedavg_by_hand() -> None:
    """(3, 4) is clipped to norm 1; noise of z S / sqrt(4) = .1 times the draws is added."""
    one = create("dp-fedavg", clip=1.0, noise=0.2)
    sent = one.encode(STAGE, Drawn(1.0, -1.0))(message([3.0, 4.0]))
    assert sent.update.tolist() == pytest.approx([0.7, 0.7])
    assert sent.samples == 1, "the server makes a uniform mean"
    short = create("dp-fedavg", clip=10.0, noise=0.0).encode(STAGE, Drawn(0, 0))
    assert short(message([3.0, 4.0])).update.tolist() == [3.0, 4.0]


def test_capped_weights_have_a_fixed_denominator() -> None:
    """Samples 10, 20, 40, 80 and a cap of 40: a = 1/4, 1/2, 1, 1; W = 2.75; n = N = 4, so q = 1.

    Client 1 has (3, 4), clipped (.6, .8), times 1/2, plus .1 of noise (1, -1), times N / W.
    The mean of n messages is sum d / (q W), with noise of deviation .1 sqrt(4) / 2.75 = z S / q W.
    """
    one = create("dp-fedavg", clip=1.0, noise=0.2, weights="capped", cap=40)
    ctx = Drawn(1.0, -1.0)
    ctx.samples = torch.tensor([10, 20, 40, 80])  # type: ignore[attr-defined]
    sent = one.encode(STAGE, ctx)(replace(message([3.0, 4.0]), client=1, samples=20))
    assert sent.update.tolist() == pytest.approx([0.4 * 4 / 2.75, 0.3 * 4 / 2.75])
    assert sent.samples == 1
    ctx.numbers = ctx.numbers[:1]
    everybody = replace(one, noise=0.0).encode(STAGE, ctx)
    total = sum(everybody(replace(message([1.0]), client=i)).update.item() for i in range(4))
    assert total / 4 == pytest.approx(1.0), "equal updates of norm S: their mean is their sum / qW"


def test_by_samples_dp_fedavg_leaves_the_number_of_samples() -> None:
    one = create("dp-fedavg", noise=0.0, weights="samples").encode(STAGE, Drawn(0.0))
    assert one(replace(message([0.5]), samples=7)).samples == 7


def test_attackers_that_are_named_are_not_judged(play_toy: Play) -> None:
    """The average learns from nobody else, and what they send back is the opposite."""
    flip = create("sign-flip", attackers=(0, 5), scale=3.0)
    coder = replace(flip, attackers=(0,)).encode(Drawn(0.1, 0.2, 0.3, 0.4))
    assert [coder(replace(message([1.0]), client=i)).update.item() for i in (0, 1)] == [-3.0, 1.0]
    played = play_toy(composition(("sign-flip", flip)), not_judged=[0, 5], metrics=("ece",))
    assert [n > 0 for n in played.result.clients.test] == [False, *[True] * 4, False]
    assert played.result.summary["ece_clients"] == 4


def test_a_result_is_told_lists_as_its_file_holds_them() -> None:
    """Otherwise `flbench verify` takes them for other parameters."""
    params = compose("sign-flip", {"attackers": [0, 5]}).described.params
    assert params == {"attackers": [0, 5], "scale": 1.0, "share": 0.2}


def test_sign_flip_by_hand() -> None:
    flip = create("sign-flip", share=0.25, scale=2.0).encode(Drawn(0.1, 0.2, 0.3, 0.4))
    assert flip(message([3.0, 4.0])).update.tolist() == [-6.0, -8.0]
    honest = replace(message([3.0, 4.0]), client=1)
    assert flip(honest) is honest


def test_krum_by_hand() -> None:
    """n = 5, f = 1: two neighbours count. 1 and 2 score 2; 2 is nearer to all."""
    uploads = torch.tensor([[0.0], [1.0], [2.0], [3.0], [90.0]])
    assert create("krum").nearest(uploads) == [2]
    assert create("krum", chosen=2).nearest(uploads) == [2, 1]


@pytest.mark.slow
def test_krum_keeps_what_the_majority_learned(play_toy: Play) -> None:
    """Under the attack, FedAvg loses more than Krum."""
    flip = ("sign-flip", create("sign-flip", share=0.3, scale=5.0))
    krum = ("krum", create("krum", byzantine=2, chosen=3))
    suite = toy_suite(participation=1.0)
    attacked = play_toy(composition(flip), rounds=5, suite=suite)
    defended = play_toy(composition(flip, krum), rounds=5, suite=suite)
    loss = [played.run.history.last.mean_loss() for played in (attacked, defended)]
    assert loss[1] < loss[0]


PAIRS = ("top-k+qsgd", "pfedlia+qsgd", "krum+dp-fedavg", "scaffold+top-k", "fedrep+qsgd")


@pytest.mark.slow
@pytest.mark.parametrize("names", PAIRS)
def test_coders_go_with_other_methods(names: str, play_toy: Play) -> None:
    """Every coder acts: its models are others than without it, and no message is larger."""
    first, coder = names.split("+")
    played, plain = play_toy(names, rounds=2), play_toy(first, rounds=2)
    assert not played.state.models.equal(plain.state.models)
    up = [one.run.ledger.bits["up"]["model"] for one in (played, plain)]
    assert up[0] == up[1] if coder == "dp-fedavg" else up[0] < up[1]


@pytest.mark.slow
def test_bits_of_top_k_and_qsgd_by_hand(play_toy: Play) -> None:
    """A toy row has 28 scalars: 3 of them (a tenth, rounded up), 4 bits each, 5 bits a place.

    Three clients in each of two rounds send them with a norm of 32 bits.
    """
    played = play_toy("top-k+qsgd", rounds=2)
    assert played.run.ledger.bits["up"]["model"] == 2 * 3 * (3 * (4 + 5) + 32)


WIDE: dict[str, Any] = {"further_models": [{"name": "mlp", "hidden": 5}]}

CODED = {
    "qsgd": (4, 32),
    "dp-fedavg": (32, 0),
    "ef-signsgd": (1, 32),
    "local-dp": (32, 0),
    "sign-flip": (32, 0),
    "top-k": None,
}
"""Bits of a scalar, and of a message beside its scalars."""


@pytest.mark.slow
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
