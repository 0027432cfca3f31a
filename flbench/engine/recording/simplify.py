"""Fewer operations for a recorded step, with the same bits in every output.

Most of what a step of a small network takes is a cost per operation, and what autograd and `vmap`
record holds many operations that change nothing. Each rule below says why its result has the same
bits. All of them rest on what the two recordings saw: which storage a tensor has, how it is laid
out in it, and which storages an operation writes. A tensor whose storage is written anywhere in the
program is never joined with another, and an output is never made to share its storage.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten
COPIES = aten.clone.default, aten._to_copy.default
PRODUCTS = aten.mul.Scalar, aten.mul.Tensor, aten.div.Scalar, aten.div.Tensor
RESHAPES = aten.view.default, aten._unsafe_view.default
EXACT = torch.float32, torch.float64, torch.int32, torch.int64


@dataclass(frozen=True)
class Layout:
    """Where the numbers of a tensor are.

    Attributes:
        storage: address of its storage.
        offset: of its first number in the storage.
        shape: its sizes.
        stride: steps in the storage.
        kind: its dtype and device, and whether its numbers are to be conjugated or negated.
        contiguous: whether the numbers follow each other in the order of the indices.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    kind: tuple[object, ...]
    contiguous: bool

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        """The layout that a tensor has now; an operation may change it in place later."""
        return Layout(
            tensor.untyped_storage().data_ptr(),
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tensor.stride(),
            (tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg()),
            tensor.is_contiguous(),
        )

    def is_like(self, other: Layout) -> bool:
        """Whether tensors have equal shapes, strides and types, in whichever storage."""
        return (self.shape, self.stride, self.kind) == (other.shape, other.stride, other.kind)

    def follows(self, other: Layout) -> bool:
        """Whether tensors hold the same numbers, one after the other, in whichever shapes."""
        return (
            self.contiguous
            and other.contiguous
            and (self.storage, self.offset, self.kind) == (other.storage, other.offset, other.kind)
            and prod(self.shape) == prod(other.shape)
        )


@dataclass(frozen=True)
class Seen:
    """What two recordings saw of an operation, an input or a constant: `node.meta["seen"]`.

    Attributes:
        layouts: of the tensors of its result, in each recording.
        value: its result in the first recording.
        writes: addresses of the storages that it wrote in the first recording.
    """

    layouts: tuple[tuple[Layout, ...], tuple[Layout, ...]]
    value: Any
    writes: frozenset[int] = frozenset()

    @property
    def storages(self) -> set[int]:
        """Addresses of the storages of its tensors in the first recording."""
        return {layout.storage for layout in self.layouts[0]}

    def fits(self, other: Seen, test: Callable[[Layout, Layout], bool]) -> bool:
        """Whether both are one tensor and a test holds for the two, in both recordings.

        A list of one tensor, as `split` gives, is none.
        """
        if not (isinstance(self.value, Tensor) and isinstance(other.value, Tensor)):
            return False
        pairs = list(zip(self.layouts, other.layouts, strict=True))
        return all(len(a) == len(b) == 1 and test(a[0], b[0]) for a, b in pairs)


def tensors(part: Any) -> list[Tensor]:  # noqa: ANN401 - an argument or result of any type
    """The tensors in an argument or a result of an operation."""
    if isinstance(part, Tensor):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return (
        [one for some in parts for one in tensors(some)]
        if isinstance(part, dict | tuple | list)
        else []
    )


def simplify(graph: fx.Graph, constants: dict[str, Tensor]) -> None:
    """Remove operations from a graph in place.

    Args:
        graph: of recorded operations; each node whose result are tensors has a `Seen`.
        constants: tensors of the graph's `get_attr` nodes; folded ones are added.
    """
    _Simplifier(graph, constants).run()


class _Simplifier:
    """The rules, and what they must know of the complete graph.

    Attributes:
        written: storages that an operation of the graph writes.
        shown: storages of the outputs, which belong to the caller afterwards.
        known: operations so far, by operation and arguments.
        views: views so far, by the tensor that they view and their layouts.
    """

    def __init__(self, graph: fx.Graph, constants: dict[str, Tensor]) -> None:
        self.graph, self.constants = graph, constants
        seen = [node.meta["seen"] for node in graph.nodes if "seen" in node.meta]
        self.written = {at for one in seen for at in one.writes}
        outputs = next(node for node in graph.nodes if node.op == "output")
        self.shown = _storages(outputs.all_input_nodes)
        self.known: dict[object, fx.Node] = {}
        self.views: dict[object, fx.Node] = {}

    def run(self) -> None:
        """Apply the rules to each operation in order, then remove those without a user."""
        rules = self._same_view, self._copy, self._constant, self._repeated
        for node in list(self.graph.nodes):
            if not _is_pure(node):
                continue
            self._shorten(node)
            self._one_dimension(node)
            found = (rule(node) for rule in rules)
            other = next((one for one in found if one is not None), None)
            if other is not None:
                node.replace_all_uses_with(other)
        for node in reversed(list(self.graph.nodes)):
            # An operation that writes nothing and whose result nobody uses has no effect.
            if _is_pure(node) and not node.users:
                self.graph.erase_node(node)

    def _shorten(self, node: fx.Node) -> None:
        """Let a view be one of a tensor farther back: of contiguous numbers only sizes count."""
        if node.target in RESHAPES:
            for base in _bases(node):
                if _seen(node).fits(_seen(base), Layout.follows):
                    node.update_arg(0, base)

    def _one_dimension(self, node: fx.Node) -> None:
        """Insert or remove a dimension of size one by its number, where a view has that layout.

        This takes a third of the time of a view, which must compute the layout from the sizes.
        """
        base = next(_bases(node), None)
        if node.target not in RESHAPES or base is None:
            return
        long, short = _seen(node), _seen(base)
        target = aten.unsqueeze.default
        if len(long.layouts[0][0].shape) < len(short.layouts[0][0].shape):
            long, short, target = short, long, aten.squeeze.dim
        for at in range(len(long.layouts[0][0].shape)):
            adds = target is aten.unsqueeze.default
            if long.fits(short, partial(_has_one_more, at=at, adds=adds)):
                node.target, node.args = target, (base, at)
                return

    def _same_view(self, node: fx.Node) -> fx.Node | None:
        """Another view of a tensor, or the tensor, with the same layout: the same numbers."""
        bases = list(_bases(node))
        if not bases:
            return None
        if _seen(node).layouts == _seen(bases[-1]).layouts:
            return bases[-1]
        first = self.views.setdefault((bases[-1], _seen(node).layouts), node)
        return None if first is node else first

    def _copy(self, node: fx.Node) -> fx.Node | None:
        """What is copied, instead of a copy: the same numbers, as long as nobody writes to either.

        A product with one is a copy: x * 1 and x / 1 are x for each number, -0.0, infinity and NaN.
        (A signalling NaN would become a quiet one, but no operation makes one. Numbers of 16 bits
        are left alone: their NaN is replaced.)
        """
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or "seen" not in source.meta:
            return None
        if not (node.target in COPIES or _is_product_with_one(node)):
            return None
        if not _seen(node).fits(_seen(source), Layout.is_like):
            return None
        return source if self._can_join(node, source) else None

    def _constant(self, node: fx.Node) -> fx.Node | None:
        """The result of an operation on numbers and such results, which is always the same."""
        if not all(part.meta.get("folded") for part in node.all_input_nodes):
            return None
        value, layouts = _seen(node).value, _seen(node).layouts[0]
        if not isinstance(value, Tensor) or not self._can_join(node, node):
            return None
        if layouts != (Layout.of(value),):  # an operation after this one changed its shape
            return None
        name = f"constant_{len(self.constants)}"
        self.constants[name] = value
        with self.graph.inserting_before(node):
            constant = self.graph.get_attr(name)
        constant.meta = {**node.meta, "folded": True}
        return constant

    def _repeated(self, node: fx.Node) -> fx.Node | None:
        """The same operation on the same arguments before, which has the same result.

        Unless the arguments were written since; a view shows what is written, whenever it is made.
        """
        key = node.target, _frozen(node.args), _frozen(node.kwargs)
        first = self.known.setdefault(key, node)
        if first is node:
            return None
        reads = _storages(node.all_input_nodes)
        is_view = _seen(node).storages <= reads
        if not is_view and (reads & self.written or not self._can_join(node, first)):
            return None
        return first

    def _can_join(self, node: fx.Node, other: fx.Node) -> bool:
        """Whether a tensor may stand for one that has the same bits when it is made."""
        storages = _seen(node).storages
        return not (storages | _seen(other).storages) & self.written and not storages & self.shown


def _has_one_more(long: Layout, short: Layout, *, at: int, adds: bool) -> bool:
    """Whether a layout is another one with a dimension of size one more at a place.

    With `adds`, its stride must be the one that `unsqueeze` gives it.
    """
    if long.shape != (*short.shape[:at], 1, *short.shape[at:]):
        return False
    rest = *zip(short.shape, short.stride, strict=True), (1, 1)
    usual = rest[at][0] * rest[at][1]
    step = usual if adds else long.stride[at]
    strides = long.stride == (*short.stride[:at], step, *short.stride[at:])
    return strides and (long.offset, long.kind) == (short.offset, short.kind)


def _is_pure(node: fx.Node) -> bool:
    """Whether making tensors is all that a node does."""
    if node.op != "call_function" or "seen" not in node.meta:
        return False
    seen, target = _seen(node), node.target
    named = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    return bool(seen.layouts[0]) and not seen.writes and (named or target is operator.getitem)


def _is_product_with_one(node: fx.Node) -> bool:
    """Whether a node multiplies or divides by one, in a type that has no rounding there."""
    if node.target not in PRODUCTS or node.kwargs:
        return False
    factor, (layout, *_) = node.args[1], _seen(node).layouts[0]
    is_one = isinstance(factor, int | float) and factor == 1 and type(factor) is not bool
    return is_one and layout.kind[0] in EXACT


def _seen(node: fx.Node) -> Seen:
    """What was seen of a node."""
    seen: Seen = node.meta["seen"]
    return seen


def _storages(nodes: Iterable[fx.Node]) -> set[int]:
    """The storages of the tensors of nodes; a number has none."""
    return {at for node in nodes if "seen" in node.meta for at in _seen(node).storages}


def _bases(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors of which a tensor is a view, nearest first."""
    while _is_pure(node) and node.args and node.target is not operator.getitem:
        base = node.args[0]
        if not isinstance(base, fx.Node) or "seen" not in base.meta:
            return
        if not _seen(node).fits(_seen(base), lambda one, other: one.storage == other.storage):
            return
        yield base
        node = base


def _frozen(argument: Any) -> object:  # noqa: ANN401 - an argument of any type
    """An argument as a key: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(argument, fx.Node):
        return argument
    if isinstance(argument, tuple | list):
        return type(argument), tuple(map(_frozen, argument))
    if isinstance(argument, dict):
        return tuple((name, _frozen(value)) for name, value in sorted(argument.items()))
    return type(argument), repr(argument)
