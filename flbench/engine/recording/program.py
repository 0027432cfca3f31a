"""A step of the lanes as a program: its tensor operations without the Python that called them.

`torch.func.vmap` and `grad` run the module's Python for every step, which takes longer than the
operations of a small network. A step is therefore recorded, once with two lanes and once with
three: what differs between the two recordings are sizes, which grow with the number of lanes. So
the program serves any number of lanes. It runs the operations of the step in their order, with
the same bits, less those that change nothing (`simplify`). A step that draws random numbers,
or looks at a value, cannot be recorded. The same holds for a pass of evaluation.
"""

from __future__ import annotations

import linecache
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.engine.recording.functions import use_functions
from flbench.engine.recording.simplify import Layout, Seen, simplify, tensors

FEWER, MORE = 2, 3
"""Numbers of lanes that are recorded."""
USES = 8
"""A function is recorded when it is called for this time: it takes as long as several calls."""
MOST = 32
"""Inputs of so many shapes are recorded; groups that change in every round have others."""
BARRED = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
)
"""Tags of operations that a program cannot repeat; INDEXING has the last one for masks only."""
INDEXING = torch.ops.aten.index.Tensor

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

    Attributes:
        outside: tensors that it reads beside its inputs, and that it has not made itself.
        reads: numbers of the inputs that it reads.
        operations: how many operations it has.
        writes: whether it writes to these or to its inputs.

    Args:
        function: takes tensors whose first dimension are the lanes, returns such tensors.
        fewer: its inputs, with two lanes.
        more: its inputs, with three lanes.

    Raises:
        NotRecordable: the function cannot be recorded.
    """

    def __init__(self, function: Function, fewer: list[Tensor], more: list[Tensor]) -> None:
        graph, constants = record(function, fewer, more)
        self.outside = list(constants.values())
        self.writes = _writes(graph)
        simplify(graph, constants)
        use_functions(graph)
        arguments = [node for node in graph.nodes if node.op == "placeholder"][1:]
        self.reads = {number for number, node in enumerate(arguments) if node.users}
        self.operations = sum(node.op.startswith("call") for node in graph.nodes)
        self._constants = _as_arguments(graph, constants)
        for node in graph.nodes:
            node.meta.clear()  # it holds the tensors of the recordings
        self._run = _compiled(graph)

    @torch.no_grad()
    def __call__(self, lanes: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for a number of lanes."""
        outputs: list[Tensor] = self._run(lanes, *inputs, *self._constants)
        return outputs


Shapes = tuple[tuple[object, ...], ...]
"""Shape and dtype of each input of a function, without the lanes."""


@dataclass
class ProgramsByShape:
    """Calls a function of lanes, by a program where inputs have shapes that came often.

    Attributes:
        known: the programs; None = the function cannot be recorded.
        calls: how often the function was called.
        depends: the objects on which it depends beside its inputs; with others, all is forgotten.
    """

    known: dict[Shapes, LaneProgram | None] = field(default_factory=dict)
    calls: Counter[Shapes] = field(default_factory=Counter)
    depends: dict[str, object] = field(default_factory=dict)

    def __call__(
        self, function: Function, inputs: Sequence[Tensor], depends: dict[str, object]
    ) -> Sequence[Tensor]:
        """The outputs of a function."""
        if not same_objects(self.depends, depends):
            self.known, self.calls, self.depends = {}, Counter(), depends
        shapes = tuple((*table.shape[1:], table.dtype) for table in inputs)
        program = self.known.get(shapes)
        if program is not None:
            return program(len(inputs[0]), inputs)
        outputs = function(*inputs)
        self.calls[shapes] += 1
        if self.calls[shapes] == USES and len(self.known) < MOST:
            self.known[shapes] = _program_of(function, inputs, outputs)
        return outputs


@torch.no_grad()
def _program_of(
    function: Function, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> LaneProgram | None:
    """The program of a function, if it gives the outputs that the function gave for inputs."""
    fewer, more = (
        [table[:1].expand(lanes, *table.shape[1:]).clone() for table in inputs]
        for lanes in (FEWER, MORE)
    )
    try:
        program = LaneProgram(function, fewer, more)
        found = program(len(inputs[0]), inputs)
    except Exception:  # whatever it does that a program cannot: it goes on
        return None
    return program if same_bits(found, outputs) else None


def record(
    function: Function, fewer: list[Tensor], more: list[Tensor]
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """Record a function; see `LaneProgram`.

    Returns:
        The graph, whose arguments are the number of lanes and the inputs, and its constants. Its
        nodes have what `simplify` needs: a "seen" each, or a "size".
    """
    joined = _Joined(_Recorder(function, fewer), _Recorder(function, more))
    return joined.graph, joined.constants


@dataclass(frozen=True)
class _Call:
    """An operation of a recording: what it was given, what it gave, and what it wrote."""

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    layouts: tuple[Layout, ...]
    writes: frozenset[int]


class _Recorder(TorchDispatchMode):
    """Calls a function and lists its operations.

    Attributes:
        calls: the operations in order.
        inputs: of the function.
        outputs: of the function.
    """

    def __init__(self, function: Function, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
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
        if any(tag in func.tags for tag in BARRED) and not _has_numbers(func, args):
            raise NotRecordable(f"it calls {func}")
        kwargs = kwargs or {}
        given = [] if func.is_view else tensors((args, kwargs))
        before = [tensor.clone() for tensor in given]
        result = func(*args, **kwargs)
        pairs = zip(given, before, strict=True)
        written = [old for old, kept in pairs if not same_bits([old], [kept])]
        written += _declared(func, args, kwargs)
        writes = frozenset(tensor.untyped_storage().data_ptr() for tensor in written)
        layouts = tuple(map(Layout.of, tensors(result)))
        self.calls.append(_Call(func, args, kwargs, result, layouts, writes))
        return result


class WatchedCall(TorchDispatchMode):
    """Calls a function, and notes what its operations take that may be another thing next time.

    Attributes:
        outputs: of the function.
        taken: in their order, the operations, what they are given that is no tensor, and tensors
            that are neither inputs of the function nor results of its operations.
    """

    def __init__(self, function: Function, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.taken: list[object] = []
        self._made = {id(tensor): tensor for tensor in inputs}  # kept, so that ids stay theirs
        with self:
            self.outputs = list(function(*inputs))
        self._made.clear()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch leaves these open
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        given = [part for part in _leaves((args, kwargs or {})) if id(part) not in self._made]
        self.taken += [func, *given]
        result = func(*args, **(kwargs or {}))
        self._made |= {id(tensor): tensor for tensor in tensors(result)}
        return result

    def is_like(self, other: WatchedCall) -> bool:
        """Whether both gave the same bits, by the same operations with the same numbers."""
        return (
            len(self.taken) == len(other.taken)
            and all(map(_is_same, self.taken, other.taken))
            and same_bits(self.outputs, other.outputs)
        )


def _leaves(part: Any) -> list[Any]:  # noqa: ANN401 - an argument of any type
    """What an argument consists of, the names in a dict among it."""
    if isinstance(part, dict):
        part = list(part.items())
    if not isinstance(part, tuple | list):
        return [part]
    return [leaf for some in part for leaf in _leaves(some)]


def _is_same(one: object, other: object) -> bool:
    """Whether two things that operations take are equal; tensors byte by byte."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one is other or (one.dtype == other.dtype and same_bits([one], [other]))
    return type(one) is type(other) and one == other


def _has_numbers(operation: object, args: tuple[Any, ...]) -> bool:
    """Whether it is indexing by numbers of rows, whose result has a shape that is known before."""
    masks = torch.bool, torch.uint8
    return operation is INDEXING and all(index.dtype not in masks for index in tensors(args[1:]))


def _declared(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:  # noqa: ANN401
    """The tensors that an operation says it writes; some, as BatchNorm's, do not say so."""
    parameters = operation._schema.arguments
    given = {**dict(zip([one.name for one in parameters], args, strict=False)), **kwargs}
    marked = [one.name for one in parameters if one.alias_info and one.alias_info.is_write]
    return tensors({name: given[name] for name in marked if name in given})


def _compiled(graph: fx.Graph) -> Callable[..., Any]:
    """The Python function of a graph, without the copies of its source that torch keeps for ever.

    These are for tracebacks: 15 to 40 kB for each step that a run records.
    """
    run: Callable[..., Any] = fx.GraphModule({}, graph).forward
    source = run.__code__.co_filename
    linecache.cache.pop(source, None)
    fx.graph_module._loader.eval_cache.pop(source, None)
    return run


def _writes(graph: fx.Graph) -> bool:
    """Whether an operation writes to an argument of the graph or to a constant."""
    seen = [(node.op, node.meta["seen"]) for node in graph.nodes if "seen" in node.meta]
    given = {at for op, one in seen if op != "call_function" for at in one.storages}
    return any(one.writes & given for _, one in seen)


def same_bits(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether tensors are equal byte by byte, so that NaN is NaN."""
    return all(
        one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))
        for one, other in zip(ones, others, strict=True)
    )


def same_objects(ones: dict[str, object], others: dict[str, object]) -> bool:
    """Whether two tables hold the same objects."""
    return ones.keys() == others.keys() and all(ones[key] is others[key] for key in ones)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


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
        self.lanes.meta["size"] = FEWER
        self.sizes: dict[tuple[int, int], fx.Node] = {}
        self.nodes: tuple[dict[int, fx.Node], dict[int, fx.Node]] = {}, {}
        for number, (one, other) in enumerate(zip(fewer.inputs, more.inputs, strict=True)):
            node = self.graph.placeholder(f"input_{number}")
            self._name(node, one, other)
            self._note(node, one, other)
        if len(fewer.calls) != len(more.calls):
            raise NotRecordable("its operations depend on the number of lanes")
        for one_call, other_call in zip(fewer.calls, more.calls, strict=True):
            self._add(one_call, other_call)
        self.graph.output(self._join(fewer.outputs, more.outputs))

    def _name(self, node: fx.Node, one: Tensor, other: Tensor) -> None:
        """Let a node stand for a tensor of each recording."""
        self.nodes[0][id(one)], self.nodes[1][id(other)] = node, node

    def _note(self, node: fx.Node, one: Tensor, other: Tensor) -> None:
        """Say what was seen of an input or a constant."""
        node.meta["seen"] = Seen(((Layout.of(one),), (Layout.of(other),)), one)

    def _add(self, one: _Call, other: _Call) -> None:
        """Add an operation that was called in both recordings."""
        if one.operation is not other.operation:
            raise NotRecordable("its operations differ from call to call")
        args, kwargs = self._join(one.args, other.args), self._join(one.kwargs, other.kwargs)
        operation, writes = one.operation, one.writes
        if torch.Tag.inplace_view in operation.tags:
            if args[0].op != "call_function":
                raise NotRecordable("it changes the shape of a tensor that others see")
            operation, writes = _new_view(operation), frozenset()
        node = self.graph.call_function(operation, args, kwargs)
        node.meta["seen"] = Seen((one.layouts, other.layouts), one.result, writes)
        if isinstance(one.result, Tensor):
            self._name(node, one.result, other.result)
        elif isinstance(one.result, tuple | list):
            self._add_parts(node, one, other)

    def _add_parts(self, node: fx.Node, one: _Call, other: _Call) -> None:
        """Add the parts of a result."""
        layouts = zip(one.layouts, other.layouts, strict=True)
        for i, (part, part_2) in enumerate(zip(one.result, other.result, strict=True)):
            if isinstance(part, Tensor):
                item = self.graph.call_function(operator.getitem, (node, i))
                self._name(item, part, part_2)
                layout, layout_2 = next(layouts)
                item.meta["seen"] = Seen(((layout,), (layout_2,)), part)

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
            self._note(node, one, other)
        if node is None or node is not node_2:
            raise NotRecordable("its operations differ from call to call")
        return node

    def _size(self, one: int, other: int) -> fx.Node:
        """A size that grows with the lanes."""
        factor = (other - one) // (MORE - FEWER)
        rest = one - FEWER * factor
        if (factor, rest) not in self.sizes:
            node = self.lanes
            if factor != 1:
                node = self.graph.call_function(operator.mul, (node, factor))
            if rest:
                node = self.graph.call_function(operator.add, (node, rest))
            node.meta["size"] = one
            self.sizes[factor, rest] = node
        return self.sizes[factor, rest]


def _as_arguments(graph: fx.Graph, constants: dict[str, Tensor]) -> list[Tensor]:
    """Make constants the last arguments: a module takes long to find an attribute.

    Returns:
        The constants in the order of the arguments.
    """
    values: list[Tensor] = []
    last = next(node for node in reversed(graph.nodes) if node.op == "placeholder")
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        with graph.inserting_after(last):
            last = graph.placeholder(f"fixed_{len(values)}")
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        values.append(constants[node.target])
    return values


def _new_view(operation: Any) -> Any:  # noqa: ANN401
    """The operation that returns what another makes of its argument: `unsqueeze` of `unsqueeze_`.

    The numbers are shared either way, and a program knows which of its steps use which view.
    """
    packet = getattr(torch.ops.aten, operation.overloadpacket.__name__.removesuffix("_"), None)
    new = getattr(packet, operation._overloadname, None)
    if new is None or not new.is_view:
        raise NotRecordable(f"it calls {operation}")
    return new
