"""The rows of each client, stored as one tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.federation.row_lists import RowLists

LISTS = [torch.tensor([4, 2]), torch.empty(0, dtype=torch.int64), torch.tensor([7, 0, 1])]


def test_every_client_has_its_rows() -> None:
    lists = RowLists.of(LISTS)
    assert len(lists) == 3
    assert [rows.tolist() for rows in lists] == [[4, 2], [], [7, 0, 1]]
    assert lists[-1].tolist() == [7, 0, 1]
    assert lists[2].dtype == torch.int64
    assert lists.sizes.tolist() == [2, 0, 3]
    assert lists.sizes_of(torch.tensor([2, 0])) == [3, 2]
    assert lists.total == 5
    with pytest.raises(IndexError):
        lists[3]


def test_rows_beyond_32_bits() -> None:
    far = 2**31
    assert [rows.tolist() for rows in RowLists.of([np.array([far]), np.array([1])])] == [[far], [1]]


def test_what_is_given_may_be_written_and_the_lists_stay() -> None:
    lists = RowLists.of(LISTS)
    lists[0].zero_()
    lists.rows.zero_()
    assert lists[0].tolist() == [4, 2]


def test_some_clients_and_other_rows() -> None:
    lists = RowLists.of([np.array([1, 2]), np.array([3]), np.array([5])])
    assert [rows.tolist() for rows in lists[1:]] == [[3], [5]]
    other = lists.numbered(lists.rows + 10)
    assert [rows.tolist() for rows in other] == [[11, 12], [13], [15]]


def test_no_clients() -> None:
    assert list(RowLists.of([])) == []
    assert RowLists.of([]).rows.dtype == torch.int64
