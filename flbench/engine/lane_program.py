"""A step of the lanes as a program: its tensor operations without the Python that called them.

`torch.func.vmap` and `grad` run the module's Python for every step, which takes longer than the
operations of a small network. A step is therefore recorded, once with two lanes and once with
three: what differs between the two recordings are sizes, which grow with the number of lanes. So
the program serves any number of lanes. It runs the operations of the step in their order, with
the same bits. A step that draws random numbers, or looks at a value, cannot be recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

FEWER, MORE = 2, 3
"""Numbers of lanes that are recorded."""
BARRED = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
)
"""Operations that a program cannot repeat."""

Function = Callable[..., Sequence[Tensor]]


class NotRecordable(Exception):
    """The step is more than its tensor operations; the text says why."""


class Index:
    """The number of a step, which refuses to be looked at: a program has none."""

    def _refuse(self, *_: object) -> Any:  # noqa: ANN401 - stands for methods of any result
        raise NotRecordable("it uses batch_idx")

    __index__ = __int__ = __float__ = __bool__ = __hash__ = __str__ = __repr__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _refuse
    __format__ = __neg__ = __and__ = __or__ = __xor__ = __abs__ = _refuse


class LaneProgram:
    """The operations of a function of lanes, for any number of lanes.

    Args:
        function: takes tensors whose first dimension are the lanes, returns such tensors.
        fewer: its inputs, with two lanes.
        more: its inputs, with three lanes.

    Raises:
        NotRecordable: the function cannot be recorded.
    """

    def __init__(self, function: Function, fewer: list[Tensor], more: list[Tensor]) -> None:
        joined = _Joined(_Recorder(function, fewer), _Recorder(function, more))
        self._run = fx.GraphModule(joined.constants, joined.graph).forward

    @torch.no_grad()
    def __call__(self, lanes: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for a number of lanes."""
        outputs: list[Tensor] = self._run(lanes, *inputs)
        return outputs


class _Recorder(TorchDispatchMode):
    """Calls a function and lists its operations.

    Attributes:
        calls: each operation with its arguments and its result.
        inputs: of the function.
        outputs: of the function.
    """

    def __init__(self, function: Function, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.inputs = inputs
        with self:
            self.outputs = list(function(*inputs))

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch leaves these open
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if any(tag in func.tags for tag in BARRED):
            raise NotRecordable(f"it calls {func}")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class _Joined:
    """The graph of two recordings of one function.

    Attributes:
        graph: its arguments are the number of lanes and the inputs.
        constants: tensors that are neither inputs nor results: name -> tensor.
    """

    def __init__(self, fewer: _Recorder, more: _Recorder) -> None:
        self.graph = fx.Graph()
        self.constants: dict[str, Any] = {}
        self.lanes = self.graph.placeholder("lanes")
        self.sizes: dict[tuple[int, int], fx.Node] = {}
        self.nodes: tuple[dict[int, fx.Node], dict[int, fx.Node]] = {}, {}
        for number, (one, other) in enumerate(zip(fewer.inputs, more.inputs, strict=True)):
            self._name(self.graph.placeholder(f"input_{number}"), one, other)
        if len(fewer.calls) != len(more.calls):
            raise NotRecordable("its operations depend on the number of lanes")
        for (operation, *ones), (same, *others) in zip(fewer.calls, more.calls, strict=True):
            if operation is not same:
                raise NotRecordable("its operations differ from call to call")
            self._add(operation, ones, others)
        self.graph.output(self._join(fewer.outputs, more.outputs))

    def _name(self, node: fx.Node, one: Tensor, other: Tensor) -> None:
        """Let a node stand for a tensor of each recording."""
        self.nodes[0][id(one)], self.nodes[1][id(other)] = node, node

    def _add(self, operation: Any, ones: list[Any], others: list[Any]) -> None:  # noqa: ANN401
        """Add an operation, given arguments and result in both recordings."""
        (args, kwargs, result), (args_2, kwargs_2, result_2) = ones, others
        joined = self._join(args, args_2)
        if operation.is_view and all(map(_same_view, (args[0], args_2[0]), (result, result_2))):
            self._name(joined[0], result, result_2)
            return
        node = self.graph.call_function(operation, joined, self._join(kwargs, kwargs_2))
        if isinstance(result, Tensor):
            self._name(node, result, result_2)
        elif isinstance(result, tuple | list):
            for i, (part, part_2) in enumerate(zip(result, result_2, strict=True)):
                if isinstance(part, Tensor):
                    item = self.graph.call_function(operator.getitem, (node, i))
                    self._name(item, part, part_2)

    def _join(self, one: Any, other: Any) -> Any:  # noqa: ANN401 - an argument of any type
        """What an argument is for any number of lanes, given what it was for two and for three."""
        if type(one) is not type(other):
            raise NotRecordable("its operations differ from call to call")
        if isinstance(one, Tensor):
            return self._tensor(one, other)
        if isinstance(one, tuple | list):
            if len(one) != len(other):
                raise NotRecordable("its operations differ from call to call")
            return type(one)([self._join(a, b) for a, b in zip(one, other, strict=True)])
        if isinstance(one, dict):
            return {name: self._join(value, other[name]) for name, value in one.items()}
        if type(one) is int and one != other:
            return self._size(one, other)
        if one != other:
            raise NotRecordable("its operations depend on the number of lanes")
        return one

    def _tensor(self, one: Tensor, other: Tensor) -> fx.Node:
        """The node of a tensor."""
        node, node_2 = self.nodes[0].get(id(one)), self.nodes[1].get(id(other))
        if node is None and node_2 is None and (one is other or torch.equal(one, other)):
            name = f"constant_{len(self.constants)}"
            self.constants[name] = one
            node = node_2 = self.graph.get_attr(name)
            self._name(node, one, other)
        if node is None or node is not node_2:
            raise NotRecordable("its operations differ from call to call")
        return node

    def _size(self, one: int, other: int) -> fx.Node:
        """A size that grows with the lanes."""
        factor = (other - one) // (MORE - FEWER)
        rest = one - FEWER * factor
        if (factor, rest) not in self.sizes:
            node = self.graph.call_function(operator.mul, (self.lanes, factor))
            if rest:
                node = self.graph.call_function(operator.add, (node, rest))
            self.sizes[factor, rest] = node
        return self.sizes[factor, rest]


def _same_view(tensor: Tensor, view: Tensor) -> bool:
    """Whether a view is laid out as the tensor that it views."""
    return (
        isinstance(view, Tensor)
        and tensor.shape == view.shape
        and tensor.stride() == view.stride()
        and tensor.storage_offset() == view.storage_offset()
        and tensor.dtype == view.dtype
    )
