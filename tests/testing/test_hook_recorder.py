"""What is equal bit for bit."""

from __future__ import annotations

import pytest
import torch

from flbench.testing.hook_recorder import same_bits

ONE = torch.tensor([1.0, torch.nan])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (None, None, True),
        (ONE, None, False),
        (ONE, ONE.clone(), True),
        (ONE, ONE[:1], False),
        (ONE, ONE.double(), False),
        (ONE, torch.tensor([1.0 + 1e-7, torch.nan]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
    ],
)
def test_tensors_by_hand(one: torch.Tensor | None, other: torch.Tensor | None, same: bool) -> None:
    assert same_bits(one, other) is same
    assert same_bits(other, one) is same
