"""Functions on tables of their own change what the usual way changes, or are not used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flbench.engine.recording import cuda_graphs
from flbench.engine.recording.cuda_graphs import CHECKED
from flbench.engine.recording.in_place import KEPT, InPlace, InPlaceCalls, copy_all

CALLS = 2


@pytest.fixture(autouse=True)
def made_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "CALLS", CALLS)


class Sums:
    """Adds a step to a total, and counts which way it did."""

    def __init__(self) -> None:
        self.made = self.usual = 0

    def function(self, given: list[Tensor], off: float = 0.0) -> InPlace:
        self.made += 1
        total, step = (table.clone() for table in given)
        return InPlace(lambda: total.add_(step).add_(off), [total, step], [total], None)

    def call(
        self, calls: InPlaceCalls, total: Tensor, step: Tensor, key: int = 0, off: float = 0.0
    ) -> bool:
        given = [total, step]

        def usual() -> None:
            self.usual += 1
            total.add_(step)

        return calls(key, lambda: self.function(given, off), given, [total], usual)


def test_calls_are_made_in_place_after_some_were_compared() -> None:
    """Each with its own tables: the total goes on where the last call, of whatever way, left it."""
    calls, sums, total = InPlaceCalls(), Sums(), torch.zeros(3)
    ways = [sums.call(calls, total, torch.full((3,), float(step))) for step in range(8)]
    assert total.tolist() == [sum(range(8))] * 3
    usual = CALLS - 1 + CHECKED
    assert ways == [False] * usual + [True] * (8 - usual)
    assert (sums.made, sums.usual) == (1, usual)


def test_a_function_that_changes_something_else_is_not_used() -> None:
    calls, sums, total = InPlaceCalls(), Sums(), torch.zeros(3)
    ways = [sums.call(calls, total, torch.ones(3), off=1e-3) for _ in range(8)]
    assert not any(ways)
    assert calls.has_failed
    assert (total.tolist(), sums.made) == ([8.0] * 3, 1)


def test_what_cannot_be_made_is_tried_once() -> None:
    def fails() -> InPlace:
        tried.append(0)
        raise RuntimeError("operation not permitted when stream is capturing")

    tried: list[int] = []
    calls, total = InPlaceCalls(), torch.zeros(3)

    def usual() -> None:
        total.add_(1)

    for key in (0, 1):
        for _ in range(4):
            assert not calls(key, fails, [total], [total], usual)
    assert (total.tolist(), tried) == ([8.0] * 3, [0])


def test_another_key_needs_another_function_and_there_are_few() -> None:
    calls, sums, total = InPlaceCalls(), Sums(), torch.zeros(3)
    for key in range(KEPT + 2):
        for _ in range(CALLS + CHECKED):
            sums.call(calls, total, torch.ones(3), key)
    assert sums.made == len(calls.known) == KEPT
    assert total.tolist() == [(KEPT + 2) * (CALLS + CHECKED)] * 3


def test_without_room_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "has_room", lambda device: False)
    calls, sums, total = InPlaceCalls(), Sums(), torch.zeros(3)
    assert not any(sums.call(calls, total, torch.ones(3)) for _ in range(8))
    assert sums.made == 0


def test_tables_of_several_types_are_copied() -> None:
    into = [torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.zeros(1)]
    copy_all(into, [torch.ones(2), torch.full((2,), 5), torch.ones(1)])
    assert [table.tolist() for table in into] == [[1, 1], [5, 5], [1]]


def test_a_captured_function_is_replayed() -> None:
    """Its outputs are the graph's, wherever these are."""

    class Captured:
        def __init__(self, function: Callable[[], list[Tensor]]) -> None:
            self.function = function
            self.outputs = [torch.zeros_like(table) for table in function()]

        def replay(self) -> None:
            copy_all(self.outputs, self.function())

    total = torch.zeros(3)
    one = InPlace(lambda: total.add_(1), [total], [total], Captured)
    copy_all(one.given, [torch.full((3,), 4.0)])
    (found,) = one.play()
    assert found.tolist() == [5.0] * 3
    assert found is not total
