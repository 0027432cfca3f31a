"""Typed parameters of methods, partitions and models, as set by `--set` and suite files.

A method is a frozen dataclass, a partition or a model is a function; in both cases the declared
parameters are those of the signature. Pydantic checks values against the annotations.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flbench.core.effect import Condition, conditions, without_effect
from flbench.core.setting_text import written
from flbench.errors import BadParameter, UnknownName

Presets = Mapping[str, Mapping[str, object]]
"""A method's presets: name -> parameter -> value; other parameters keep their defaults."""


@dataclass(frozen=True)
class OpensFile:
    """Mark of a parameter that names a file or folder which is read.

    A result file of somebody else may give such a parameter only where the person who runs it
    again names the same file.

    Example:
        >>> Weights = typing.Annotated[str | None, OpensFile(), "file of weights; none = random"]
    """


@dataclass(frozen=True)
class Parameter:
    """One declared parameter: its name, type and default (None where there is none).

    Attributes:
        opens_file: it has the mark `OpensFile`.
        conditions: where alone it has an effect (`core/effect.py`).
    """

    name: str
    hint: Any
    default: object
    doc: str = ""
    opens_file: bool = False
    conditions: tuple[Condition, ...] = ()

    @property
    def note(self) -> str:
        """What it means, and where alone it has an effect."""
        only = [f"only where {one.text}" for one in self.conditions]
        return "; ".join([self.doc, *only] if self.doc else only)

    @property
    def type(self) -> str:
        """The type, as text for messages."""
        hint = _bare(self.hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            parts = [_bare(part) for part in typing.get_args(hint)]
            return " | ".join("None" if p is type(None) else _name(p) for p in parts)
        return _name(hint)

    def check(self, owner: str, value: object) -> Any:  # noqa: ANN401 - any declared type
        """Return the value as the declared type.

        Raises:
            BadParameter: the value does not fit.
        """
        from pydantic import TypeAdapter, ValidationError

        # `--set` reads none, true and 5 as what they are; of a parameter of words they are words.
        text = written(value) if value is None or isinstance(value, (bool, int, float)) else None
        try:
            # Strict mode refuses a bool where a number is expected; lax mode converts lists etc.
            strict = isinstance(value, bool) or None
            found = TypeAdapter(self.hint).validate_python(value, strict=strict)
            if _has_other_number(value, found):
                raise BadParameter(
                    f"{owner}: '{self.name}' expects {self.type}, default {self.default!r};"
                    f" got {value!r}, in which a text or truth value stands for a number"
                )
            return found
        except ValidationError as error:
            problem = error.errors()[0]
            where = f" ({problem['msg'].lower()})" if problem["type"] != "literal_error" else ""
            if text is not None:
                with suppress(BadParameter):
                    return self.check(owner, text)
            raise BadParameter(
                f"{owner}: '{self.name}' expects {self.type}, default {self.default!r};"
                f" got {value!r}{where}"
            ) from None


def _has_other_number(given: object, read: object) -> bool:
    """Whether a text or truth value was read as a number, also within lists and tables."""
    if isinstance(given, (str, bool)):
        return isinstance(read, (int, float)) and not isinstance(read, bool)
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        return any(_has_other_number(one, read.get(key)) for key, one in given.items())
    if isinstance(given, (list, tuple)) and isinstance(read, (list, tuple)):
        return any(map(_has_other_number, given, read))
    return False


def _bare(hint: Any) -> Any:  # noqa: ANN401 - any annotation
    """The type of an `Annotated` type, or the annotation itself."""
    return typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def _name(hint: Any) -> str:  # noqa: ANN401 - any annotation
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(repr(value) for value in typing.get_args(hint))
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def declared(target: Callable[..., Any], *, skip: int = 0) -> Mapping[str, Parameter]:
    """Return the parameters a dataclass or function declares.

    Args:
        target: the dataclass or function.
        skip: leading positional arguments that the core fills in.
    """
    known = isinstance(target, (type, types.FunctionType))  # other callables may have no hash
    return _declared(target, skip) if known else _declared.__wrapped__(target, skip)


@lru_cache(maxsize=256)
def _declared(target: Callable[..., Any], skip: int) -> Mapping[str, Parameter]:
    hints = typing.get_type_hints(target, include_extras=True)
    found = {}
    for name, entry in list(inspect.signature(target).parameters.items())[skip:]:
        hint = hints.get(name, Any)
        marks = getattr(hint, "__metadata__", ())
        notes = [note for note in marks if isinstance(note, str)]
        default = None if entry.default is inspect.Parameter.empty else entry.default
        opens = any(isinstance(mark, OpensFile) for mark in marks)
        found[name] = Parameter(name, hint, default, " ".join(notes), opens, conditions(marks))
    for one in (one for parameter in found.values() for one in parameter.conditions):
        if missing := [name for name in one.fields if name not in found]:
            raise TypeError(f"a parameter has an effect 'only where {one.text}': no '{missing[0]}'")
    return found


def checked(
    owner: str, target: Callable[..., Any], values: Mapping[str, object], *, skip: int = 0
) -> dict[str, Any]:
    """Check values against what `target` declares; return them typed.

    Raises:
        UnknownName: a name that is not declared.
        BadParameter: a value of the wrong type.
    """
    known = declared(target, skip=skip)
    for name in values:
        if name not in known:
            raise UnknownName(f"parameter of {owner}", name, known, listed="declared")
    return {name: known[name].check(owner, value) for name, value in values.items()}


def refuse_unused(owner: str, known: Mapping[str, Parameter], values: Mapping[str, object]) -> None:
    """Refuse values, typed, that have no effect beside each other and the defaults.

    Raises:
        BadParameter: there is one.
    """
    fields = [(one.name, one.default, one.conditions) for one in known.values()]
    beside = {name: default for name, default, _ in fields} | dict(values)
    for _, why in without_effect(fields, beside):
        raise BadParameter(f"{owner}: {why}")
