"""One call for the lanes of several runs, where it gives the bits of a call for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from flbench.engine.lanes.sharing import LaneCounts, call_for_runs

SHARES = [slice(0, 2), slice(2, 3), slice(3, 5)]
INPUTS = [torch.arange(10.0).view(5, 2), torch.arange(5.0)]


class Watched:
    """A program whose numbers depend on how many lanes a call has."""

    def __init__(self, error: Callable[[int], float]) -> None:
        self.error = error
        self.calls: list[int] = []

    def __call__(self, lanes: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        assert all(len(tensor) == lanes for tensor in inputs)
        self.calls.append(lanes)
        rows, numbers = inputs
        return [rows * 2 + self.error(lanes), numbers - 1]


def alone(program: Watched) -> list[Tensor]:
    """What the lanes have in calls of their runs."""
    rows = INPUTS[0] * 2
    for share in SHARES:
        rows[share] += program.error(share.stop - share.start)
    return [rows, INPUTS[1] - 1]


def called(program: Watched, counts: LaneCounts) -> list[int]:
    """Call it for all runs; how many lanes each of its calls had."""
    program.calls.clear()
    outputs = call_for_runs(program, 5, INPUTS, SHARES, counts)
    for one, other in zip(outputs, alone(program), strict=True):
        assert torch.equal(one, other)
    return list(program.calls)


def test_runs_share_a_call_once_it_is_known_to_give_their_bits() -> None:
    program, counts = Watched(lambda lanes: 0.5), LaneCounts()
    assert called(program, counts) == [2, 1, 2, 5]
    assert called(program, counts) == [5]


def test_runs_whose_bits_another_number_of_lanes_changes_have_calls_of_their_own() -> None:
    program, counts = Watched(lambda lanes: 0.25 if lanes == 1 else 0.5), LaneCounts()
    assert called(program, counts) == [2, 1, 2, 5]
    assert called(program, counts) == [2, 1, 2]
    assert counts.are_alike(1, 5) is False


@pytest.mark.parametrize("lucky", [0, 3])
def test_one_share_with_other_bits_is_enough(lucky: int) -> None:
    """That of another run, of as many lanes, may have the same by chance, here from `lucky` on."""

    def program(lanes: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        rows = inputs[0].clone()
        rows[(inputs[1] < lucky) | (inputs[1] >= lucky + 2)] += lanes
        return [rows]

    counts = LaneCounts()
    for _ in range(2):
        (outputs,) = call_for_runs(program, 5, INPUTS, SHARES, counts)
        assert torch.equal(
            outputs,
            torch.cat([program(len(INPUTS[1][s]), [t[s] for t in INPUTS])[0] for s in SHARES]),
        )
    assert counts.are_alike(5, 2) is False


def test_numbers_of_lanes_that_are_like_a_third_are_alike() -> None:
    counts = LaneCounts()
    counts.note(9, 3, same=True)
    counts.note(9, 4, same=True)
    counts.note(20, 7, same=True)
    counts.note(20, 9, same=False)
    assert counts.are_alike(3, 4)
    assert counts.are_alike(7, 4) is False
    assert counts.are_alike(5, 5)
    assert counts.are_alike(5, 4) is None


@pytest.mark.parametrize("order", [1, -1])
def test_numbers_that_are_alike_by_chance_are_unlike(order: int) -> None:
    """3 lanes gave other bits than 2, which give those of 1; so 3 and 1 were alike by chance."""
    counts = LaneCounts()
    for one, other, same in [(2, 1, True), (3, 2, False), (3, 1, True)][::order]:
        counts.note(one, other, same=same)
        counts.are_alike(3, 1)
    assert counts.are_alike(3, 1) is False
    assert counts.are_alike(3, 2) is False


def test_what_differs_stays_so_when_numbers_turn_out_to_be_alike() -> None:
    counts = LaneCounts()
    counts.note(2, 8, same=False)
    counts.note(9, 8, same=True)
    assert counts.are_alike(2, 9) is False
