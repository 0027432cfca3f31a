"""signSGD with majority vote and EF-signSGD: messages, votes and errors by hand; bits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import Drawn, create, message, toy_upload
from toy import Play, composition, watching

import flbench as fl

STAGE = fl.Stage("train", torch.arange(3), 1)
PROBE = fl.Stage("probe", torch.arange(3), 1)


def test_signs_by_hand() -> None:
    """One bit has no zero: a coin decides, of .3 or .7, and of nothing else."""
    for coins, either in (((0.7, 0.3, 0.3), -1.0), ((0.3, 0.7, 0.7), 1.0)):
        sent = create("signsgd").encode(STAGE, Drawn(*coins))(message([0.5, -0.2, 0.0]))
        assert sent.update.tolist() == [1.0, -1.0, either]
        assert (sent.bits, sent.overhead) == (1, 0)


def test_a_scalar_that_nobody_moved_is_moved_by_nothing_in_the_mean() -> None:
    draws = torch.rand(1000, generator=torch.Generator().manual_seed(0)).tolist()
    sent = create("signsgd").encode(STAGE, Drawn(*draws))(message([0.0] * 1000))
    assert abs(float(sent.update.mean())) < 0.1
    assert set(sent.update.tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("uploads", "expected"),
    [
        # votes 1 + 1 - 1, -1 - 1 - 1, -1 + 1 + 1
        ([[2.0, 0.0, 0.0], [2.0, 0.0, 2.0], [0.0, 0.0, 2.0]], [1.25, 0.75, 1.25]),
        # two clients that disagree, and agree
        ([[2.0, 0.0, 2.0], [0.0, 0.0, 2.0]], [1.0, 0.75, 1.25]),
    ],
)
def test_votes_by_hand(uploads: list[list[float]], expected: list[float]) -> None:
    """From (1, 1, 1), each scalar moves by delta = .25 to where most clients want it."""
    home = fl.Membership(torch.zeros(3, dtype=torch.int64))
    ctx: Any = SimpleNamespace(layout=fl.ParameterLayout((), 3, 0))
    upload = toy_upload(uploads, [1.0] * len(uploads))
    upload.samples[0] = 1000  # a vote has no weight
    state = fl.State(0, torch.ones(2, 3), home)
    rows = create("signsgd", step=0.25).aggregate(state, upload, home, ctx).rows
    assert rows[0].tolist() == expected
    assert rows[1].tolist() == [1.0, 1.0, 1.0], "nobody votes"


def test_rounding_errors_decide_no_tie() -> None:
    """In float32, .3 + 1 - .3 is a little below 1, and .3 - 1 - .3 is -1."""
    home = fl.Membership(torch.zeros(2, dtype=torch.int64))
    ctx: Any = SimpleNamespace(layout=fl.ParameterLayout((), 1, 0))
    start = torch.tensor([[0.3]])
    upload = toy_upload([[float(start + 1)], [float(start - 1)]], [1.0, 1.0])
    assert (upload.selected() - start).sum() != 0
    state = fl.State(0, start, home)
    assert torch.equal(create("signsgd").aggregate(state, upload, home, ctx).rows, start)


def test_error_feedback_by_hand() -> None:
    """p = (3, -4, 0) + (0, 1, -1) = (3, -3, -1): the mean magnitude is 7 / 3."""
    memory = {"ef-signsgd.e": torch.tensor([0.0, 1.0, -1.0])}
    sent = create("ef-signsgd").scaled(message([3.0, -4.0, 0.0], memory=memory))
    assert sent.update.tolist() == pytest.approx([7 / 3, -7 / 3, -7 / 3])
    assert sent.memory["ef-signsgd.e"].tolist() == pytest.approx([2 / 3, -2 / 3, 4 / 3])
    assert (sent.bits, sent.overhead) == (1, 32)


def test_scalars_that_are_not_sent_keep_their_error() -> None:
    """p = (3, 1): the mean is over two scalars, and the third neither moves nor forgets."""
    one = message([3.0, 1.0, 9.0], memory={"ef-signsgd.e": torch.tensor([0.0, 0.0, 5.0])})
    sent = create("ef-signsgd").scaled(replace(one, mask=torch.tensor([True, True, False])))
    assert sent.update.tolist() == [2.0, 2.0, 0.0]
    assert sent.memory["ef-signsgd.e"].tolist() == [1.0, -1.0, 5.0]


def test_a_probe_is_sent_as_signs_and_changes_no_error() -> None:
    one = message([3.0, -1.0], memory={"ef-signsgd.e": torch.tensor([9.0, 9.0])})
    sent = create("ef-signsgd").encode(PROBE)(one)
    assert sent.update.tolist() == [2.0, -2.0]
    assert (sent.bits, sent.overhead) == (1, 32)
    assert sent.memory is one.memory


def test_what_is_sent_and_the_last_error_are_all_updates() -> None:
    """sum of what was sent + e = sum of the updates."""
    updates = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    error, total = torch.zeros(5), torch.zeros(5)
    for update in updates.tolist():
        sent = create("ef-signsgd").scaled(message(update, memory={"ef-signsgd.e": error}))
        error, total = sent.memory["ef-signsgd.e"], total + sent.update
    torch.testing.assert_close(total + error, updates.sum(dim=0))


@pytest.mark.slow
def test_bits_of_signs_by_hand(play_toy: Play) -> None:
    """28 scalars of three clients in two rounds, one bit each; and a length of 32 bits."""
    bits = {name: play_toy(name, rounds=2).run.ledger.bits for name in ("signsgd", "ef-signsgd")}
    assert bits["signsgd"]["up"] == {"model": 2 * 3 * 28}
    assert bits["ef-signsgd"]["up"] == {"model": 2 * 3 * (28 + 32)}
    assert bits["signsgd"]["down"] == {"model": 2 * 3 * 28 * 32}


@pytest.mark.slow
def test_a_round_moves_every_scalar_by_one_step(play_toy: Play) -> None:
    """Three clients cannot be tied."""
    uploads: list[Any] = []
    stack = composition(("signsgd", create("signsgd", step=0.125)), ("watch", watching(uploads)))
    played = play_toy(stack, rounds=1)
    start = played.run.context.initial
    moved = (played.state.models[0] - start) / 0.125
    torch.testing.assert_close(moved.abs(), torch.ones(28), rtol=0, atol=1e-5)
    assert set((uploads[0].selected() - start).round(decimals=5).unique().tolist()) == {-1.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("names", ["ifca+signsgd", "ifca+ef-signsgd", "fedadam+ef-signsgd"])
def test_signs_go_with_other_methods(names: str, play_toy: Play) -> None:
    played = play_toy(names, rounds=3)
    plain = play_toy(names.split("+")[0], rounds=3)
    assert played.run.ledger.bits["up"]["model"] < plain.run.ledger.bits["up"]["model"] / 14
    assert not played.said
