"""The centralised reference: a plain torch loop on everybody's training samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from mentions import mentioning
from toy import CLIENTS, Play, Played, both, composition, toy_dataset, watching

import flbench as fl
from flbench.engine.batches import orders
from flbench.errors import PluginError
from flbench.leaderboard.grouping import ResultGroup
from flbench_plugins.centralised import Centralised

EXECUTORS = ["sequential", "vectorised"]


def plain_loop(played: Played, rounds: int, epochs: int) -> torch.Tensor:
    """The model that torch alone makes of the union, with batches of 4 and SGD."""
    ctx = played.run.context
    pairs = [ctx.client_data(client) for client in range(CLIENTS)]
    x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 4))
    ends = [0, 9, 12, 24, 28]
    for tensor, (start, stop) in zip(net.parameters(), pairwise(ends), strict=True):
        tensor.data = ctx.initial[start:stop].view(tensor.shape).clone()
    for round_ in range(1, rounds + 1):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
        for order in orders(len(y), epochs, played.job.seed, round_, 0, "train", 0):
            for batch in torch.as_tensor(order).split(4):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
                optimizer.step()
    return torch.cat([tensor.detach().reshape(-1) for tensor in net.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_it_is_a_plain_loop_over_the_union(play_toy: Play, executor: str, epochs: int) -> None:
    seen: list[Any] = []
    method = composition(("centralised", Centralised(epochs)), ("watch", watching(seen)))
    dataset = toy_dataset(samples=105)
    played = play_toy(method, executor=executor, dataset=dataset, partition={"name": "iid"})
    samples = played.run.context.samples
    assert len(set(samples.tolist())) > 1
    (row,) = played.state.models
    expected = plain_loop(played, rounds=3, epochs=epochs)
    torch.testing.assert_close(row, expected, rtol=0, atol=1e-5)
    assert (row - played.run.context.initial).abs().max() > 0.1
    assert [upload.samples.tolist() for upload in seen] == [[int(samples.sum())]] * 3
    assert [upload.steps.tolist() for upload in seen] == [
        [epochs * -(-int(samples.sum()) // 4)]
    ] * 3
    assert (played.personal == row).all(), "everybody is judged by it"


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_samples_cross_once_and_models_never(play_toy: Play, executor: str) -> None:
    played = play_toy("centralised", executor=executor)
    assert played.run.ledger.totals == {
        "down": {"model": 0}, "up": {"samples": 4 * CLIENTS * 7 * (3 + 1), "model": 0}, "peer": {}
    }  # fmt: skip
    assert played.run.ledger.per_client["up"].tolist() == [4 * 7 * 4] * CLIENTS
    assert len(set(played.run.history.curves["bytes_up"])) == 1, "in round 1"


@pytest.mark.slow
def test_it_is_marked_as_a_reference(play_toy: Play) -> None:
    result = play_toy("centralised").result
    (plugin,) = result.method.plugins
    assert plugin.pools_data
    assert not plugin.uses_true_groups
    assert ResultGroup("x", (result,)).reference
    assert not ResultGroup("x", (play_toy("fedavg").result,)).reference


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_data_is_pooled_for_nobody_who_does_not_say_so(play_toy: Play, executor: str) -> None:
    @dataclass(frozen=True)
    class Sly:
        @fl.hookimpl
        def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
            return (fl.Stage("train", ctx.cohort, 1, pooled=True),)

    @dataclass(frozen=True)
    class Open(Sly):
        pools_data: ClassVar[bool] = True

    with pytest.raises(PluginError) as caught:
        play_toy(composition(("sly", Sly())), executor=executor)
    assert str(caught.value) == mentioning("round 1", "sly.plan", "train", "pools_data = True")
    seen: list[Any] = []
    play_toy(composition(("open", Open()), ("watch", watching(seen))), executor=executor)
    assert seen[0].samples.tolist() == [42] * 3, "each client of the cohort trains on the union"


@pytest.mark.slow
def test_newcomers_are_judged_by_it_and_stay_out_of_the_pool(play_toy: Play) -> None:
    changes = {"clients": 9, "unseen": 0.34, "unseen_epochs": 1, "dataset": toy_dataset(0, 108)}
    played = play_toy("centralised", **changes)
    assert (
        played.run.ledger.totals["up"]["samples"] == 4 * int(played.run.context.samples.sum()) * 4
    )
    torch.testing.assert_close(played.state.models[0], plain_loop(played, 3, 1), rtol=0, atol=1e-5)
    unseen = played.result.unseen
    assert len(unseen.correct) == len(unseen.correct_tuned) == 3
    x, y = both(played.run.newcomers).x, both(played.run.newcomers).y
    rows = both(played.run.newcomers).splits["test"]
    found = played.run.context.logits(played.state.models, x)[0].argmax(dim=1) == y
    assert unseen.correct == [int(found[own].sum()) for own in rows]
