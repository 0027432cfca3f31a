"""Oracle: the rows that newcomers get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

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
    with pytest.raises(fl.Undefined, match="true group of a newcomer has no client that trains"):
        joins([1, 0])
