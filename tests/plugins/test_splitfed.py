"""SplitFed: bytes and models by hand, the order of the second version, where networks are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from mentions import mentions
from torch import Tensor, nn
from toy import Play, Played, composition, refused, watching

import flbench as fl
from flbench.core.local_training import LocalTraining
from flbench.models import lenet5, mlp
from flbench.run.rounds import cohort
from flbench_plugins.oracle import Oracle
from flbench_plugins.splitfed import SplitFedV2, server_part

LOCAL = {"epochs": 2, "batch_size": 4, "lr": 0.5}
CLIENT, SERVER = 3 * 3 + 3, 3 * 4 + 4
"""Scalars of the two layers of the toy's perceptron, 3 -> 3 -> 4."""


def by_item(played: Played) -> dict[str, dict[str, int]]:
    return {way: items for way, items in played.run.ledger.totals.items() if items}


def cohorts(played: Played) -> list[Tensor]:
    suite, seed = played.job.suite, played.job.seed
    return [cohort(suite, seed, number + 1) for number in range(suite.rounds)]


@pytest.mark.parametrize("method", ["splitfed-v1", "splitfed-v2"])
def test_bytes_by_hand(method: str, play_toy: Play) -> None:
    """Of each sample in each step, 3 features and a label go up, and 3 slopes come down."""
    played = play_toy(method, rounds=2, local=LOCAL)
    trained = [int(played.run.context.samples[ids].sum()) for ids in cohorts(played)]
    passed, models = 2 * sum(trained), 2 * 3 * CLIENT
    assert by_item(played) == {
        "down": {"model": 4 * models, "gradients": 4 * 3 * passed},
        "up": {"model": 4 * models, "activations": 4 * 3 * passed, "labels": 4 * passed},
    }


def test_the_first_version_has_the_models_of_fedavg_and_sends_other_bytes(play_toy: Play) -> None:
    plain, split = play_toy("fedavg"), play_toy("splitfed-v1")
    assert torch.equal(split.state.models, plain.state.models)
    assert by_item(plain) == {
        way: {"model": 3 * 3 * 4 * (CLIENT + SERVER)} for way in by_item(plain)
    }
    assert by_item(split) != by_item(plain)


def test_with_one_client_a_round_both_versions_are_one(play_toy: Play) -> None:
    more: dict[str, Any] = {"participation": 1 / 6, "rounds": 3}
    one, two = play_toy("splitfed-v1", **more), play_toy("splitfed-v2", **more)
    torch.testing.assert_close(two.state.models, one.state.models, rtol=1e-6, atol=1e-6)
    assert by_item(two) == by_item(one)


@dataclass(frozen=True)
class Starts:
    """Notes what each client starts from."""

    found: list[Tensor] = field(default_factory=list)

    @fl.hookimpl
    def encode(self) -> Callable[[fl.Message], fl.Message]:
        def noted(message: fl.Message) -> fl.Message:
            self.found.append(message.start.clone())
            return message

        return noted


def second_version(play_toy: Play, **more: Any) -> tuple[Played, list[fl.Upload], Tensor, Tensor]:
    """A run of V2: its uploads, what they started from, and what lives at the server."""
    uploads, starts = list[fl.Upload](), Starts()
    method = composition(
        ("splitfed-v2", SplitFedV2()), ("starts", starts), ("watch", watching(uploads))
    )
    played = play_toy(method, local=LOCAL, **more)
    return played, uploads, torch.stack(starts.found), server_part(played.run.context.layout, 0.5)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


@pytest.mark.parametrize("net", [None, normed])
def test_the_servers_part_goes_on_and_the_clients_part_is_a_mean(net: Any, play_toy: Play) -> None:
    played, uploads, starts, mask = second_version(play_toy, rounds=2, net=net)
    layout, before = played.run.context.layout, played.run.context.initial
    assert [len(upload.ids) for upload in uploads] == [1] * 6
    for first in (0, 3):
        turns = uploads[first : first + 3]
        rows = torch.cat([upload.selected() for upload in turns])
        samples = torch.cat([upload.samples for upload in turns]).double()
        assert torch.equal(starts[first], before)
        for turn in (1, 2):
            assert torch.equal(starts[first + turn][mask], rows[turn - 1][mask])
            assert torch.equal(starts[first + turn][~mask], before[~mask])
        mean = ((samples[:, None] * rows).sum(dim=0) / samples.sum()).float()
        mean = torch.where(layout.counters, rows.amax(dim=0), mean)
        before = torch.where(mask, rows[2], mean)
        if first == 0:
            torch.testing.assert_close(starts[3], before, rtol=1e-5, atol=1e-6)
            before = starts[3]
    torch.testing.assert_close(played.state.models[0], before, rtol=1e-5, atol=1e-6)


def test_the_order_is_random(play_toy: Play) -> None:
    played, uploads, *_ = second_version(play_toy, rounds=3, participation=1.0)
    order = torch.cat([upload.ids for upload in uploads]).reshape(3, 6)
    assert (order.sort(dim=1).values == torch.arange(6)).all()
    assert len(order.unique(dim=0)) == 3, "another one in each round"
    assert played.state.round == 3


def test_groups_have_servers_of_their_own(play_toy: Play) -> None:
    """Two groups: each model is the mean of its clients' parts, and the last server part."""
    uploads = list[fl.Upload]()
    method = composition(
        ("splitfed-v2", SplitFedV2()), ("oracle", Oracle(warmup=0)), ("watch", watching(uploads))
    )
    played = play_toy(method, rounds=1, participation=1.0, local=LOCAL)
    mask, home = server_part(played.run.context.layout, 0.5), played.state.membership.home
    for group in (0, 1):
        own = [upload for upload in uploads if int(home[upload.ids]) == group]
        rows = torch.cat([upload.selected() for upload in own])
        weights = torch.cat([upload.samples for upload in own]).float()
        mean = (weights[:, None] * rows).sum(dim=0) / weights.sum()
        expected = torch.where(mask, rows[-1], mean)
        torch.testing.assert_close(played.state.models[group], expected, rtol=1e-5, atol=1e-6)


def test_clients_that_fail_are_in_no_mean(play_toy: Play) -> None:
    """The mean is that of the uploads that arrive, whichever the last one is."""
    clock = {"dropout": 0.5}
    played, uploads, _, mask = second_version(play_toy, rounds=1, participation=1.0, clock=clock)
    assert 0 < len(uploads) < 6
    rows = torch.cat([upload.selected() for upload in uploads])
    weights = torch.cat([upload.samples for upload in uploads]).float()
    mean = (weights[:, None] * rows).sum(dim=0) / weights.sum()
    expected = torch.where(mask, rows[-1], mean)
    torch.testing.assert_close(played.state.models[0], expected, rtol=1e-5, atol=1e-6)
    up = played.run.ledger.bits["up"]["labels"] / 32
    assert up == 2 * sum(int(upload.samples) for upload in uploads)


def layout_of(net: nn.Module) -> fl.ParameterLayout:
    return fl.ParameterLayout.of(fl.ClientModule(net, LocalTraining(epochs=1, batch_size=1, lr=1)))


def server_layers(net: nn.Module, cut: float | str) -> Sequence[str]:
    layout = layout_of(net)
    mask = server_part(layout, cut)
    return list(dict.fromkeys(slot.layer for slot in layout.slots if mask[slot.start]))


def test_where_a_network_is_cut() -> None:
    perceptron, lenet = mlp.build((3,), 4, norm=True), lenet5.build((1, 28, 28), 10)
    assert server_layers(perceptron, 0.5) == ["net.head"]
    assert server_layers(perceptron, 0.1) == ["net.body.2", "net.head"], "clients keep one"
    assert server_layers(perceptron, 0.99) == ["net.head"], "and the server has one"
    assert server_layers(perceptron, "body.2") == ["net.body.2", "net.head"]
    every = server_layers(lenet, 0.01)
    assert len(every) == 4
    assert server_layers(lenet, 0.4) == every[1:]
    assert server_layers(lenet, every[2].removeprefix("net.")) == every[2:]


@pytest.mark.parametrize("cut", [0.0, 1.0, -0.5])
def test_a_share_of_nothing_or_of_everything_is_refused(cut: float, play_toy: Play) -> None:
    assert "cut: expected a share above 0" in refused(
        play_toy, "splitfed-v2", settings={"cut": cut}
    )


@pytest.mark.parametrize("cut", ["body", "body.1", "tail", "hea"])
def test_a_cut_that_leaves_clients_nothing_or_is_not_there_is_refused(
    cut: str, play_toy: Play
) -> None:
    line = refused(play_toy, "splitfed-v1", settings={"cut": cut})
    assert mentions(line, "splitfed-v1.setup", "cut", "layer")
    assert line.endswith(f"of body.1, head, got '{cut}'")


def test_one_layer_cannot_be_divided(play_toy: Play) -> None:
    for method in ("splitfed-v1", "splitfed-v2"):
        with pytest.raises(fl.Undefined, match="this one has one"):
            play_toy(method, net=lambda: nn.Sequential(nn.Linear(3, 4)))
