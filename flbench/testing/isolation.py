"""Laws about what a plugin sees and touches: inputs, other clients, test data, memory."""

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
from flbench.plugin.hook_guard import ADDED
from flbench.plugin.process_state import Snapshot, restore, snapshot
from flbench.plugin.registry import find
from flbench.run.rounds import Run
from flbench.testing.check import Case, law
from flbench.testing.edge_cases import usual_run
from flbench.testing.hook_recorder import changed, tensors, with_hook_recorder
from flbench.testing.reproducibility import same_seed_same_bytes, same_state
from flbench.testing.small_run import DEFAULTS, play_small
from flbench.testing.subprocesses import apart


@law(usual_run)
def inputs_untouched(case: Case) -> None:
    """What hooks and local training are given is never written."""
    given: list[tuple[str, Tensor, Tensor]] = []
    odd: list[str] = []

    def before(hook: str, arguments: Mapping[str, object], _: object) -> None:
        found = [one for n, value in arguments.items() for one in tensors(value, n)]
        given[:] = [(place, tensor, tensor.clone()) for place, tensor in found]

    def after(hook: str, *_: object) -> None:
        odd.extend(f"its hook {hook} wrote to {p}" for p, t, copy in given if changed(t, copy))

    class Reading(Sequential):
        """Trains, and looks whether what the clients are told is still the same."""

        def fit(self, start: Dispatched, *rest: Any) -> Upload:  # noqa: ANN401 - as `Sequential`
            """See `Sequential.fit`."""
            copies = [(p, t, t.clone()) for p, t in tensors(start, "what clients are told")]
            upload = super().fit(start, *rest)
            odd.extend(f"local training wrote to {p}" for p, t, copy in copies if changed(t, copy))
            return upload

    def reading(run: Run) -> Sequential:
        inner = run.executor
        return Reading(inner.workspace, inner.samples, inner.seed)

    play_small(with_hook_recorder(case.composed(), before, after), case.suite(), wrap=reading)
    if odd:
        raise case.breaks(f"{odd[0]}: answer with new tensors (`clone()` before writing)")


@law(usual_run)
def absent_clients_untouched(case: Case) -> None:
    """Who takes part in no stage of a round keeps its memory, and its group where groups stay."""
    acted: dict[int, set[int]] = {}
    regrouped: set[int] = set()

    def after(hook: str, arguments: Mapping[str, object], answer: object) -> None:
        if isinstance(answer, Membership) and answer.parent is not None:
            regrouped.add(rounds[-1])

    rounds = [0]

    @dataclass(frozen=True)
    class Watch:
        """Notes who acts."""

        @hookimpl
        def dispatch(self, stage: Stage, ctx: Any) -> None:  # noqa: ANN401 - a context
            rounds.append(ctx.round)
            acted.setdefault(ctx.round, set()).update(stage.clients.tolist())

        @hookimpl
        def plan(self, ctx: Any) -> None:  # noqa: ANN401 - a context
            rounds.append(ctx.round)

    played = play_small(
        with_hook_recorder(case.composed(), after=after), case.suite(), watch=[("watch", Watch())]
    )
    for old, new in pairwise(played.states):
        absent = sorted(set(range(len(new.membership.home))) - acted.get(new.round, set()))
        for name, scope in new.scopes.items():
            pair = old.memory[name], new.memory[name]
            if scope == "client" and pair[0].shape == pair[1].shape:
                odd = [c for c in absent if changed(pair[1][c], pair[0][c])]
                if odd:
                    raise case.breaks(
                        f"round {new.round} changes memory '{name}' of client {odd[0]}, which took"
                        " no part in it; what the server remembers has scope 'run'"
                    )
        same_rows = new.round not in regrouped and len(old.models) == len(new.models)
        homes = old.membership.home, new.membership.home
        odd = [c for c in absent if same_rows and 0 <= homes[0][c] != homes[1][c]]
        if odd:
            raise case.breaks(
                f"round {new.round} moves client {odd[0]} to group {int(homes[1][odd[0]])}; it took"
                " no part in it and the groups are the old ones"
            )


@law(usual_run)
def partition_untouched(case: Case) -> None:
    """Clients own what the suite deals them, are sampled as ever, and start from its weights."""
    mine, usual = case.usual, play_small(DEFAULTS, case.suite())
    for name in ("data", "partition", "cohorts", "initial_weights"):
        if getattr(mine.run.marks, name) != getattr(usual.run.marks, name):
            raise case.breaks(
                f"its {name} is not the suite's, so its rows could be compared with nobody's"
            )


@law(same_seed_same_bytes)
def test_labels_unseen(case: Case) -> None:
    """Other test samples and labels change nothing but the score."""

    def poison(run: Run) -> None:
        held = run.held_out
        noise = torch.randn(held.x.shape, generator=torch.Generator().manual_seed(0))
        run.held_out = replace(held, x=50 * noise, y=held.y.flip(0).roll(1))

    one, other = case.usual, case.play(before=poison)
    curves = [played.run.history.curves for played in (one, other)]
    assert curves[0]["loss"] != curves[1]["loss"], "the poison was drunk"
    odd = [
        name for name in ("train_loss", "accuracy_validation") if curves[0][name] != curves[1][name]
    ]
    for before, after in zip(one.states, other.states, strict=True):
        found = same_state(before, after)
        odd += [f"{found} after round {after.round}"] if found else []
    seen = [
        (p.run.ledger.totals, p.run.history.notes, p.run.history.warnings) for p in (one, other)
    ]
    odd += ["bytes, notes or warnings"] if seen[0] != seen[1] else []
    if odd:
        raise case.breaks(
            f"other test samples change its {odd[0]}: it looks at what it is tested on"
        )


STEADY = 6
"""Rounds in which memory may settle, and then in which it may not grow in every one."""


@law(usual_run)
def steady_memory(case: Case) -> None:
    """What it keeps does not grow with the rounds."""
    sizes: list[tuple[int, int, int]] = []

    @dataclass(frozen=True)
    class Watch:
        """Weighs everything after every round."""

        @hookimpl
        def plan(self, state: State) -> None:
            gc.collect()
            alive = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
            kept = sum(tensor.numel() for tensor in (state.models, *state.memory.values()))
            sizes.append((alive, kept, _held(case.kind)))

    gc.freeze()  # what is there already is not looked at again
    try:
        case.play(case.suite(rounds=2 * STEADY), watch=[("watch", Watch())], film=False)
    finally:
        gc.unfreeze()
    for place, what in enumerate(("tensors alive", "numbers in its state", "things it holds")):
        column = [size[place] for size in sizes[STEADY:]]
        if all(later > sooner for sooner, later in pairwise(column)):
            raise case.breaks(
                f"{what} grow in every round, from {column[0]} to {column[-1]} in {len(column)}"
                " rounds: long runs would fill the memory"
            )


def _held(kind: type) -> int:
    """Entries of the containers in a plugin's class and its module."""
    module = sys.modules.get(kind.__module__)
    found = [*vars(kind).values(), *(vars(module).values() if module else ())]
    own = [thing for thing in found if not isinstance(thing, ModuleType)]
    return sum(len(thing) for thing in own if isinstance(thing, (list, dict, set)))


@law(same_seed_same_bytes)
def world_untouched(case: Case) -> None:
    """It prints nothing, seeds nothing, and leaves torch, files and environment as they are."""
    odd = [f"being imported, it {told}" for told in apart(changed_by_import, case.method)]
    asked: list[tuple[Snapshot, TextIO]] = []

    def before(*_: object) -> None:
        asked.append((snapshot(), sys.stdout))
        sys.stdout = io.StringIO()

    def after(hook: str, *_: object) -> None:
        world, stdout = asked.pop()
        said, sys.stdout = sys.stdout, stdout
        free = ADDED if hook == "client_module" else ()
        odd.extend(
            f"its hook {hook} {told}" for name, told in restore(world) if told and name not in free
        )
        if isinstance(said, io.StringIO) and said.getvalue():
            odd.append(
                f"its hook {hook} prints {said.getvalue().strip()!r}: use ctx.note or ctx.warn"
            )

    play_small(with_hook_recorder(case.composed(), before, after), case.suite())
    if odd:
        raise case.breaks(odd[0])


def changed_by_import(method: str) -> list[str]:
    """Settings that change when a method is imported, in this process."""
    entry, stdout = find("methods", method), sys.stdout
    world, sys.stdout = snapshot(), io.StringIO()
    try:
        EntryPoint(entry.name, entry.value, "flbench.methods").load()
        said = sys.stdout.getvalue()
    finally:
        sys.stdout = stdout
    odd = [told for _, told in restore(world) if told]
    return odd + ([f"prints {said.strip()!r}"] if said else [])
