"""A recorded function gives, for any number of lanes, the bits of the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn import functional as F

from flbench.engine.lane_program import Index, LaneProgram, NotRecordable

WIDE = torch.linspace(-1, 1, 6).view(3, 2)


def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    hidden = torch.relu(x @ w @ WIDE)
    return F.cross_entropy(hidden, y) + 0.1 * w.square().mean()


def gradients(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    slope, value = vmap(grad_and_value(loss))(w, x, y)
    return [slope, value]


def inputs(lanes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(lanes)
    w = torch.randn(lanes, 4, 3, generator=generator)
    x = torch.randn(lanes, 5, 4, generator=generator)
    return [w, x, torch.arange(lanes * 5).view(lanes, 5) % 2]


def recorded(function: Callable[..., Any]) -> LaneProgram:
    return LaneProgram(function, inputs(2), inputs(3))


@pytest.mark.parametrize("lanes", [1, 2, 3, 7])
def test_a_program_serves_any_number_of_lanes_with_the_same_bits(lanes: int) -> None:
    program = recorded(gradients)
    given = inputs(lanes)
    for one, other in zip(program(lanes, given), gradients(*given), strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad


def test_a_program_reads_tensors_that_are_no_inputs_when_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, given = recorded(gradients), inputs(4)
    monkeypatch.setitem(globals(), "WIDE", WIDE.clone())
    program = recorded(gradients)
    WIDE.mul_(2)
    assert torch.equal(program(4, given)[0], gradients(*given)[0])


def test_parts_of_a_result_and_sizes_of_products_are_recorded() -> None:
    def halves(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        flat = x.reshape(-1, 4)  # its first size is five times the number of lanes
        one, other = flat.split(2, dim=1)
        return [(one * other).view(len(x), 5, 2), torch.arange(len(x) + 2)]

    for one, other in zip(recorded(halves)(6, inputs(6)), halves(*inputs(6)), strict=True):
        assert torch.equal(one, other)


def draws(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    return [w + torch.rand_like(w)]


def looks(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    return [w * 2 if float(x.sum()) > 0 else w]


def selects(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    return [w[w > 0]]


def counts_lanes(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    return [w / (1 / len(w))]


def unrolls_lanes(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    return [torch.stack([row + 1 for row in w])]


def changes_its_mind() -> Callable[..., list[Tensor]]:
    calls: list[int] = []

    def function(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        calls.append(1)
        return [w.sin() if len(calls) % 2 else w.cos()]

    return function


@pytest.mark.parametrize(
    "function", [draws, looks, selects, counts_lanes, unrolls_lanes, changes_its_mind()]
)
def test_what_is_more_than_its_operations_is_not_recorded(function: Callable[..., Any]) -> None:
    with pytest.raises(NotRecordable):
        recorded(function)


@pytest.mark.parametrize(
    "look",
    [
        lambda index: index % 2,
        lambda index: 1 - index,
        lambda index: index < 3,
        lambda index: index == 0,
        lambda index: bool(index),
        lambda index: [1, 2][index],
        lambda index: {0: 1}[index],
        lambda index: torch.zeros(2)[index],
        lambda index: f"{index}",
        lambda index: float(index),
    ],
)
def test_the_number_of_a_step_cannot_be_looked_at(look: Callable[[Any], Any]) -> None:
    with pytest.raises((NotRecordable, TypeError, IndexError)):
        look(Index())
