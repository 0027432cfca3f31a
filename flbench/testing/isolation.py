"""Checks of isolation: inputs, other clients, the partition, test data, memory, process state."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from itertools import pairwise
from types import ModuleType

import torch
from torch import Tensor

from flbench.core.hookspecs import hookimpl
from flbench.core.state import State
from flbench.plugin.registry import find
from flbench.results.difference import SHARED_MARKS
from flbench.run.rounds import Run
from flbench.tasks import TASKS
from flbench.testing.check import MethodUnderTest, check
from flbench.testing.edge_cases import usual_run
from flbench.testing.hook_recorder import same_bits
from flbench.testing.reproducibility import differing_tensors, same_seed_same_bytes
from flbench.testing.small_run import DEFAULTS, run_small
from flbench.testing.subprocesses import in_fresh_process
from flbench.testing.watch import changes_of


@check(usual_run)
def inputs_untouched(method: MethodUnderTest) -> None:
    """Hooks and local training never write to their inputs."""
    _ = method.newcomers_run.result
    written = method.watch.written
    if written:
        raise method.failure(f"{written[0]}: return new tensors (`clone()` before writing)")


@check(usual_run)
def absent_clients_untouched(method: MethodUnderTest) -> None:
    """A client outside all stages of a round keeps its memory, and its group if groups stay."""
    watch = method.watch
    for old, new in pairwise(method.usual_run.states):
        absent = sorted(set(range(len(new.membership.home))) - watch.active.get(new.round, set()))
        for name, scope in new.scopes.items():
            pair = old.memory[name], new.memory[name]
            if scope == "client" and pair[0].shape == pair[1].shape:
                errors = [c for c in absent if not same_bits(pair[1][c], pair[0][c])]
                if errors:
                    raise method.failure(
                        f"round {new.round} changes memory '{name}' of client {errors[0]},"
                        " which took no part in it; what the server remembers has scope 'run'"
                    )
        same_rows = new.round not in watch.regrouped and len(old.models) == len(new.models)
        homes = old.membership.home, new.membership.home
        errors = [c for c in absent if same_rows and 0 <= homes[0][c] != homes[1][c]]
        if errors:
            raise method.failure(
                f"round {new.round} moves client {errors[0]} to group {int(homes[1][errors[0]])};"
                " it took no part in it and the groups are the old ones"
            )


@check(usual_run)
def partition_untouched(method: MethodUnderTest) -> None:
    """Partition, client sampling and initial weights are those of the suite."""
    mine, usual = method.usual_run, run_small(DEFAULTS, method.suite(), last=0)
    for name in SHARED_MARKS:
        if getattr(mine.run.marks, name) != getattr(usual.run.marks, name):
            raise method.failure(
                f"its {name} is not that of the suite, so its results cannot be compared"
            )


@check(same_seed_same_bytes)
def test_labels_unseen(method: MethodUnderTest) -> None:
    """Other test samples and labels change nothing but the test results."""

    def change_test_set(run: Run) -> None:
        held = run.held_out
        x = held.x.flip(0).roll(1)
        if x.is_floating_point():
            x = 50 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        run.held_out = replace(held, x=x, y=held.y.flip(0).roll(1))

    one, other = method.usual_run, method.run(before_first_round=change_test_set)
    curves = [finished.run.history.curves for finished in (one, other)]
    assert curves[0]["loss"] != curves[1]["loss"], "the changed test samples are used"
    names = ("train_loss", TASKS[one.run.task].named("accuracy_validation"))
    errors = [name for name in names if curves[0][name] != curves[1][name]]
    for before, after in zip(one.states, other.states, strict=True):
        errors += [f"{n} after round {after.round}" for n in differing_tensors(before, after)]
    seen = [(r.ledger.totals, r.history.notes, r.history.warnings) for r in (one.run, other.run)]
    if seen[0] != seen[1]:
        errors.append("bytes, notes or warnings")
    if errors:
        raise method.failure(
            f"other test samples change its {errors[0]}: the method uses test data"
        )


WARM_UP = 6
"""Number of rounds after which memory must not grow in every further round; as many are run."""


@check(usual_run)
def steady_memory(method: MethodUnderTest) -> None:
    """Its memory does not grow with the number of rounds."""
    sizes: dict[str, list[int]] = {
        "tensors alive": [],
        "numbers in its state": [],
        "objects in its containers": [],
    }

    @dataclass(frozen=True)
    class MemoryRecorder:
        """Measures memory before every round."""

        @hookimpl
        def plan(self, state: State) -> None:
            gc.collect()
            alive = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
            kept = sum(tensor.numel() for tensor in (state.models, *state.memory.values()))
            entries = _container_entries(method.plugin_class)
            for column, size in zip(sizes.values(), (alive, kept, entries), strict=True):
                column.append(size)

    suite, recorder = method.suite(rounds=2 * WARM_UP), ("recorder", MemoryRecorder())
    frozen = gc.get_freeze_count()
    gc.freeze()  # objects that exist already are not counted
    try:
        method.run(suite, extra_plugins=[recorder], record_states=False)
    finally:
        if not frozen:
            gc.unfreeze()
    for what, column in sizes.items():
        later = column[WARM_UP:]
        if all(a < b for a, b in pairwise(later)):
            raise method.failure(
                f"{what} grow in every round, from {later[0]} to {later[-1]} in {len(later)}"
                " rounds: long runs would use up the memory"
            )


def _container_entries(kind: type) -> int:
    """Entries of the containers in a plugin's class and module, and in those it builds on."""
    modules = {one.__module__: sys.modules.get(one.__module__) for one in kind.__mro__[:-1]}
    homes = [*kind.__mro__[:-1], *filter(None, modules.values())]
    found = [thing for home in homes for thing in vars(home).values()]
    own = [thing for thing in found if not isinstance(thing, ModuleType)]
    return sum(len(thing) for thing in own if isinstance(thing, (list, dict, set)))


@check(same_seed_same_bytes)
def process_state_untouched(method: MethodUnderTest) -> None:
    """It prints nothing, and leaves seeds, torch's settings and the environment as they are."""
    _ = method.newcomers_run.result
    changes = in_fresh_process(changed_by_import, method.name)
    errors = [f"being imported, it {change}" for change in changes] + method.watch.changed
    if errors:
        raise method.failure(errors[0])


def changed_by_import(method: str) -> list[str]:
    """What the import of a method changes in the process-wide state, in this process."""
    entry = find("methods", method)
    return changes_of(EntryPoint(entry.name, entry.value, "flbench.methods").load)[1]
