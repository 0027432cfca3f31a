"""Samples of several clients in one batch, by hand."""

from __future__ import annotations

import torch

from flbench.federation.federation import Samples
from flbench.federation.pooled import Pooled
from flbench.federation.row_lists import RowLists


def samples() -> Samples:
    """Client 0 has samples 0 and 2, client 1 samples 2 and 3, client 2 sample 1."""
    lists = RowLists.of([torch.tensor(rows) for rows in ([0, 2], [2, 3], [1])])
    y = torch.tensor([10, 11, 12, 13])
    return Samples(y[:, None].float(), y, {"test": lists})


def test_the_union_of_clients_has_each_sample_once() -> None:
    union = Pooled.union(samples(), "test", torch.tensor([0, 1]))
    assert union.y.tolist() == union.x[:, 0].tolist() == [10, 12, 13]
    assert (union.positions, union.lengths.tolist(), union.owners.tolist()) == (None, [3], [1] * 3)


def test_a_pool_keeps_what_each_client_has() -> None:
    pool = Pooled.of(samples(), "test", torch.tensor([0, 1]))
    assert pool.positions is not None
    assert pool.y[pool.positions].tolist() == [10, 12, 12, 13]
    assert (pool.lengths.tolist(), pool.owners.tolist()) == ([2, 2], [1, 2, 1])
