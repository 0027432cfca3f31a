"""The order of batches and the samples of a stage."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench import Stage
from flbench.engine.batches import orders, steps, subset


def test_every_epoch_has_an_order_of_its_own() -> None:
    first, second = orders(20, 2, 0, 1, "client")
    assert sorted(first) == sorted(second) == list(range(20))
    assert len({tuple(first), tuple(second), tuple(range(20))}) == 3


@pytest.mark.parametrize("address", [(1, 1, "client"), (0, 2, "client"), (0, 1, "other")])
def test_an_order_belongs_to_seed_and_address(address: tuple[int, int, str]) -> None:
    seed, *rest = address
    usual = next(orders(20, 1, 0, 1, "client"))
    assert np.array_equal(usual, next(orders(20, 1, 0, 1, "client")))
    assert not np.array_equal(usual, next(orders(20, 1, seed, *rest)))


def test_a_subset_is_the_same_in_every_round_and_ascending() -> None:
    stage = Stage("probe", torch.arange(2), 1, samples=3)
    chosen = subset(10, stage, 0, 1)
    assert chosen is not None
    assert len(chosen) == 3
    assert np.array_equal(chosen, np.unique(chosen))
    assert np.array_equal(chosen, subset(10, stage, 0, 1))
    assert not np.array_equal(chosen, subset(10, stage, 0, 2)), "each client has its own"
    assert subset(3, stage, 0, 1) is None


def test_a_short_last_batch_is_kept_but_not_one_that_batchnorm_cannot_take() -> None:
    assert steps(5, 2, 1, skip_single=False) == [[slice(0, 2)], [slice(2, 4)], [slice(4, 5)]]
    assert steps(5, 2, 1, skip_single=True) == [[slice(0, 2)], [slice(2, 4)]]
    assert steps(5, 2, 2, skip_single=False) == [[slice(0, 2), slice(2, 4)]]


@pytest.mark.parametrize(
    ("samples", "kept"),
    [(8, [3, 3]), (9, [3, 3, 3]), (2, [2]), (1, [1]), (0, [])],
)
def test_a_short_last_batch_is_left_out_on_request_unless_it_is_the_only_one(
    samples: int, kept: list[int]
) -> None:
    cut = steps(samples, 3, 1, skip_single=False, drop_last=True)
    assert [step[0].stop - step[0].start for step in cut] == kept
    assert [step[0] for step in steps(1, 3, 1, skip_single=True, drop_last=True)] == []
