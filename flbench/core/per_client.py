"""Fields with an entry per client: a mark says so on the field, and one function selects by it.

Example:
    >>> from dataclasses import dataclass, field
    >>> @all_marked
    ... @dataclass(frozen=True)
    ... class Answer(OfClients):
    ...     loss: Tensor = field(metadata=PER_CLIENT)
    ...     round: int = field(metadata=FOR_ALL)
    >>> Answer(torch.tensor([1.0, 2.0, 3.0]), 7).select(torch.tensor([2, 0]))
    Answer(loss=tensor([3., 1.]), round=7)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from flbench.core.model_bank import ModelBank, take

T = TypeVar("T")
_MARK = "clients"
PER_CLIENT: Mapping[str, int | None] = MappingProxyType({_MARK: 1})
"""Metadata of a field with an entry per client: a tensor of shape (n, ...), a list of n, or a
mapping of names to such. None, a number, a tensor without dimensions and an empty list hold for all
clients alike."""
MASKS: Mapping[str, int | None] = MappingProxyType({_MARK: 2})
"""The same of a tensor of shape (n, W), where one of shape (W,) holds for all clients alike."""
FOR_ALL: Mapping[str, int | None] = MappingProxyType({_MARK: None})
"""Metadata of a field that holds for all clients alike, whatever it is."""


class OfClients:
    """A dataclass about n clients, all of whose fields are marked."""

    def select(self, positions: Tensor) -> Self:
        """The same of some of its clients, in this order: positions, shape (k,), int64.

        Nothing is noted as read (`flbench.core.knowledge`).
        """
        own = vars(self)
        changes = {
            name: own[name] if least is None else entries(own[name], positions, least)
            for name, least in _marks(type(self)).items()
        }
        return replace(self, **changes)  # type: ignore[type-var] # a dataclass, says `_marks`


Of = TypeVar("Of", bound=OfClients)


def all_marked(kind: type[T]) -> type[T]:
    """Decorate a dataclass: refuse a field without a mark.

    Raises:
        TypeError: there is one.
    """
    _marks(kind)
    return kind


def _marks(kind: Any) -> dict[str, int | None]:  # noqa: ANN401 - a dataclass
    """Fields -> how many dimensions a tensor with entries per client has at least; None = any.

    Raises:
        TypeError: a field has no mark.
    """
    for one in fields(kind):
        if _MARK not in one.metadata:
            raise TypeError(
                f"{kind.__name__}.{one.name}: expected field(metadata=...) with PER_CLIENT, MASKS"
                " or FOR_ALL, which say what some of the clients have of it"
            )
    return {one.name: one.metadata[_MARK] for one in fields(kind)}


def entries(value: Any, positions: Tensor, least: int = 1) -> Any:  # noqa: ANN401 - see `PER_CLIENT`
    """What some of the clients have of a value; what holds for all is returned as it is.

    Args:
        value: see `PER_CLIENT`; or something that selects by itself.
        positions: shape (k,), int64.
        least: dimensions that a tensor with entries per client has at least.
    """
    match value:
        case OfClients():
            return value.select(positions)
        case Tensor():
            return rows_at(value, positions) if value.ndim >= least else value
        case Mapping():
            return {name: entries(one, positions, least) for name, one in value.items()}
        case list() | tuple() if value:
            return [value[place] for place in positions.tolist()]
    return value


def joined(parts: Sequence[Of]) -> Of:
    """The clients of one part after those of the other, in a type that selects.

    Raises:
        ValueError: the parts differ in what holds for all clients.
    """
    kind = type(parts[0])
    changes = {
        name: _joined(f"{kind.__name__}.{name}", [vars(one)[name] for one in parts], least)
        for name, least in _marks(kind).items()
    }
    return replace(parts[0], **changes)  # type: ignore[type-var] # a dataclass, says `_marks`


def rows_at(table: Tensor, positions: Tensor) -> Tensor:
    """Rows of a table, shape (k, ...); of a bank a bank; one row that is repeated is not copied."""
    if isinstance(table, ModelBank):
        return take(table, positions)
    if len(table) > 1 and table.stride(0) == 0:
        return table[:1].expand(len(positions), *table.shape[1:])
    return table[positions.to(table.device)]


def _joined(where: str, values: list[Any], least: int | None) -> Any:  # noqa: ANN401 - any field
    first = values[0]
    if least is not None:
        match first:
            case OfClients():
                return joined(values)
            case Tensor() if first.ndim >= least and all(isinstance(v, Tensor) for v in values):
                return torch.cat(values)
            case Mapping() if all(one.keys() == first.keys() for one in values):
                return {
                    name: _joined(f"{where}['{name}']", [one[name] for one in values], least)
                    for name in first
                }
            case list() | tuple():
                return list(chain(*values))
    if not all(_equal(first, other) for other in values[1:]):
        raise ValueError(f"{where}: expected one value for all clients, got {values}")
    return first


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
