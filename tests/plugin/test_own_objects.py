"""Objects of a person's own: their names and hashes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from mentions import mention

import flbench as fl
from flbench.errors import UserError
from flbench.plugin.own_objects import code_hash, own_dataset, own_method, own_model
from flbench.plugin.registry import NAMES, find, load_entry, offering

CODE = """
from dataclasses import dataclass
import math
import flbench as fl

RATE = 3

def helper(value):
    return math.sqrt(value) * RATE if value not in {"a", "b", "c", "d"} else 0

class Base:
    def shared(self):
        return 1

@dataclass(frozen=True)
class Mine(Base):
    rate: float = 0.5

    @fl.hookimpl
    def weights(self, upload):
        return [helper(one) for one in upload]

    @property
    def double(self):
        return 2 * self.rate

    @staticmethod
    def plus(value):
        return value + 1
"""


def defined(code: str = CODE) -> type:
    """The class as a notebook has it: its module has no file."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "<cell>", "exec", dont_inherit=True), names)
    kind: type = names["Mine"]
    return kind


def test_the_hash_is_that_of_all_own_code_that_is_reached() -> None:
    first = code_hash(defined())
    assert first == code_hash(defined()) == code_hash(defined("# a comment\n" + CODE))
    changes = [
        ("RATE = 3", "RATE = 4"),
        ("sqrt(value)", "sqrt(value + 1)"),
        ("return 1", "return 2"),
        ("2 * self", "3 * self"),
        ("value + 1", "value - 1"),
        ("rate: float = 0.5", "rate: float = 0.6"),
        ("math.sqrt", "math.cbrt"),
        ("[helper(one) for", "[helper(-one) for"),
    ]
    hashes = [code_hash(defined(CODE.replace(*change))) for change in changes]
    assert len({first, *hashes}) == 1 + len(changes)


def scaled(factor: object) -> Callable[..., object]:
    def build(shape: tuple[int, ...], classes: int) -> object:
        return factor

    return build


def test_values_of_scopes_around_a_function_count() -> None:
    values = [1, 1.0, "1", True, (1, 2), [1, 2], {1: 2}, {"a", "b"}, torch.zeros(2), torch.ones(2)]
    hashes = [code_hash(scaled(value)) for value in values]
    assert len(set(hashes)) == len(values)
    assert hashes == [code_hash(scaled(value)) for value in values]
    assert code_hash(partial(scaled, 1)) != code_hash(partial(scaled, 2))
    with pytest.raises(UserError, match=mention("build", "factor", "object")):
        code_hash(scaled(object()))


@pytest.mark.slow
def test_the_hash_is_the_same_in_every_process() -> None:
    code = (
        f"from flbench.plugin.own_objects import code_hash\nnames = {{'__name__': '__main__'}}\n"
        f"exec(compile({CODE!r}, '<cell>', 'exec'), names)\n"
        "print(code_hash(names['Mine']))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [code_hash(defined())]


@dataclass(frozen=True)
class Own:
    """Own."""

    rate: float = 0.5
    names: tuple[str, ...] = field(default_factory=tuple)

    @fl.hookimpl
    def weights(self, upload: Any) -> Any:
        """Leave it to the default."""


def test_names_can_be_typed_and_are_found_within_the_block_alone() -> None:
    method, kind = own_method(Own())
    assert kind is Own and own_method(Own)[0] == method
    data = fl.Dataset("my [best] points: 1", torch.rand(4, 2), torch.tensor([0, 1, 0, 1]), 2)
    dataset, load = own_dataset(data)
    model, _ = own_model(lambda shape, classes: None)
    for entry in (method, dataset, model):
        assert NAMES.fullmatch(entry.name) and not {*entry.name} & {*":[].+"}
    with offering({("methods", method.name): (method, Own)}):
        assert load_entry(find("methods", method.name)) is Own
    with pytest.raises(UserError):
        find("methods", method.name)
    assert load(None).name == dataset.name and bool((load(None).x == data.x).all())


def test_an_object_of_an_installed_class_has_its_name() -> None:
    installed = load_entry(find("methods", "fedprox"))
    entry, kind = own_method(installed(mu=0.3))
    assert (entry, kind) == (find("methods", "fedprox"), installed)
