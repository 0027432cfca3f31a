"""FedAsync and FedBuff by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import create, toy_upload
from small import Drift
from torch import nn
from toy import (
    Play,
    Played,
    composition,
    refused,
)

import flbench as fl
from flbench.errors import Undefined


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


def test_the_proximal_term_of_fedasync_by_hand() -> None:
    """Half of .1 times (9 + 16); the third scalar is a buffer."""
    module = SimpleNamespace(
        flat=lambda: torch.tensor([3.0, 5.0]), start=torch.tensor([0.0, 1.0, 7.0])
    )
    assert create("fedasync", rho=0.1).local_term()(module).item() == pytest.approx(1.25)
    assert create("fedasync", rho=0.0).local_term() is None


@pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
def test_uploads_that_take_no_time_have_no_order(play_toy: Play, method: str) -> None:
    with pytest.raises(Undefined, match=r"clients take none: set `clock\.seconds_per_step`"):
        play_toy(method, clock={"dropout": 0.1}, rounds=1)


def test_fedasync_by_hand(play_toy: Play) -> None:
    """Client 0 arrives at 1, 2 and 3, never stale: .6, 1.2 and 1.8 of its move.

    At second 3 client 1 arrives after it, three updates late: its weight is .6 / sqrt(4) = .3.
    """
    played = two_clients(play_toy, ("fedasync", create("fedasync")))
    expected = [0.7 * 1.8, 0.3 * 4.0, 0.7 * 3.6]
    assert played.state.models[0].tolist() == pytest.approx(expected)
    assert played.run.history.curves["simulated_seconds"] == [2, 3]
    assert played.state.memory["fedasync.version"] == 4
    assert played.state.memory["fedasync.seen"].tolist() == [3, 4]
    assert played.state.memory["fedasync.called"].tolist() == [3.0, 3.0]
    given = [[1.8, 0.0, 3.6], expected]
    torch.testing.assert_close(played.state.memory["fedasync.given"][:], torch.tensor(given))


def test_fedbuff_by_hand(play_toy: Play) -> None:
    """Steps of two uploads: twice client 0; then client 0, and client 1 that is one step late."""
    played = two_clients(play_toy, ("fedbuff", create("fedbuff", size=2)))
    expected = [1 + 1 / 2, 4 / 2**0.5 / 2, 2 + 2 / 2]
    assert played.state.models[0].tolist() == pytest.approx(expected)
    assert played.run.history.curves["simulated_seconds"] == [2, 3]
    assert played.state.memory["fedbuff.version"] == 2
    assert played.state.memory["fedbuff.seen"].tolist() == [1, 2]
    assert played.state.memory["fedbuff.buffer"].tolist() == [0.0] * 4


def test_a_buffer_is_kept_between_rounds(play_toy: Play) -> None:
    """Three of four uploads make a step; the last one, of client 1 and a step late, waits."""
    played = two_clients(play_toy, ("fedbuff", create("fedbuff", size=3)))
    assert played.state.models[0].tolist() == [1.0, 0.0, 2.0]
    kept = played.state.memory["fedbuff.buffer"]
    assert kept.tolist() == pytest.approx([1.0, 0.0, 4 / 2**0.5, 0.0])


def test_the_statistics_of_a_buffer_are_those_of_its_uploads() -> None:
    """A parameter, a statistic and a counter, of two uploads of stale starts (1, 10, 5) and 0.

    The parameter moves by (2 / sqrt 2 + 3) / 2 from 7; the statistic is the mean of 4 and 2.
    """
    layout = fl.ParameterLayout(
        (
            fl.Slot("net.weight", (1,), 0, 1, "parameter", head=False),
            fl.Slot("net.var", (1,), 1, 2, "buffer", head=False),
            fl.Slot("net.count", (1,), 2, 3, "counter", head=False),
        ),
        1,
        2,
    )
    method, ctx = create("fedbuff", size=2), SimpleNamespace(layout=layout)
    state = fl.State(
        0,
        torch.tensor([[7.0, 8.0, 9.0]]),
        fl.Membership(torch.zeros(2, dtype=torch.int64)),
        {
            "fedbuff.version": torch.tensor(1),
            "fedbuff.seen": torch.tensor([0, 1]),
            "fedbuff.called": torch.zeros(2, dtype=torch.float64),
            "fedbuff.given": torch.tensor([[1.0, 10.0, 5.0], [0.0, 0.0, 0.0]]),
            "fedbuff.buffer": torch.zeros(4, dtype=torch.float64),
        },
    )
    for client, trained in enumerate(([3.0, 4.0, 11.0], [3.0, 2.0, 10.0])):
        upload = replace(
            toy_upload([trained], [1.0]),
            ids=torch.tensor([client]),
            arrivals=torch.zeros(1, dtype=torch.float64),
        )
        models = method.aggregate(state, upload, ctx)
        state = replace(state, models=models.rows).remember(models.memory)
    expected = [7 + (2 / 2**0.5 + 3) / 2, 3.0, 11.0]
    assert state.models[0].tolist() == pytest.approx(expected)
    assert not state.memory["fedbuff.buffer"].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedasync", "fedbuff"])
def test_a_server_that_does_not_wait_loses_what_is_not_sent(name: str, play_toy: Play) -> None:
    """A client whose upload is lost goes on; nobody stands still."""
    method = (name, create(name))
    played = two_clients(play_toy, method, dropout=0.5)
    full = two_clients(play_toy, method)
    sent = [one.run.ledger.bits["up"].get("model", 0) for one in (played, full)]
    assert sent[0] < sent[1]
    assert played.state.seconds >= full.state.seconds - 1


@pytest.mark.parametrize("name", ["fedasync", "fedbuff"])
def test_a_server_that_does_not_wait_has_one_model(name: str, play_toy: Play) -> None:
    clock = {"seconds_per_step": 1.0}
    for other, settings in (("oracle", {"oracle.warmup": 1}), ("fedc2i", {})):
        said = refused(play_toy, f"{other}+{name}", settings=settings, clock=clock, rounds=3)
        assert f"{name} has one model" in said


@pytest.mark.parametrize("name", ["fedasync", "fedbuff"])
def test_a_server_that_does_not_wait_needs_a_clock(name: str, play_toy: Play) -> None:
    assert "the suite has no clock" in refused(play_toy, composition((name, create(name))))
