"""KLD groups: who is grouped by hand, when, laws, newcomers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toy import CLIENTS, Play

import flbench as fl
from flbench_plugins.kld_groups import KLDGroups

# Two clients of labels 0 and 1, two of labels 2 and 3, one of all.
COUNTS = torch.tensor([[9, 9, 0, 0], [10, 8, 0, 0], [0, 0, 9, 9], [0, 0, 8, 10], [5, 5, 5, 5]])


def context(round_: int = 1, **more: Any) -> Any:
    sent: list[Any] = []
    n = len(COUNTS)
    return SimpleNamespace(
        round=round_, rounds=9, clients=n, classes=4, own_label_counts=lambda ids: COUNTS[ids],
        everybody=torch.arange(n), sent=sent, send=lambda *what: sent.append(what),
        **more,
    )  # fmt: skip


def state(models: int = 1) -> fl.State:
    home = torch.zeros(len(COUNTS), dtype=torch.int64)
    return fl.State(0, torch.zeros(models, 1), fl.Membership(home))


def homes(rule: KLDGroups) -> list[int]:
    found = rule.cluster(state(), "before", context(rule.after + 1))
    assert found is not None
    assert found.parent is not None
    assert len(found.parent) == len(set(found.home.tolist()))
    return found.home.tolist()


def test_clients_with_like_labels_are_together() -> None:
    assert homes(KLDGroups(gamma=0.1)) == [0, 0, 1, 1, 2]
    assert homes(KLDGroups(gamma=99)) == [0] * 5
    assert homes(KLDGroups(gamma=0)) == [*range(5)], "no two have the same counts"


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 9])
def test_a_number_of_groups_can_be_asked_for(groups: int) -> None:
    found = homes(KLDGroups(groups=groups))
    assert len(set(found)) == min(groups, 5)
    if groups == 3:
        assert found == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_so_many_groups_there_are_where_distances_are_equal(groups: int) -> None:
    ctx = context()
    counts = 9 * torch.eye(4, dtype=torch.int64)
    ctx.own_label_counts, ctx.clients = (lambda ids: counts[ids]), 4
    ctx.everybody = torch.arange(4)
    found = KLDGroups(groups=groups).cluster(state(), "before", ctx)
    assert found is not None
    assert len(found.home.unique()) == groups


def test_grouping_happens_once_in_its_round_and_costs_the_counts() -> None:
    rule, ctx = KLDGroups(after=3), context(4)
    for round_ in (1, 3, 5):
        assert rule.cluster(state(), "before", context(round_)) is None
    assert rule.cluster(state(), "after", ctx) is None
    assert rule.cluster(state(2), "before", ctx) is None, "there are groups already"
    assert ctx.sent == []
    assert rule.cluster(state(), "before", ctx) is not None
    ((way, who, item, scalars),) = ctx.sent
    assert (way, len(who), item, scalars) == ("up", 5, "label counts", 4)


@pytest.mark.slow
def test_on_groups_of_labels_it_is_the_oracle(play_toy: Play) -> None:
    found = play_toy("kld-groups", rounds=4)
    told = play_toy("oracle", rounds=4, settings={"warmup": 0})
    assert found.result.summary["ari"] == 1.0
    assert torch.equal(found.state.models, told.state.models)
    late = play_toy("kld-groups", rounds=4, settings={"after": 2})
    assert torch.equal(
        late.state.models, play_toy("oracle", rounds=4, settings={"warmup": 2}).state.models
    )


@pytest.mark.slow
def test_in_one_group_it_is_fedavg(play_toy: Play) -> None:
    found, plain = play_toy("kld-groups", settings={"groups": 1}), play_toy("fedavg")
    assert torch.equal(found.state.models, plain.state.models)
    never = play_toy("kld-groups", settings={"after": 9})
    assert torch.equal(never.state.models, plain.state.models)
    assert any("nobody is grouped" in said for said in never.said)


def test_a_newcomer_joins_those_whose_labels_are_nearest() -> None:
    counts = torch.cat([COUNTS, torch.tensor([[0, 0, 3, 3], [4, 4, 0, 0]])])
    known = fl.State(1, torch.zeros(3, 1), fl.Membership(torch.tensor([0, 0, 1, 1, 2, -1, -1])))
    ctx = context()
    ctx.own_label_counts = lambda ids: counts[ids]
    found = KLDGroups().join(known, torch.tensor([5, 6]), ctx)
    assert found is not None
    assert found.row is not None
    assert found.row.tolist() == [1, 0]
    assert CLIENTS == 6
