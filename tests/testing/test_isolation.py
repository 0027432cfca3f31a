"""The truth and the test samples stay hidden: no walk from what a hook is given leads there."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from mentions import mentioning
from object_walk import holds_sample_of, is_array, reachable, shares_memory
from toy import CLIENTS, Play, bad, composition, refused

from flbench import Partition, hookimpl
from flbench.run.composition import compose
from flbench.testing.isolation import WARM_UP, steady_memory


def test_true_groups_are_hidden_unless_declared(play_toy: Play) -> None:
    said = refused(play_toy, bad(cluster=lambda self, ctx: ctx.true_groups))
    assert said == mentioning("round 1", "bad.cluster", "uses_true_groups = True")


def test_true_groups_that_do_not_exist_are_one_line(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class NoGroups:
        @hookimpl
        def partition(self, labels: Any) -> Partition:
            return Partition(tuple(np.arange(len(labels)).reshape(CLIENTS, -1)))

    told = composition(
        ("oracle", compose("oracle", {"warmup": 0}).layers[0][1]), ("nogroups", NoGroups())
    )
    assert refused(play_toy, told) == mentioning("oracle", "partition")


def equals(found: Iterable[Any], groups: torch.Tensor) -> list[Any]:
    """What says the same as the true groups."""
    plain = groups.tolist()
    lists = [t for t in found if isinstance(t, (list, tuple)) and {type(v) for v in t} == {int}]
    arrays = [t.tolist() for t in found if is_array(t) and len(t.shape) == 1]
    return [values for values in (*map(list, lists), *arrays) if values == plain]


@dataclass(frozen=True)
class Walker:
    """Walks from everything `personalise` is given."""

    found: list[Any]
    uses_true_groups: ClassVar[bool] = False

    @hookimpl
    def personalise(self, state: Any, clients: Any, ctx: Any) -> None:
        self.found[:] = reachable((state, clients, ctx))


@dataclass(frozen=True)
class ToldWalker(Walker):
    """The same, but it asks for the truth."""

    uses_true_groups: ClassVar[bool] = True


def test_personalise_reaches_no_test_sample_and_no_true_group(play_toy: Play) -> None:  # T29
    found: list[Any] = []
    played = play_toy(composition(("walker", Walker(found))))
    run, held_out = played.run, played.run.held_out
    hidden = [held_out.x, held_out.y]
    assert run.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert sum(len(rows) for rows in held_out.splits["test"]) == len(held_out.x) == 18

    assert not shares_memory(found, hidden)
    assert not holds_sample_of(found, held_out.x)
    assert not shares_memory(found, [run.groups])
    assert not equals(found, run.groups)
    barred = run, held_out, held_out.splits["test"]
    assert not any(thing is one for thing in found for one in barred)

    visible = run.executor.samples
    assert shares_memory(found, [visible.x]), "the walk gets as far as the samples"
    assert holds_sample_of(found, visible.x[:1])
    assert any(thing is visible.splits["validation"] for thing in found)
    everything = reachable(run)
    for tensor in (*hidden, run.groups):
        assert shares_memory(everything, [tensor]), "the walk finds what is there to find"


def test_the_walk_looks_behind_the_door_that_is_open(play_toy: Play) -> None:  # T29
    found: list[Any] = []
    played = play_toy(composition(("walker", ToldWalker(found))), rounds=1)
    assert shares_memory(found, [played.run.groups]), "through the closure of `truth`"
    assert equals(found, played.run.groups)
    assert not shares_memory(found, [played.run.held_out.x, played.run.held_out.y])


def test_only_the_two_open_splits_can_be_evaluated(play_toy: Play) -> None:  # T29
    def score(self: Any, state: Any, ctx: Any) -> None:
        ctx.evaluate(state.models, ctx.cohort, "test")

    said = refused(play_toy, bad(score=score))
    assert said == mentioning("round 1", "bad.score", "'train' or 'validation'", "got 'test'")

    def further(self: Any, state: Any, ctx: Any) -> None:
        ctx.executor.samples.splits["test"]

    assert refused(play_toy, bad(score=further)) == mentioning(
        "round 1", "bad.score", "KeyError", "test"
    )


@pytest.mark.parametrize(("before", "after"), [(0, ["freeze", "unfreeze"]), (7, ["freeze"])])
def test_objects_that_were_frozen_before_a_check_stay_so(
    before: int, after: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, partial(done.append, name))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: before)
    monkeypatch.setattr(gc, "collect", lambda: 0)
    monkeypatch.setattr(gc, "get_objects", list)

    def run(suite: object, extra_plugins: Any, record_states: bool) -> None:
        ((_, recorder),) = extra_plugins
        for _ in range(2 * WARM_UP):
            recorder.plan(SimpleNamespace(models=torch.zeros(1), memory={}))

    method: Any = SimpleNamespace(suite=lambda rounds: None, run=run, plugin_class=object)
    steady_memory.function(method)
    assert done == after
