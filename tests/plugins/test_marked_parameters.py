"""Parameters that are marked as without an effect have none: the run is the same, to its bytes."""

from __future__ import annotations

import typing
from typing import Any

import pytest
import torch
from every import METHODS, rounds_of, settings_of
from toy import Play, composition

from flbench.core.effect import Condition
from flbench.core.parameters import Parameter, declared
from flbench.plugin.registry import find, load_entry


def marked() -> list[tuple[str, Condition]]:
    """Methods and the conditions of their parameters; what a class only inherits is left out."""
    found = []
    for method in METHODS:
        kind = load_entry(find("methods", method))
        own = vars(kind).get("__annotations__", {})
        known = declared(kind)
        own_conditions = [one for name in own if name in known for one in known[name].conditions]
        found += [(method, one) for one in dict.fromkeys(own_conditions)]
    return found


def another(parameter: Parameter) -> object:
    """A value of a parameter's type that is not its default."""
    bare: Any = parameter.hint
    while hasattr(bare, "__metadata__"):
        bare = typing.get_args(bare)[0]
    if typing.get_origin(bare) is typing.Literal:
        return next(value for value in typing.get_args(bare) if value != parameter.default)
    if isinstance(parameter.default, bool):
        return not parameter.default
    return 2 if parameter.default is None else parameter.default * 2


def switching(parameter: Parameter, condition: Condition) -> object:
    """A value of the other parameter with which the condition does not hold."""
    if not condition.among:
        return condition.values[0]
    if parameter.default is None:
        return 1
    return (1,) if parameter.default == () else another_than(parameter, condition)


def another_than(parameter: Parameter, condition: Condition) -> object:
    """One of the words of a parameter that a condition does not name."""
    words = typing.get_args(typing.get_args(parameter.hint)[0])
    return next(word for word in words if word not in condition.values)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "condition"), marked())
def test_what_is_marked_has_no_effect(play_toy: Play, method: str, condition: Condition) -> None:
    """All at once that the condition marks, beside a value with which it does not hold."""
    kind: Any = load_entry(find("methods", method))
    known = declared(kind)
    values = {name: another(one) for name, one in known.items() if condition in one.conditions}
    (field,) = condition.fields
    beside = {field: switching(known[field], condition)}
    usual = {name: one for name, one in settings_of(method).items() if name not in values}
    more: dict[str, Any] = {"rounds": rounds_of(method), "server_samples": 12}
    without, with_them = (
        play_toy(composition((method, kind(**{**usual, **beside, **changed}))), **more)
        for changed in ({}, values)
    )
    assert values
    assert torch.equal(without.personal, with_them.personal)
    assert without.run.ledger.totals == with_them.run.ledger.totals
    assert without.run.history.last == with_them.run.history.last
