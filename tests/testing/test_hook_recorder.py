"""What an observer sees of a hook, and what is equal bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
import torch

from flbench.core.hookspecs import hookimpl
from flbench.results.schema import Method
from flbench.run.composition import MethodStack
from flbench.testing.hook_recorder import same_bits, with_hook_recorder

METHOD = Method(name="p", params={}, plugins=[])
ONE = torch.tensor([1.0, torch.nan])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (None, None, True),
        (ONE, None, False),
        (ONE, ONE.clone(), True),
        (ONE, ONE[:1], False),
        (ONE, ONE.double(), False),
        (ONE, torch.tensor([1.0 + 1e-7, torch.nan]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
    ],
)
def test_tensors_by_hand(one: torch.Tensor | None, other: torch.Tensor | None, same: bool) -> None:
    assert same_bits(one, other) is same
    assert same_bits(other, one) is same


class Doubles:
    @hookimpl(wrapper=True)
    def plan(self, ctx: object) -> Generator[None, int, int]:
        stages = yield
        return 2 * stages


class DoesNotYield:
    @hookimpl(wrapper=True)
    def plan(self, ctx: object) -> Generator[None, int, int]:
        return 3
        yield


@pytest.mark.parametrize(("plugin", "seen"), [(Doubles(), [None, 14]), (DoesNotYield(), [3])])
def test_both_halves_of_a_wrapper_are_observed(plugin: object, seen: list[object]) -> None:
    calls: list[tuple[object, ...]] = []

    def observer(hook: str, arguments: object, call: Callable[[], object]) -> object:
        calls.append((hook, arguments, call()))
        return calls[-1][-1]

    ((_, observed),) = with_hook_recorder(MethodStack((("p", plugin),), METHOD), observer).layers
    steps = observed.plan("context")  # type: ignore[attr-defined]
    found: object = None
    try:
        next(steps)
        steps.send(7)
    except StopIteration as end:
        found = end.value
    assert found == seen[-1]
    assert calls == [("plan", {"ctx": "context"}, answer) for answer in seen]
