"""What clients keep: entries of different lengths in one table."""

from __future__ import annotations

import torch

from flbench.core.client_memory import store, unpadded

NAN = torch.nan


def told(table: torch.Tensor) -> list[list[float]]:
    return [unpadded(entry).tolist() for entry in table]


def test_a_longer_entry_widens_the_table() -> None:
    table = torch.tensor([[1.0], [2.0], [3.0]])
    new = store(table, torch.tensor([1]), torch.tensor([[4.0, 5.0]]))
    assert told(new) == [[1.0], [4.0, 5.0], [3.0]]
    assert table.shape == (3, 1), "the old table is as it was"


def test_a_shorter_entry_leaves_nothing_of_the_longer_one() -> None:
    table = torch.tensor([[1.0, NAN], [4.0, 5.0]])
    new = store(table, torch.tensor([1]), torch.tensor([[6.0]]))
    assert told(new) == [[1.0], [6.0]]


def test_rows_of_an_entry_are_padded_and_its_columns_are_not() -> None:
    new = store(torch.ones(2, 1, 3), torch.tensor([0]), torch.full((1, 2, 3), 7.0))
    assert told(new) == [[[7.0] * 3] * 2, [[1.0] * 3]]
