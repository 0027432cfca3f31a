"""The example plugins: short, right by hand, and lawful as installed from elsewhere."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy import Play, composition, install, toy_suite

from flbench.core.state import Message, Stage
from flbench.run.composition import compose
from flbench.testing import Check, parametrize_with_checks

FOLDER = Path(__file__).resolve().parents[2] / "plugins" / "examples"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
POINTS = PROJECT["entry-points"]["flbench.methods"]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The examples, installed."""
    folder = tmp_path_factory.mktemp("examples")
    lines = "".join(f"{name} = {value}\n" for name, value in POINTS.items())
    install(folder, "flbench-examples", f"[flbench.methods]\n{lines}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.syspath_prepend(folder)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
@parametrize_with_checks(*POINTS)
def test_every_example_conforms(check: Check) -> None:
    check()


# --- what clients send, by hand ---------------------------------------------------------------


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make an example's method: example("qsgd", levels=2)."""
    monkeypatch.syspath_prepend(FOLDER)

    def make(name: str, **settings: object) -> Any:
        module, kind = POINTS[name].split(":")
        return getattr(importlib.import_module(module), kind)(**settings)

    return make


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


def test_krum_keeps_what_the_majority_learned(example: Callable[..., Any], play_toy: Play) -> None:
    """Under the attack, FedAvg loses more than Krum."""
    flip = ("sign-flip", example("sign-flip", share=0.3, scale=5.0))
    krum = ("krum", example("krum", byzantine=2, chosen=3))
    suite = toy_suite(participation=1.0)
    attacked = play_toy(composition(flip), rounds=5, suite=suite)
    defended = play_toy(composition(flip, krum), rounds=5, suite=suite)
    loss = [played.run.history.last.mean_loss() for played in (attacked, defended)]
    assert loss[1] < loss[0]


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
