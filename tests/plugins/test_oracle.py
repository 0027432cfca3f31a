"""Oracle: the rows that newcomers get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mentions import mention
from toy import Play

import flbench as fl
from flbench_plugins.oracle import Oracle


def joins(groups: list[int]) -> Any:
    """What two newcomers get after three clients of the groups 0, 2 and 3, with a row each."""
    state = fl.State(9, torch.zeros(3, 1), fl.Membership(torch.tensor([0, 1, 2, -1, -1])))
    groups_of_all = torch.tensor([0, 2, 3, *groups])
    ctx: Any = SimpleNamespace(clients=3, true_groups=groups_of_all)
    return Oracle().join(state, torch.tensor([3, 4]), ctx)


def test_a_newcomer_has_the_row_of_its_group_among_those_that_train() -> None:
    assert joins([3, 0]).row.tolist() == [2, 0]
    assert joins([2, 2]).row.tolist() == [1, 1]


def test_a_newcomer_of_a_group_that_nobody_trains_has_no_model() -> None:
    with pytest.raises(fl.Undefined, match=mention("newcomer", "client")):
        joins([1, 0])


def test_the_groups_are_those_of_the_period(play_toy: Play) -> None:
    """A client goes to the model that was trained on data like those that it has now."""
    swap = {"start": 4, "change": "swap-labels", "labels": [[0, 1], [2, 3]], "clients": [0, 1]}
    change = {"start": 3, "change": "exchange"}
    settings = {"warmup": 1}
    ends = [
        play_toy("oracle", settings=settings, rounds=rounds, periods=[change, swap])
        for rounds in (2, 3, 4)
    ]
    first, second, third = (end.state.membership.home for end in ends)
    assert torch.equal(second, 1 - first), "all clients of both groups change places"
    assert third.tolist() == [2, 2, *second[2:].tolist()], "what was swapped is a group of its own"
    assert ends[-1].result.curves["ari"][1:] == [1, 1, 1]
    assert ends[-1].state.memory["oracle.groups"].tolist() == [0, 1, 2]


def test_a_new_group_starts_from_the_model_that_most_of_its_clients_had(play_toy: Play) -> None:
    swap = {"start": 3, "change": "swap-labels", "labels": [[2, 3]], "groups": [1]}
    before = play_toy("oracle", settings={"warmup": 1}, rounds=2, periods=[swap])
    after = play_toy("oracle", settings={"warmup": 1}, rounds=3, periods=[swap])
    assert before.state.memory["oracle.groups"].tolist() == [0, 1]
    assert after.state.memory["oracle.groups"].tolist() == [0, 2]
    assert torch.equal(after.state.membership.home, before.state.membership.home)
