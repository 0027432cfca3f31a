"""Marks of parameters that have an effect only where another one has some values.

Elsewhere a value would be another setting with the same numbers, taken for the cause of what came:

    clusterer: Literal["kmeans", "affinity"] = "kmeans"
    temperature: Annotated[float, only_with("clusterer", "affinity"), "of the softmax"] = 6.0

What a person sets without effect is refused. Where a file says it, a suite or a result of an older
version, it runs as it always did, a suite with a note.

There is no mark where a size switches something off, such as a weight of 0: it is one point of a
range, and the others are tried with all else kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flbench.core.setting_text import written

Field = tuple[str, object, Iterable[object]]
"""Name, default and marks of a parameter."""


@dataclass(frozen=True)
class Condition:
    """What another parameter must be, or one of several; made by `only_with` and `not_with`.

    Attributes:
        fields: the other parameters, declared beside this one.
        values: some values of them.
        among: whether one of them must be one of these, or must not.
    """

    fields: tuple[str, ...]
    values: tuple[object, ...]
    among: bool

    def holds(self, beside: Mapping[str, object]) -> bool:
        """Whether it is fulfilled; `beside` has the values of all parameters by name."""
        return any((beside[name] in self.values) == self.among for name in self.fields)

    @property
    def text(self) -> str:
        """The condition in words, such as `mode is peer`."""
        values = " or ".join(map(_typed, self.values))
        return f"{' or '.join(self.fields)} is {'' if self.among else 'not '}{values}"


def only_with(field: str, *values: object) -> Condition:
    """Mark of a parameter: it has an effect only where `field` has one of these values.

    Example:
        >>> only_with("graph", "regular").text
        'graph is regular'
    """
    return Condition((field,), values, among=True)


def not_with(fields: str | tuple[str, ...], *values: object) -> Condition:
    """Mark of a parameter: it has no effect where `fields` all have one of these values.

    Example:
        >>> not_with("unseen", 0).text, not_with(("up", "down"), None).text
        ('unseen is not 0', 'up or down is not none')
    """
    return Condition((fields,) if isinstance(fields, str) else fields, values, among=False)


def conditions(marks: Iterable[object]) -> tuple[Condition, ...]:
    """The conditions among what annotates a parameter."""
    return tuple(mark for mark in marks if isinstance(mark, Condition))


def has_effect(marks: Iterable[object], beside: Mapping[str, object]) -> bool:
    """Whether a parameter with these marks has an effect beside the others."""
    return all(one.holds(beside) for one in conditions(marks))


def without_effect(
    fields: Iterable[Field], values: Mapping[str, object], table: str = ""
) -> Iterator[tuple[str, str]]:
    """Parameters that are not at their defaults and have no effect beside the others.

    Args:
        fields: the parameters.
        values: name -> value, of all of them.
        table: what a person types before their names, such as `clock.`.

    Returns:
        Each name as it is typed, and a sentence: what was expected, what came, what to set.
    """
    for name, default, marks in fields:
        broken = [one for one in conditions(marks) if not one.holds(values)]
        if broken and values[name] != default:
            setting, (one, *_) = f"{table}{name}", broken
            came = ", ".join(f"{table}{key}={_typed(values[key])}" for key in one.fields)
            way = f"set {table}{one.fields[0]}={_typed(one.values[0])}, or " if one.among else ""
            yield (
                setting,
                f"'{setting}' has an effect only where {one.text}; got"
                f" {setting}={_typed(values[name])} with {came}: {way}set"
                f" {setting}={_typed(default)}",
            )


def _typed(value: object) -> str:
    """A value as a person types it after `--set`."""
    return value if isinstance(value, str) else written(value)
