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


def marked() -> list[tuple[str, str]]:
    """Methods and their marked parameters; a class that only inherits one is left out."""
    found = []
    for method in METHODS:
        kind = load_entry(find("methods", method))
        own = vars(kind).get("__annotations__", {})
        known = declared(kind)
        found += [(method, name) for name in own if name in known and known[name].conditions]
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
@pytest.mark.parametrize(("method", "name"), marked())
def test_what_is_marked_has_no_effect(play_toy: Play, method: str, name: str) -> None:
    kind: Any = load_entry(find("methods", method))
    known = declared(kind)
    for condition in known[name].conditions:
        beside = {condition.field: switching(known[condition.field], condition)}
        settings = {**settings_of(method), **beside}
        settings.pop(name, None)
        more: dict[str, Any] = {"rounds": rounds_of(method), "server_samples": 12}
        without = play_toy(composition((method, kind(**settings))), **more)
        value = {name: another(known[name])}
        beside_it = play_toy(composition((method, kind(**settings, **value))), **more)
        assert torch.equal(without.personal, beside_it.personal)
        assert without.run.ledger.totals == beside_it.run.ledger.totals
        assert without.run.history.last == beside_it.run.history.last
