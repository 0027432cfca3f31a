"""torch's Python functions for recorded operations.

`torch.bmm(x, y)` calls the operation `aten.bmm.default` with less time for its arguments than
`torch.ops.aten.bmm.default(x, y)`. Which operation a function calls depends on its arguments, so
each function is tried with those of the recording. It is taken only if it calls the recorded
operation, with the recorded arguments, and nothing else.
"""

from __future__ import annotations

from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.engine.recording.simplify import Layout, tensors

OTHER_NAMES = {"_to_copy": "to"}
"""Functions that are not called as the operation."""


def use_functions(graph: fx.Graph) -> None:
    """Let the operations of a graph be called by torch's functions where these do the same.

    Args:
        graph: of recorded operations. Each node has its `Seen`, or as a size its "size" with the
            lanes of the first recording.
    """
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            name = node.target.overloadpacket.__name__
            name = OTHER_NAMES.get(name, name)
            if _calls(getattr(torch, name, None), BuiltinFunctionType, node):
                node.target = getattr(torch, name)
            elif _calls(getattr(Tensor, name, None), MethodDescriptorType, node):
                node.op, node.target = "call_method", name


def _calls(function: Any, kind: Any, node: fx.Node) -> bool:  # noqa: ANN401 - may be anything
    """Whether a function of a kind calls a node's operation, with its arguments, and no other."""
    if not isinstance(function, kind):
        return False
    args, kwargs = map_arg((node.args, node.kwargs), _value)
    expected = _Expected(node.target, args, kwargs, _value(node))
    try:
        with torch.no_grad(), expected:
            result = function(*args, **kwargs)
    except Exception:  # it takes other arguments, or it calls something else
        return False
    seen = [list(map(Layout.of, tensors(one))) for one in (result, _value(node))]
    return expected.calls == 1 and type(result) is type(_value(node)) and seen[0] == seen[1]


def _value(node: fx.Node) -> Any:  # noqa: ANN401 - a tensor, several, or a size
    """What a node was in the first recording."""
    return node.meta["seen"].value if "seen" in node.meta else node.meta["size"]


class _Expected(TorchDispatchMode):
    """Gives the recorded result to the expected call, without making it; refuses any other.

    A view is made: torch changes the tensor that it is given as one.

    Attributes:
        calls: how many calls there were.
    """

    def __init__(self, operation: Any, args: Any, kwargs: Any, result: object) -> None:  # noqa: ANN401
        super().__init__()  # type: ignore[no-untyped-call]
        self.operation, self.args, self.kwargs = operation, args, kwargs
        self.result, self.calls = result, 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch leaves it open
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        same = _same(args, self.args) and _same(kwargs or {}, self.kwargs)
        if func is not self.operation or not same:
            raise ValueError(f"{func} was not expected")
        self.calls += 1
        return func(*args, **(kwargs or {})) if func.is_view else self.result


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - arguments of any type
    """Whether arguments are the same: tensors as objects, anything else as written."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return type(one) is type(other) and repr(one) == repr(other)
