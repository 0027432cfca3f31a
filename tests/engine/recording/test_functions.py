"""A function of torch is called for an operation only if it calls just this operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from flbench.engine.recording import functions as lane_functions
from flbench.engine.recording.functions import use_functions
from flbench.engine.recording.program import record

Function = Callable[[Tensor], list[Tensor]]


def targets(function: Function) -> list[object]:
    """What is called for a function of lanes, which gives the same numbers afterwards."""
    given = [torch.arange(lanes * 6.0).view(lanes, 2, 3) for lanes in (2, 3, 5)]
    graph, constants = record(function, [given[0]], [given[1]])
    use_functions(graph)
    run = fx.GraphModule(constants, graph).forward
    for one, other in zip(run(5, given[2]), function(given[2]), strict=True):
        assert torch.equal(one, other)
    return [node.target for node in graph.nodes if node.op.startswith("call")]


@pytest.mark.parametrize(
    ("function", "target"),
    [
        (lambda x: [x + x], torch.add),
        (lambda x: [x.view(len(x), 6)], "view"),
        (lambda x: [x.transpose(1, 2)], torch.transpose),
        (lambda x: [x.sum(dim=1)], torch.sum),
        (lambda x: [torch.bmm(x, x.new_ones(len(x), 3, 2))], torch.bmm),
        (lambda x: [x.to(torch.int64)], "to"),
        (lambda x: [(x * 2).mul_(3)], torch.mul),
    ],
)
def test_a_function_stands_for_the_operation_that_it_calls(
    function: Function, target: object
) -> None:
    assert target in targets(function)


def test_an_overload_that_the_function_would_not_choose_stays() -> None:
    """`torch.mul(x, 2)` calls `mul.Tensor`."""
    scalar = torch.ops.aten.mul.Scalar
    assert targets(lambda x: [scalar(x, 2)]) == [scalar]


def test_a_function_that_calls_something_else_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were `torch.exp` another function, or one that calls two, the operation itself is called."""
    exp = torch.ops.aten.exp.default
    assert targets(lambda x: [exp(x)]) == [torch.exp]
    monkeypatch.setattr(torch, "exp", torch.sin)
    monkeypatch.setattr(Tensor, "exp", None)
    assert targets(lambda x: [exp(x)]) == [exp]
    monkeypatch.setattr(torch, "exp", lambda x: torch.Tensor.exp_(x.clone()))
    assert targets(lambda x: [exp(x)]) == [exp]


def test_other_arguments_and_further_calls_are_noticed() -> None:
    power = torch.ops.aten.pow.Tensor_Scalar
    graph, _ = record(lambda x: [power(x, 2)], [torch.ones(2, 3)], [torch.ones(3, 3)])
    (node,) = [node for node in graph.nodes if node.target is power]
    assert lane_functions._calls(lambda x, n: power(x, n), object, node)
    assert not lane_functions._calls(lambda x, n: power(x, n + 1), object, node)
    assert not lane_functions._calls(lambda x, n: power(x, float(n)), object, node)
    assert not lane_functions._calls(lambda x, n: (power(x, n), power(x, n))[1], object, node)
    assert not lane_functions._calls(lambda x, n: (power(x, n), x)[1], object, node)
