"""LoRA: what is frozen, and what is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from by_hand import create
from mentions import mention
from toy import (
    Play,
    Typed,
    composition,
)

from flbench.errors import Undefined


@pytest.mark.slow
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


def test_a_network_that_is_a_head_alone_has_nothing_to_adapt(play_toy: Play) -> None:
    with pytest.raises(Undefined, match=mention("none", "network")):
        play_toy("lora", model={"name": "logistic-regression"})
    played = play_toy("lora", model={"name": "logistic-regression"}, settings={"head": True})
    assert played.state.models.shape == (1, 3 * 4 + 4)


ADAPTERS = 4 * (32 + 96) + 4 * (32 + 32) + 4 * (32 + 128) + 4 * (128 + 32)
"""Scalars of rank-4 adapters in the one block of 32 features that `bigrams` has."""


@pytest.mark.slow
@pytest.mark.long
def test_gpt_2_learns_in_rows_as_wide_as_its_adapters(typed: Typed) -> None:
    words = ("run", "-p", "lora", "-s", "nordic-text", "--dataset", "bigrams", "--rounds", "2")
    code, _, _ = typed(*words)
    assert code == 0
    (path,) = Path().glob("*/nordic-text/**/seed-0.json")
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["curves"]["accuracy"][-1] > 0
    assert result["curves"]["slowest_down"] == [4 * ADAPTERS] * 2
