"""Observe the hooks of a method, and compare tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from flbench.core.hookspecs import hook_marks
from flbench.run.composition import MethodStack

Observer = Callable[[str, Mapping[str, object], Callable[[], object]], object]
"""Called in place of a hook with its name, its arguments and the call, whose answer it returns.

A hook that wraps those of others has two calls: until it yields, and from there on.
"""


def with_hook_recorder(method: MethodStack, observer: Observer) -> MethodStack:
    """The same plugins, with an observer called in place of each of their hooks."""
    layers = tuple((name, _observed(plugin, observer)) for name, plugin in method.layers)
    return replace(method, layers=layers)


def _observed(plugin: object, observer: Observer) -> object:
    """A plugin that has the hooks of another, each called through the observer."""
    plugin_class: Any = type(plugin)
    body: dict[str, object] = {"__module__": plugin_class.__module__}  # messages name the module
    for name, mark in hook_marks(plugin_class):
        hook = mark.get("specname") or name
        body[name] = _observed_hook(hook, getattr(plugin, name), mark, observer)
    return type(plugin_class.__name__, (), body)()


def _observed_hook(
    hook: str,
    function: Callable[..., object],
    mark: Mapping[str, object],
    observer: Observer,
) -> staticmethod[..., object]:
    """A bound hook as a static method, with the mark that pluggy looks for."""
    names = list(inspect.signature(function).parameters)

    @wraps(function)
    def call(*values: object, **more: object) -> object:
        arguments = {**dict(zip(names, values, strict=False)), **more}
        return observer(hook, arguments, lambda: function(*values, **more))

    @wraps(function)
    def wrapper(*values: object, **more: object) -> Generator[None, object, object]:
        arguments, answers = {**dict(zip(names, values, strict=False)), **more}, list[object]()
        steps: Any = function(*values, **more)

        def act(step: Callable[[], object]) -> object:
            try:
                return step()
            except StopIteration as end:
                answers.append(end.value)
                return end.value

        observer(hook, arguments, lambda: act(lambda: next(steps)))
        while not answers:
            given = yield
            observer(hook, arguments, partial(act, partial(steps.send, given)))
        return answers[0]

    observed = staticmethod(wrapper if inspect.isgeneratorfunction(function) else call)
    vars(observed).update(flbench_impl=mark)
    return observed


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors are equal bit for bit; NaN equals NaN."""
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_floating_point():
        one, other = one.nan_to_num(7e7), other.nan_to_num(7e7)
    return torch.equal(one, other)
