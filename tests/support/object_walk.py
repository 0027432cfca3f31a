"""Every object that can be reached from another one, and what of it is hidden data."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

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
    tensors = [torch.as_tensor(thing) for thing in found if is_array(thing)]
    return [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() in places]


def is_array(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) or (
        isinstance(thing, np.ndarray) and thing.dtype.kind in "iufb" and thing.flags.writeable
    )


def holds_sample_of(found: Iterable[Any], x: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that contain a copy of one of the samples."""
    rows = [t for t in found if isinstance(t, torch.Tensor) and t.shape[1:] == x.shape[1:]]
    return [t for t in rows if len(t) and bool((t[:, None] == x).flatten(2).all(2).any())]
