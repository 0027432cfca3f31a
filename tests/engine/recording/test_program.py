"""A recorded function gives, for any number of lanes, the bits of the function."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.func import grad_and_value, vmap
from torch.nn import functional as F

from flbench.engine.recording import program as lane_program
from flbench.engine.recording.program import (
    USES,
    Index,
    LaneProgram,
    NotRecordable,
    ProgramsByShape,
    WatchedCall,
)

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


@pytest.mark.parametrize("lanes", [1, 3, 7])
def test_rows_are_taken_by_their_numbers(lanes: int) -> None:
    def taken(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        return [vmap(lambda w, y: w[y] * 2)(w, y), w[:, torch.tensor([3, 0])]]

    given = inputs(lanes)
    for one, other in zip(recorded(taken)(lanes, given), taken(*given), strict=True):
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


def test_calls_are_alike_if_their_operations_take_the_same() -> None:
    def call(number: float, table: Tensor) -> WatchedCall:
        return WatchedCall(lambda w, x, y: [x[..., :2].clamp(max=number) + table[0]], inputs(2))

    first = call(100.0, WIDE)
    assert first.is_like(call(100.0, WIDE.clone()))
    assert not first.is_like(call(200.0, WIDE)), "no number is as large"
    assert not first.is_like(call(100.0, torch.cat([WIDE[:1], WIDE[1:] + 1])))
    assert not first.is_like(call(100.0, WIDE + 1))


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *given: Tensor) -> list[Tensor]:
        self.calls += 1
        outputs: list[Tensor] = self.function(*given)
        return outputs


def repeated(programs: ProgramsByShape, function: Counted, lanes: int, times: int) -> None:
    """Call a function through its programs; the outputs are its own each time."""
    for _ in range(times):
        given = inputs(lanes)
        for one, other in zip(programs(function, given, {}), gradients(*given), strict=True):
            assert torch.equal(one, other)


def test_a_function_that_is_called_often_becomes_a_program_for_any_lanes() -> None:
    programs, function = ProgramsByShape(), Counted(gradients)
    repeated(programs, function, 4, USES - 1)
    assert (function.calls, programs.known) == (USES - 1, {})
    repeated(programs, function, 5, 1)
    made = function.calls
    assert made == USES + 2, "it is recorded with two lanes and with three"
    repeated(programs, function, 9, 3)
    assert function.calls == made
    w, x, y = inputs(4)
    given = [w, x[:, :3], y[:, :3]]
    for one, other in zip(programs(function, given, {}), gradients(*given), strict=True):
        assert torch.equal(one, other), "inputs of other shapes are another program's"
    assert function.calls == made + 1


def test_with_other_objects_programs_are_forgotten() -> None:
    programs, function, first = ProgramsByShape(), Counted(gradients), {"scale": object()}
    for _ in range(USES):
        programs(function, inputs(4), first)
    made = function.calls
    programs(function, inputs(4), dict(first))
    assert function.calls == made
    programs(function, inputs(4), {"scale": object()})
    assert function.calls == made + 1
    assert not programs.known


def test_a_function_that_draws_is_called_each_time() -> None:
    programs = ProgramsByShape()
    draws = Counted(lambda *given: [one + torch.rand(1) for one in gradients(*given)])
    for _ in range(USES + 3):
        programs(draws, inputs(4), {})
    assert draws.calls == USES + 4, "once more, to record it"
    assert list(programs.known.values()) == [None]


def test_a_program_that_gives_other_outputs_is_not_used() -> None:
    """The function looks at a number that no tensor shows."""
    programs = ProgramsByShape()
    turns = Counted(lambda *given: [one * turns.calls for one in gradients(*given)])
    for turn in range(1, USES + 1):
        found = programs(turns, inputs(4), {})
        assert torch.equal(found[0], turn * gradients(*inputs(4))[0])
    assert list(programs.known.values()) == [None]


def test_so_many_shapes_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_program, "MOST", 2)
    programs, function = ProgramsByShape(), Counted(gradients)
    for samples in (1, 2, 3):
        w, x, y = inputs(4)
        for _ in range(USES):
            programs(function, [w, x[:, :samples], y[:, :samples]], {})
    assert len(programs.known) == 2


def test_torch_keeps_nothing_of_a_program() -> None:
    """A sweep records thousands of steps; torch keeps the source of each graph for tracebacks."""
    kept = fx.graph_module._loader.eval_cache, linecache.cache
    before = [set(one) for one in kept]
    graph = fx.Graph()
    graph.output(graph.call_function(torch.neg, (graph.placeholder("x"),)))
    assert lane_program._compiled(graph)(torch.ones(2)).tolist() == [-1.0, -1.0]
    assert [set(one) for one in kept] == before
