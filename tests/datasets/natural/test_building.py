"""Data sets of columns, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.datasets.natural.building import (
    TidyTable,
    built,
    last_share,
    thirds,
    whole,
    with_enough,
)

CLIENT = np.array(["b", "a", "b", "a"])


def test_numbers_come_first_and_are_as_measured() -> None:
    rows = TidyTable(
        label=np.array(["no", "yes", "yes", "no"]),
        client=CLIENT,
        numbers={"p": np.array([1.0, np.nan, 3.0, 4.0])},
        categories={"c": np.array(["x", "", "y", "x"])},
        group=np.array(["G", "F", "G", "F"]),
        labels=("yes", "no"),
        values={"c": ("x", "y", "z", "")},
    )
    found = built("made", rows)
    expected = [[1, 1, 0, 0, 0], [np.nan, 0, 0, 0, 1], [3, 0, 1, 0, 0], [4, 1, 0, 0, 0]]
    np.testing.assert_equal(found.x.numpy(), expected)
    assert found.y.tolist() == [1, 0, 0, 1]
    assert found.domains is not None
    assert (found.domains.tolist(), found.domain_names) == ([1, 0, 1, 0], ("a", "b"))
    assert found.domain_groups is not None
    assert (found.domain_groups.tolist(), found.group_names) == ([0, 1], ("F", "G"))
    assert (found.scaled, found.test, found.keeps_test) == ((0,), None, False)
    assert found.x.dtype == torch.float32


def test_the_last_rows_of_each_client() -> None:
    client = np.array(list("babbabb"))
    assert np.flatnonzero(last_share(client, 0.4)).tolist() == [4, 5, 6]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_every_client_has_a_last_row(share: float) -> None:
    client = np.repeat(np.arange(5), [2, 3, 4, 5, 40])
    counts = np.bincount(client[last_share(client, share)])
    assert counts.tolist() == [max(1, round(share * n)) for n in (2, 3, 4, 5, 40)]


def test_thirds_are_of_the_training_rows_of_each_block() -> None:
    """Block 0 has training values 0..3, so its thirds end at 1 and 2; block 1 ten times as many."""
    values = np.array([0.0, 1, 2, 3, 99, 0, 10, 20, 30, 5])
    block = np.repeat([0, 1], 5)
    train = np.array([1, 1, 1, 1, 0, 1, 1, 1, 1, 0], dtype=bool)
    expected = ["low", "low", "mid", "high", "high"], ["low", "low", "mid", "high", "low"]
    assert thirds(values, block, train).tolist() == [*expected[0], *expected[1]]


def test_small_helpers() -> None:
    assert whole(np.array([10.0, np.nan])).tolist() == ["10", ""]
    assert with_enough(np.array(list("aab")), 2).tolist() == [True, True, False]
