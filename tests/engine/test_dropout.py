"""Dropout of lanes: each lane draws from its own generator."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from flbench.engine.dropout import replace_dropout


def dropped(seeds: list[int], p: float = 0.25, size: int = 400) -> Tensor:
    """Ones after dropout, a row for each lane, shape (lanes, size)."""
    module = nn.Sequential(nn.Dropout(p))
    randomness = replace_dropout(module)
    randomness.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    ones = torch.ones(len(seeds), size)

    def lane(marker: Tensor, x: Tensor) -> Tensor:
        randomness.lane_marker = marker
        return cast(Tensor, module(x))

    return torch.func.vmap(lane, randomness="different")(torch.zeros(len(seeds)), ones)


def test_each_lane_draws_as_it_would_alone() -> None:
    together = dropped([1, 2, 1])
    assert torch.equal(together[0], together[2])
    assert not torch.equal(together[0], together[1])
    assert torch.equal(together[1], dropped([2])[0])


@pytest.mark.parametrize("p", [0.25, 0.8])
def test_a_share_of_p_is_dropped_and_the_rest_grows(p: float) -> None:
    found = dropped([3], p, size=4000)[0]
    assert found.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    assert float((found == 0).float().mean()) == pytest.approx(p, abs=0.05)
