"""Observe the hooks of a method: a function is called before and after each of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flbench.run.composition import MethodStack

Observer = Callable[[str, Mapping[str, object], object], None]
"""Called with a hook's name, its arguments and its answer (None before the call)."""


def ignore(*_: object) -> None:
    """An observer that does nothing."""


def with_hook_recorder(
    method: MethodStack, before: Observer = ignore, after: Observer = ignore
) -> MethodStack:
    """The same plugins, with observers called before and after each of their hooks."""
    return replace(
        method,
        layers=tuple((name, _observed(plugin, before, after)) for name, plugin in method.layers),
    )


def _observed(plugin: object, before: Observer, after: Observer) -> object:
    """A plugin that has the hooks of another, with observers."""
    plugin_class = type(plugin)
    body: dict[str, object] = {"__module__": plugin_class.__module__}  # messages name the module
    for name in dir(plugin_class):
        function = inspect.getattr_static(plugin_class, name)
        options = getattr(function, "flbench_impl", None)
        if options is not None:
            hook = options.get("specname") or name
            body[name] = _observed_hook(hook, function, plugin, before, after)
    return type(plugin_class.__name__, (), body)()


def _observed_hook(
    hook: str,
    function: Any,  # noqa: ANN401 - marked as a hook
    plugin: object,
    before: Observer,
    after: Observer,
) -> Any:  # noqa: ANN401 - the same
    """A hook with observers."""
    static = isinstance(function, staticmethod)
    raw = function.__func__ if static else function
    names = list(inspect.signature(raw).parameters)[0 if static else 1 :]

    @functools.wraps(raw)
    def call(*values: object) -> object:
        values = values if static else values[1:]
        arguments = dict(zip(names, values, strict=False))
        before(hook, arguments, None)
        answer = raw(*values) if static else raw(plugin, *values)
        after(hook, arguments, answer)
        return answer

    observed: Any = staticmethod(call) if static else call
    vars(observed).update(vars(function))  # pluggy's mark may be on the staticmethod
    return observed


def tensors(value: object, path: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors inside a hook's argument, each with its path, such as "state.memory['x']"."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors(item, f"{path}['{key}']")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors(item, f"{path}[{index}]")
    elif is_dataclass(value):
        for attribute in (one.name for one in fields(value) if one.name != "services"):
            yield from tensors(getattr(value, attribute), f"{path}.{attribute}")


def changed(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor differs from an earlier copy; NaN equals NaN."""
    if tensor.shape != copy.shape:
        return True
    if tensor.is_floating_point():
        tensor, copy = tensor.nan_to_num(7e7), copy.nan_to_num(7e7)
    return not torch.equal(tensor, copy)
