"""Which fields of settings enter a hash; a mark on the field itself says so.

A field that is added to a suite or a method gets the mark `LATER`, as in

    strength: Annotated[float, LATER] = 0.0

Where it has its default, it is in no hash and in no result: hashes and results from before the
field stay what they were, and another value is another setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel


@dataclass(frozen=True)
class Later:
    """Mark of a field that was added later; at its default it is in no hash and in no result."""


@dataclass(frozen=True)
class Describes:
    """Mark of a field that changes no model and no number of another field: it is in no hash."""


LATER = Later()
"""See `Later`."""
DESCRIBES = Describes()
"""See `Describes`."""


def hashed(settings: object, plain: Any) -> Any:  # noqa: ANN401 - plain data
    """The plain data of settings, without what their marks leave out, at every depth.

    Args:
        settings: a pydantic model or a dataclass, or a table or list of them.
        plain: the same as dicts, lists, texts and numbers, as `model_dump` and `asdict` give it.
    """
    if isinstance(settings, Mapping) and isinstance(plain, Mapping):
        pairs = {str(key): value for key, value in settings.items()}
        return {key: hashed(pairs.get(key), value) for key, value in plain.items()}
    if isinstance(settings, (list, tuple)) and isinstance(plain, (list, tuple)):
        return [hashed(*pair) for pair in zip(settings, plain, strict=True)]
    if not isinstance(plain, Mapping) or not _has_fields(settings):
        return plain
    left_out = set(_left_out(settings))
    return {
        key: hashed(getattr(settings, key, None), value)
        for key, value in plain.items()
        if key not in left_out
    }


def described(kind: type[BaseModel]) -> frozenset[str]:
    """The fields that are in no hash, whatever they hold."""
    return frozenset(name for name, (mark, _) in _marked(kind).items() if mark == DESCRIBES)


def _has_fields(settings: object) -> bool:
    is_instance = is_dataclass(settings) and not isinstance(settings, type)
    return is_instance or isinstance(settings, BaseModel)


def _left_out(settings: object) -> Iterator[str]:
    """The fields of a model or a dataclass that enter no hash."""
    kind: Any = type(settings)
    for name, (mark, default) in _marked(kind).items():
        if mark == DESCRIBES or getattr(settings, name) == default:
            yield name


@cache
def _marked(kind: Any) -> Mapping[str, tuple[object, object]]:  # noqa: ANN401 - a class
    """The marked fields of a model or a dataclass: the mark and the default."""
    return {
        name: (mark, default)
        for name, default, marks in annotated_fields(kind)
        for mark in marks
        if mark in (LATER, DESCRIBES)
    }


def annotated_fields(kind: Any) -> Iterator[tuple[str, object, Sequence[object]]]:  # noqa: ANN401
    """Name, default and notes on the annotation of each field; MISSING = it has no default.

    Args:
        kind: class of a pydantic model or of a dataclass.
    """
    if issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            default = MISSING if info.is_required() else info.get_default(call_default_factory=True)
            yield name, default, info.metadata
        return
    notes = _notes(kind)
    for one in fields(kind):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        yield one.name, default, notes.get(one.name, ())


@cache
def _notes(kind: type) -> Mapping[str, Sequence[object]]:
    """What annotates each field of a dataclass, read once: it takes a millisecond."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
