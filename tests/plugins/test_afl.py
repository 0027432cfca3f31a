"""AFL: the weights of the clients by hand, and what they are for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import create, toy_upload
from toy import Play

import flbench as fl
from flbench_plugins.afl import onto_simplex


@pytest.mark.parametrize(
    ("point", "nearest"),
    [
        ([0.35, 0.95], [0.2, 0.8]),  # .3 too much, half of it from each
        ([0.5, 1.0, -1.0], [0.25, 0.75, 0.0]),  # -1 is out; of the others .25 each
        ([3.0, 0.0], [1.0, 0.0]),
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
    ],
)
def test_projections_by_hand(point: list[float], nearest: list[float]) -> None:
    assert onto_simplex(torch.tensor(point)).tolist() == pytest.approx(nearest)
    doubled = onto_simplex(2 * torch.tensor(point), 2).tolist()
    assert doubled == pytest.approx([2 * x for x in nearest])


def told(counts: list[float], gamma: float) -> tuple[list[float], list[float]]:
    """The model and the counts after clients 0 and 1 of three sent models and losses 1 and 2."""
    home = fl.Membership(torch.zeros(3, dtype=torch.int64))
    samples, sent = torch.tensor([1, 3, 4]), []
    ctx: Any = SimpleNamespace(
        layout=fl.ParameterLayout((), 3, 0), samples=samples, send=lambda *what: sent.append(what)
    )
    state = fl.State(0, torch.zeros(1, 3), home, {"afl.counts": torch.tensor(counts).double()})
    upload = toy_upload([[1.0, 0.0, 4.0], [0.0, 2.0, 4.0]], [1.0, 2.0])
    models = create("afl", gamma=gamma).aggregate(state, upload, home, ctx)
    assert [what[0] for what in sent] == ["up"]
    return models.rows[0].tolist(), models.memory["afl.counts"].tolist()


def test_a_round_by_hand() -> None:
    """lambda = (1, 3, 4) / 8, so w = (1, 6, 16) / 4. Two of three clients: g = 1.5 (1, 2, 0).

    lambda + .1 g = (.275, .675, .5), whose sum is 1.45: minus .15 each is (.125, .525, .35).
    """
    w, counts = told([1.0, 3.0, 4.0], 0.1)
    assert w == [0.25, 1.5, 4.0]
    assert counts == pytest.approx([8 * 0.125, 8 * 0.525, 8 * 0.35])
    assert told([1.0, 3.0, 4.0], 0.0)[1] == [1.0, 3.0, 4.0]


def test_a_cohort_without_weight_changes_no_model() -> None:
    assert told([0.0, 0.0, 8.0], 0.1)[0] == [0.0, 0.0, 0.0]


@pytest.mark.slow
def test_the_worst_client_gets_the_weight(play_toy: Play) -> None:
    """With large steps and everybody there, all weight is with few, and they sum to the samples."""
    played = play_toy("afl", settings={"gamma": 1.0}, participation=1.0)
    counts, samples = played.state.memory["afl.counts"], played.run.context.samples
    assert counts.sum().item() == pytest.approx(samples.sum().item())
    assert (counts == 0).any() and counts.max() > samples.max()


@pytest.mark.slow
def test_every_group_has_a_simplex(play_toy: Play) -> None:
    played = play_toy("oracle+afl", settings={"oracle.warmup": 1, "afl.gamma": 0.1})
    counts, ctx = played.state.memory["afl.counts"], played.run.context
    for row in (0, 1):
        members = played.state.membership.home == row
        assert counts[members].sum().item() == pytest.approx(ctx.samples[members].sum().item())
    assert not torch.equal(counts, ctx.samples.double())
