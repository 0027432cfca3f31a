"""Whether the fields of a hook's answer have the types that its class declares."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from flbench.core.types import STAGE_KINDS, Kind

NUMBERS: dict[object, type] = {int: Integral, float: Real}
"""What may stand for a number, beside a tensor without dimensions; a truth value may not."""
UNIONS = (typing.Union, types.UnionType)


def misfit(answer: object) -> str:
    """The first field of a dataclass whose value has another type than declared; "" = none.

    Numbers of NumPy and tensors without dimensions are numbers. Tensors are dense.

    Example:
        >>> from flbench.core.state import Setup
        >>> misfit(Setup(memory={"m.kept": torch.zeros(2)}))
        "memory['m.kept'] is Tensor, expected Memory"
    """
    kind: Any = type(answer)
    for name, hint, exact in _fields(kind):
        value = getattr(answer, name)
        if type(value) in exact and not (isinstance(value, Tensor) and _holds_nothing(value)):
            continue
        if wrong := _wrong(value, hint, name):
            return wrong
    return ""


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, frozenset[object]], ...]:  # noqa: ANN401 - a class
    """Fields of a dataclass, their types, and of these the ones of which nothing more is asked."""
    hints = typing.get_type_hints(kind, localns={"ClientModule": object})
    return tuple(
        (field.name, hints[field.name], _exact(hints[field.name])) for field in fields(kind)
    )


def _exact(hint: Any) -> frozenset[object]:  # noqa: ANN401 - any type
    options = {*typing.get_args(hint)} if typing.get_origin(hint) in UNIONS else {hint}
    whole = {int} if float in options else set()
    return frozenset(options & {Tensor, str, bool, int, float, type(None)} | whole)


def _wrong(value: object, hint: Any, where: str) -> str:  # noqa: ANN401 - any type
    """What is wrong with a value that should have a type; "" = nothing."""
    if typing.get_origin(hint) in UNIONS:
        options = [one for one in typing.get_args(hint) if _is_of(value, one)]
        if options:
            return _wrong(value, options[0], where)
    if not _is_of(value, hint):
        return f"{where} is {_got(value)}, expected {_text(hint)}"
    if hint is Tensor and isinstance(value, Tensor) and _holds_nothing(value):
        return f"{where} is a tensor that is sparse or has no data, expected a dense one"
    if isinstance(value, Mapping):
        _, inner = typing.get_args(hint)
        for name, one in value.items():
            if not isinstance(name, str):
                return f"{where} has the name {_got(name)}, expected a string"
            if wrong := _wrong(one, inner, f"{where}['{name}']"):
                return wrong
    if is_dataclass(hint) and (wrong := misfit(value)):
        return f"{where}.{wrong}"
    return ""


def _is_of(value: object, hint: Any) -> bool:  # noqa: ANN401 - any type
    """Whether a value has a type, whatever it has inside."""
    origin = typing.get_origin(hint)
    if origin in UNIONS:
        return any(_is_of(value, one) for one in typing.get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in _words(hint)
    if origin is Callable:
        return callable(value)
    if hint in NUMBERS:
        number = isinstance(value, NUMBERS[hint]) and not isinstance(value, bool)
        return number or (isinstance(value, Tensor) and value.dim() == 0)
    return isinstance(value, origin or hint)


def _words(hint: Any) -> Collection[str]:  # noqa: ANN401 - any type
    """The words that a type has; of stages, those of the table of all kinds."""
    return STAGE_KINDS if hint == Kind else typing.get_args(hint)


def _holds_nothing(tensor: Tensor) -> bool:
    return tensor.is_meta or tensor.layout != torch.strided


def _got(value: object) -> str:
    """A value in messages: a short one itself, else its type."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    return repr(value)[:40] if plain else type(value).__name__


def _text(hint: Any) -> str:  # noqa: ANN401 - any type
    """A type in messages."""
    origin = typing.get_origin(hint)
    if origin in UNIONS:
        return " or ".join(_text(one) for one in typing.get_args(hint))
    if origin is Literal:
        return " or ".join(map(repr, _words(hint)))
    if origin is Mapping:
        return f"names with {_text(typing.get_args(hint)[1])}"
    if origin is Callable:
        return "a function"
    return "None" if hint is type(None) else str(hint.__name__)
