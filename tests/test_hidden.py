"""The truth and the test samples stay hidden: no walk from what a hook is given leads there."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from toy import CLIENTS, Play, bad, composition, refused

from flbench import Partition, hookimpl
from flbench.run.composition import compose


def test_true_groups_are_hidden_unless_declared(play_toy: Play) -> None:
    said = refused(play_toy, bad(cluster=lambda self, ctx: ctx.true_groups))
    assert said == (
        "round 1: bad.cluster: true groups are hidden; a method asks with `uses_true_groups = True`"
    )


def test_true_groups_that_do_not_exist_are_one_line(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class NoGroups:
        @hookimpl
        def partition(self, labels: Any) -> Partition:
            return Partition(tuple(np.arange(len(labels)).reshape(CLIENTS, -1)))

    told = composition(
        ("oracle", compose("oracle", {"warmup": 0}).layers[0][1]), ("nogroups", NoGroups())
    )
    assert refused(play_toy, told) == (
        "oracle: this partition has no true groups: choose another suite or method"
    )


_LEAVES = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.CodeType)


def _parts(thing: Any) -> Iterator[Any]:
    """Everything one step away: items, closures, bound objects, attributes, slots."""
    if isinstance(thing, Mapping):
        yield from thing.keys()
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from thing
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, weakref.ref):
        yield thing()
    elif isinstance(thing, types.GeneratorType) and thing.gi_frame is not None:
        yield thing.gi_frame.f_locals
    elif isinstance(thing, types.CellType):
        try:
            yield thing.cell_contents
        except ValueError:
            return
    for name in ("__self__", "__func__", "__wrapped__", "__closure__", "__defaults__"):
        yield getattr(thing, name, None)
    yield getattr(thing, "__kwdefaults__", None)
    yield getattr(thing, "__dict__", None)
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in [slots] if isinstance(slots, str) else slots:
            yield getattr(thing, slot, None)


def reachable(root: Any) -> list[Any]:
    """Every object that can be walked to, modules and classes excepted."""
    seen: dict[int, Any] = {}
    todo = [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, _LEAVES):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, torch.Tensor):
            todo += [thing.grad if thing.is_leaf else None, thing._base, vars(thing)]
        elif isinstance(thing, np.ndarray):
            todo.append(thing.base)
        else:
            todo += _parts(thing)
    return list(seen.values())


def shares_memory(found: Iterable[Any], hidden: Iterable[torch.Tensor]) -> list[Any]:
    """What is, or shares memory with, one of the hidden tensors."""
    places = {tensor.untyped_storage().data_ptr() for tensor in hidden}
    tensors = [torch.as_tensor(thing) for thing in found if _is_array(thing)]
    return [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() in places]


def _is_array(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) or (
        isinstance(thing, np.ndarray) and thing.dtype.kind in "iufb" and thing.flags.writeable
    )


def holds_sample_of(found: Iterable[Any], x: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that contain a copy of one of the samples."""
    rows = [t for t in found if isinstance(t, torch.Tensor) and t.shape[1:] == x.shape[1:]]
    return [t for t in rows if len(t) and bool((t[:, None] == x).flatten(2).all(2).any())]


def equals(found: Iterable[Any], groups: torch.Tensor) -> list[Any]:
    """What says the same as the true groups."""
    plain = groups.tolist()
    lists = [t for t in found if isinstance(t, (list, tuple)) and {type(v) for v in t} == {int}]
    arrays = [t.tolist() for t in found if _is_array(t) and len(t.shape) == 1]
    return [values for values in (*map(list, lists), *arrays) if values == plain]


@dataclass(frozen=True)
class Walker:
    """Walks from everything `personalise` is given."""

    found: list[Any]
    uses_true_groups: ClassVar[bool] = False

    @hookimpl
    def personalise(self, state: Any, clients: Any, ctx: Any) -> None:
        self.found[:] = reachable((state, clients, ctx))


@dataclass(frozen=True)
class ToldWalker(Walker):
    """The same, but it asks for the truth."""

    uses_true_groups: ClassVar[bool] = True


def test_personalise_reaches_no_test_sample_and_no_true_group(play_toy: Play) -> None:  # T29
    found: list[Any] = []
    played = play_toy(composition(("walker", Walker(found))))
    run, held_out = played.run, played.run.held_out
    hidden = [held_out.x, held_out.y, *held_out.splits["test"]]
    assert run.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert sum(len(rows) for rows in held_out.splits["test"]) == len(held_out.x) == 18

    assert not shares_memory(found, hidden)
    assert not holds_sample_of(found, held_out.x)
    assert not shares_memory(found, [run.groups])
    assert not equals(found, run.groups)
    assert not any(thing is run or thing is held_out for thing in found)

    visible = run.executor.samples
    assert shares_memory(found, [visible.x]), "the walk gets as far as the samples"
    assert holds_sample_of(found, visible.x[:1])
    assert shares_memory(found, [visible.splits["validation"][5]])
    everything = reachable(run)
    for tensor in (*hidden, run.groups):
        assert shares_memory(everything, [tensor]), "the walk finds what is there to find"


def test_the_walk_looks_behind_the_door_that_is_open(play_toy: Play) -> None:  # T29
    found: list[Any] = []
    played = play_toy(composition(("walker", ToldWalker(found))), rounds=1)
    assert shares_memory(found, [played.run.groups]), "through the closure of `truth`"
    assert equals(found, played.run.groups)
    assert not shares_memory(found, [played.run.held_out.x, played.run.held_out.y])


def test_only_the_two_open_splits_can_be_evaluated(play_toy: Play) -> None:  # T29
    def score(self: Any, state: Any, ctx: Any) -> None:
        ctx.evaluate(state.models, ctx.cohort, "test")

    said = refused(play_toy, bad(score=score))
    assert said == "round 1: bad.score: split: expected 'train' or 'validation', got 'test'"

    def further(self: Any, state: Any, ctx: Any) -> None:
        ctx.executor.samples.splits["test"]

    assert refused(play_toy, bad(score=further)) == "round 1: bad.score raised KeyError: 'test'"
