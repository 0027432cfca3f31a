"""Checks of isolation: inputs, other clients, the partition, test data, memory, process state."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from itertools import pairwise
from types import ModuleType
from typing import Any, TextIO

import torch
from torch import Tensor

from flbench.core.hookspecs import hookimpl
from flbench.core.state import Dispatched, Membership, Stage, State, Upload
from flbench.engine.sequential import Sequential
from flbench.plugin.hooks import ADDED
from flbench.plugin.isolation import Snapshot, restore, snapshot
from flbench.plugin.registry import find
from flbench.run.rounds import Run
from flbench.testing.check import MethodUnderTest, check
from flbench.testing.edge_cases import usual_run
from flbench.testing.hook_recorder import changed, tensors, with_hook_recorder
from flbench.testing.reproducibility import same_seed_same_bytes, same_state
from flbench.testing.small_run import DEFAULTS, run_small
from flbench.testing.subprocesses import in_fresh_process


@check(usual_run)
def inputs_untouched(method: MethodUnderTest) -> None:
    """Hooks and local training never write to their inputs."""
    given: list[tuple[str, Tensor, Tensor]] = []
    errors: list[str] = []

    def before(hook: str, arguments: Mapping[str, object], _: object) -> None:
        found = [one for n, value in arguments.items() for one in tensors(value, n)]
        given[:] = [(place, tensor, tensor.clone()) for place, tensor in found]

    def after(hook: str, *_: object) -> None:
        errors.extend(f"its hook {hook} wrote to {p}" for p, t, copy in given if changed(t, copy))

    class InputCheckingExecutor(Sequential):
        """Trains, and checks that the clients' inputs are unchanged."""

        def fit(self, start: Dispatched, *rest: Any) -> Upload:  # noqa: ANN401 - as `Sequential`
            """See `Sequential.fit`."""
            copies = [(p, t, t.clone()) for p, t in tensors(start, "the input of clients")]
            upload = super().fit(start, *rest)
            errors.extend(
                f"local training wrote to {p}" for p, t, copy in copies if changed(t, copy)
            )
            return upload

    def input_checking_executor(run: Run) -> Sequential:
        inner = run.executor
        return InputCheckingExecutor(inner.workspace, inner.samples, inner.seed)

    run_small(
        with_hook_recorder(method.compose(), before, after),
        method.suite(),
        executor=input_checking_executor,
    )
    if errors:
        raise method.failure(f"{errors[0]}: return new tensors (`clone()` before writing)")


@check(usual_run)
def absent_clients_untouched(method: MethodUnderTest) -> None:
    """A client outside all stages of a round keeps its memory, and its group if groups stay."""
    active: dict[int, set[int]] = {}
    regrouped: set[int] = set()

    def after(hook: str, arguments: Mapping[str, object], answer: object) -> None:
        if isinstance(answer, Membership) and answer.parent is not None:
            regrouped.add(rounds[-1])

    rounds = [0]

    @dataclass(frozen=True)
    class Observer:
        """Records which clients take part in a round."""

        @hookimpl
        def dispatch(self, stage: Stage, ctx: Any) -> None:  # noqa: ANN401 - a context
            rounds.append(ctx.round)
            active.setdefault(ctx.round, set()).update(stage.clients.tolist())

        @hookimpl
        def plan(self, ctx: Any) -> None:  # noqa: ANN401 - a context
            rounds.append(ctx.round)

    finished = run_small(
        with_hook_recorder(method.compose(), after=after),
        method.suite(),
        extra_plugins=[("observer", Observer())],
    )
    for old, new in pairwise(finished.states):
        absent = sorted(set(range(len(new.membership.home))) - active.get(new.round, set()))
        for name, scope in new.scopes.items():
            pair = old.memory[name], new.memory[name]
            if scope == "client" and pair[0].shape == pair[1].shape:
                errors = [c for c in absent if changed(pair[1][c], pair[0][c])]
                if errors:
                    raise method.failure(
                        f"round {new.round} changes memory '{name}' of client {errors[0]},"
                        " which took no part in it; what the server remembers has scope 'run'"
                    )
        same_rows = new.round not in regrouped and len(old.models) == len(new.models)
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
    mine, usual = method.usual_run, run_small(DEFAULTS, method.suite())
    for name in ("data", "partition", "cohorts", "initial_weights"):
        if getattr(mine.run.marks, name) != getattr(usual.run.marks, name):
            raise method.failure(
                f"its {name} is not that of the suite, so its results cannot be compared"
            )


@check(same_seed_same_bytes)
def test_labels_unseen(method: MethodUnderTest) -> None:
    """Other test samples and labels change nothing but the test results."""

    def change_test_set(run: Run) -> None:
        held = run.held_out
        noise = torch.randn(held.x.shape, generator=torch.Generator().manual_seed(0))
        run.held_out = replace(held, x=50 * noise, y=held.y.flip(0).roll(1))

    one, other = method.usual_run, method.run(before_first_round=change_test_set)
    curves = [finished.run.history.curves for finished in (one, other)]
    assert curves[0]["loss"] != curves[1]["loss"], "the changed test samples are used"
    errors = [
        name for name in ("train_loss", "accuracy_validation") if curves[0][name] != curves[1][name]
    ]
    for before, after in zip(one.states, other.states, strict=True):
        found = same_state(before, after)
        errors += [f"{found} after round {after.round}"] if found else []
    seen = [
        (p.run.ledger.totals, p.run.history.notes, p.run.history.warnings) for p in (one, other)
    ]
    errors += ["bytes, notes or warnings"] if seen[0] != seen[1] else []
    if errors:
        raise method.failure(
            f"other test samples change its {errors[0]}: the method uses test data"
        )


WARM_UP = 6
"""Number of rounds after which memory must not grow in every further round; as many are run."""


@check(usual_run)
def steady_memory(method: MethodUnderTest) -> None:
    """Its memory does not grow with the number of rounds."""
    sizes: list[tuple[int, int, int]] = []

    @dataclass(frozen=True)
    class Observer:
        """Measures memory before every round."""

        @hookimpl
        def plan(self, state: State) -> None:
            gc.collect()
            alive = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
            kept = sum(tensor.numel() for tensor in (state.models, *state.memory.values()))
            sizes.append((alive, kept, _container_entries(method.plugin_class)))

    gc.freeze()  # objects that exist already are not counted
    try:
        method.run(
            method.suite(rounds=2 * WARM_UP),
            extra_plugins=[("observer", Observer())],
            record_states=False,
        )
    finally:
        gc.unfreeze()
    for place, what in enumerate(
        ("tensors alive", "numbers in its state", "objects in its containers")
    ):
        column = [size[place] for size in sizes[WARM_UP:]]
        if all(later > sooner for sooner, later in pairwise(column)):
            raise method.failure(
                f"{what} grow in every round, from {column[0]} to {column[-1]} in {len(column)}"
                " rounds: long runs would use up the memory"
            )


def _container_entries(kind: type) -> int:
    """Entries of the containers in a plugin's class and its module."""
    module = sys.modules.get(kind.__module__)
    found = [*vars(kind).values(), *(vars(module).values() if module else ())]
    own = [thing for thing in found if not isinstance(thing, ModuleType)]
    return sum(len(thing) for thing in own if isinstance(thing, (list, dict, set)))


@check(same_seed_same_bytes)
def process_state_untouched(method: MethodUnderTest) -> None:
    """It prints nothing, and leaves seeds, torch's settings, files and environment as they are."""
    errors = [
        f"being imported, it {change}"
        for change in in_fresh_process(changed_by_import, method.name)
    ]
    snapshots: list[tuple[Snapshot, TextIO]] = []

    def before(*_: object) -> None:
        snapshots.append((snapshot(), sys.stdout))
        sys.stdout = io.StringIO()

    def after(hook: str, *_: object) -> None:
        state, stdout = snapshots.pop()
        printed, sys.stdout = sys.stdout, stdout
        free = ADDED if hook == "client_module" else ()
        errors.extend(
            f"its hook {hook} {change}"
            for name, change in restore(state)
            if change and name not in free
        )
        if isinstance(printed, io.StringIO) and printed.getvalue():
            errors.append(
                f"its hook {hook} prints {printed.getvalue().strip()!r}: use ctx.note or ctx.warn"
            )

    run_small(with_hook_recorder(method.compose(), before, after), method.suite())
    if errors:
        raise method.failure(errors[0])


def changed_by_import(method: str) -> list[str]:
    """The process-wide state that the import of a method changes, in this process."""
    entry, stdout = find("methods", method), sys.stdout
    state, sys.stdout = snapshot(), io.StringIO()
    try:
        EntryPoint(entry.name, entry.value, "flbench.methods").load()
        printed = sys.stdout.getvalue()
    finally:
        sys.stdout = stdout
    errors = [change for _, change in restore(state) if change]
    return errors + ([f"prints {printed.strip()!r}"] if printed else [])
