"""Spies: who looks over a plugin's shoulder, and what to compare afterwards."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flbench.run.composition import MethodStack

Told = Callable[[str, Mapping[str, object], object], None]
"""Told of a hook, what it was given and what it answered."""


def nobody(*_: object) -> None:
    """Is told, and does nothing."""


def with_hook_recorder(
    method: MethodStack, before: Told = nobody, after: Told = nobody
) -> MethodStack:
    """The same plugins, with somebody told before and after each of their hooks."""
    return replace(
        method,
        layers=tuple((name, _spied(plugin, before, after)) for name, plugin in method.layers),
    )


def _spied(plugin: object, before: Told, after: Told) -> object:
    """A plugin with the hooks of another."""
    kind = type(plugin)
    body: dict[str, object] = {"__module__": kind.__module__}  # whose it is
    for name in dir(kind):
        function = inspect.getattr_static(kind, name)
        options = getattr(function, "flbench_impl", None)
        if options is not None:
            hook = options.get("specname") or name
            body[name] = _told(hook, function, plugin, before, after)
    return type(kind.__name__, (), body)()


def _told(
    hook: str,
    function: Any,  # noqa: ANN401 - marked as a hook
    plugin: object,
    before: Told,
    after: Told,
) -> Any:  # noqa: ANN401 - the same
    """A hook with somebody told before and after it."""
    static = isinstance(function, staticmethod)
    raw = function.__func__ if static else function
    names = list(inspect.signature(raw).parameters)[0 if static else 1 :]

    @functools.wraps(raw)
    def call(*given: object) -> object:
        own = given if static else given[1:]
        arguments = dict(zip(names, own, strict=False))
        before(hook, arguments, None)
        answer = raw(*own) if static else raw(plugin, *own)
        after(hook, arguments, answer)
        return answer

    made: Any = staticmethod(call) if static else call
    vars(made).update(vars(function))  # whichever of the two was marked
    return made


def tensors(thing: object, place: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors in what a hook is given, with words for where they are."""
    if isinstance(thing, Tensor):
        yield place, thing
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from tensors(value, f"{place}['{key}']")
    elif isinstance(thing, (list, tuple)):
        for at, value in enumerate(thing):
            yield from tensors(value, f"{place}[{at}]")
    elif is_dataclass(thing):
        for one in (one for one in fields(thing) if one.name != "services"):
            yield from tensors(getattr(thing, one.name), f"{place}.{one.name}")


def changed(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor is not its copy any more; NaN is NaN."""
    if tensor.shape != copy.shape:
        return True
    if tensor.is_floating_point():
        tensor, copy = tensor.nan_to_num(7e7), copy.nan_to_num(7e7)
    return not torch.equal(tensor, copy)
