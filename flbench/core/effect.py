"""Marks of parameters that have an effect only where another one has some values.

Elsewhere a value would be another setting with the same numbers, taken for the cause of what came.
So it is refused:

    clusterer: Literal["kmeans", "affinity"] = "kmeans"
    temperature: Annotated[float, only_with("clusterer", "affinity"), "of the softmax"] = 6.0

There is no mark where a size switches something off, such as a weight of 0: it is one point of a
range, and the others are tried with all else kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flbench.core.setting_text import written
from flbench.errors import BadParameter


@dataclass(frozen=True)
class Condition:
    """What another parameter must be; made by `only_with` and `not_with`.

    Attributes:
        field: the other parameter, declared beside this one.
        values: some values of it.
        among: whether it must be one of them, or must not.
    """

    field: str
    values: tuple[object, ...]
    among: bool

    def holds(self, value: object) -> bool:
        """Whether a value of the other parameter fulfils it."""
        return (value in self.values) == self.among

    @property
    def text(self) -> str:
        """The condition in words, such as `mode is peer`."""
        values = " or ".join(map(_typed, self.values))
        return f"{self.field} is {'' if self.among else 'not '}{values}"


def only_with(field: str, *values: object) -> Condition:
    """Mark of a parameter: it has an effect only where `field` has one of these values.

    Example:
        >>> only_with("graph", "regular").text
        'graph is regular'
    """
    return Condition(field, values, among=True)


def not_with(field: str, *values: object) -> Condition:
    """Mark of a parameter: it has no effect where `field` has one of these values.

    Example:
        >>> not_with("unseen", 0).text
        'unseen is not 0'
    """
    return Condition(field, values, among=False)


def conditions(marks: Iterable[object]) -> tuple[Condition, ...]:
    """The conditions among what annotates a parameter."""
    return tuple(mark for mark in marks if isinstance(mark, Condition))


def refuse_without_effect(
    owner: str,
    fields: Iterable[tuple[str, object, Iterable[object]]],
    values: Mapping[str, object],
    table: str = "",
) -> None:
    """Refuse a value that is not its parameter's default and has no effect beside the others.

    Args:
        owner: how the message names what has the parameters.
        fields: name, default and marks of each parameter.
        values: name -> value, of all of them.
        table: what a person types before their names, such as `clock.`.

    Raises:
        BadParameter: there is one.
    """
    for name, default, marks in fields:
        value = values[name]
        for one in conditions(marks):
            other = values[one.field]
            if value != default and not one.holds(other):
                setting, beside = f"{table}{name}", f"{table}{one.field}"
                way = f"set {beside}={_typed(one.values[0])}" if one.among else "change that"
                raise BadParameter(
                    f"{owner}: '{setting}' has an effect only where {one.text}; got"
                    f" {setting}={_typed(value)} with {beside}={_typed(other)}: {way}, or set"
                    f" {setting}={_typed(default)}"
                )


def _typed(value: object) -> str:
    """A value as a person types it after `--set`."""
    return value if isinstance(value, str) else written(value)
