"""What lanes ask of a ClientModule's Python for each of them: its phases, its hooks, its losses.

One module serves all clients of a run, so whatever a hook sets must be the same for all lanes, and
what it writes for one of them would be lost. Both are detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from flbench.core.client_module import (
    TRAINING,
    ClientModule,
    LocalPhase,
    Received,
    Report,
    module_phases,
)
from flbench.core.layout import trained_parameters
from flbench.core.lightning_hooks import overrides
from flbench.core.state import Schedule
from flbench.engine.lanes.lanes import Lanes
from flbench.engine.lanes.optimizer import CHANGED, has_initial_settings
from flbench.engine.model_evaluation import mean_loss
from flbench.engine.sequential import start_phase

T = TypeVar("T")
SET_HERE = (
    *("start", "received", "steps", "loss_function", "loss_was_used", "numbering"),
    "_trainer",
)
"""Attributes of a ClientModule that executors set."""


class NotVectorisable(Exception):
    """The module does something for one client that lanes cannot share; the text says what."""


class InLanes:
    """Stands for the trainer of a module in lanes, which have no common epoch, step or log."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of a Trainer
        if name.startswith("__"):  # what Python itself looks for
            raise AttributeError(name)
        what = {"barebones": "self.log"}.get(name, f"self.trainer.{name}")
        raise NotVectorisable(f"it uses {what}, which is for one client at a time")


IN_LANES = InLanes()


@contextmanager
def in_lanes(module: ClientModule) -> Iterator[None]:
    """Let a module find out that it is in lanes."""
    state = vars(module)
    before, state["_trainer"] = state["_trainer"], IN_LANES
    try:
        yield
    finally:
        state["_trainer"] = before


def attributes(module: ClientModule) -> dict[str, object]:
    """Attributes of a module and its parts that hooks may set, except those that executors set."""
    return {
        f"{name}.{key}" if name else key: value
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if name or key not in SET_HERE
    }


def equal(one: object, other: object) -> bool:
    """Whether two values are equal; False if they cannot be compared."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        fits = one.shape == other.shape and one.dtype == other.dtype
        return fits and torch.equal(one, other.to(one.device))
    try:
        return bool(one == other)
    except Exception:
        return False


def same_phases(one: Sequence[LocalPhase], other: Sequence[LocalPhase]) -> bool:
    """Whether two clients train in the same phases."""
    fields = ("epochs", "mask", "batches_per_step", "start")
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        equal(getattr(a, name), getattr(b, name)) for a, b in pairs for name in fields
    )


class LaneHooks:
    """Calls a module's Python for each of some lanes."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.job = lanes, lanes.job
        self.workspace = self.job.executor.workspace
        self.module = self.workspace.module

    def phases(self, schedule: Schedule) -> Sequence[LocalPhase]:
        """The phases, which must be the same for all lanes."""
        work = self.job.work

        def phases(module: ClientModule) -> list[LocalPhase]:
            default = module.batches_per_step
            return [
                replace(phase, batches_per_step=phase.batches_per_step or default)
                for phase in work.phases(module, schedule.whole_epochs)
            ]

        always = work.phases is not module_phases
        hooks = "phases", "batches_per_step"
        first, *others = self.call_per_lane(phases, *hooks, always=always)
        if not all(same_phases(first, other) for other in others):
            raise NotVectorisable("phases differ between clients")
        return first

    def start_phase(self, phase: LocalPhase, number: int) -> None:
        """Start the phase in every lane; afterwards all parameters must take a gradient."""
        self.call_per_lane(
            lambda module: start_phase(module, phase, number),
            "on_phase_start",
            always=phase.start is not None,
        )
        trained = trained_parameters(self.module)
        slots = self.workspace.layout.slots
        if not all(slot.name in trained for slot in slots if slot.kind == "parameter"):
            raise NotVectorisable("some of its parameters take no gradient")

    def call_per_lane(
        self, function: Callable[[ClientModule], T], *hooks: str, always: bool = False
    ) -> list[T]:
        """Call a function that calls hooks of the module, for each lane.

        The hooks must set all attributes to the same values for all lanes. The function is called
        once if the module does not override any of the hooks, unless it is `always` called for
        every lane.
        """
        results: list[T] = []
        if not always and not any(overrides(self.module, hook) for hook in hooks):
            return [function(self.module)]
        first: dict[str, object] = {}
        for lane in range(len(self.lanes)):
            with self.check_side_effects(lane, hooks[0]):
                results.append(function(self.module))
            now = attributes(self.module)
            first = first or now
            for name in first.keys() | now.keys():
                if not equal(first.get(name), now.get(name)):
                    raise NotVectorisable(f"{hooks[0]} sets another '{name}' for other clients")
        return results

    @contextmanager
    def check_side_effects(self, lane: int, hook: str) -> Iterator[None]:
        """Load a lane, and check after a hook that it wrote nothing that the lane would lose.

        That is parameters, buffers, `start`, `received` and settings of the optimiser.
        """
        self.load(lane)
        module, row = self.module, self.lanes.row(lane)
        module.steps, start = int(self.lanes.steps[lane]), module.start
        received = dict(module.received)
        yield
        after = self.workspace.layout.flatten(module)
        if not torch.equal(after.view(torch.uint8), row.view(torch.uint8)):  # as bytes: NaN = NaN
            raise NotVectorisable(f"{hook} writes parameters or buffers")
        same = [module.received.get(name) is value for name, value in received.items()]
        if module.start is not start or len(module.received) > len(received) or not all(same):
            raise NotVectorisable(f"{hook} replaces `start` or an entry of `received`")
        if not has_initial_settings(self.workspace.optimizer):
            raise NotVectorisable(CHANGED)

    def load(self, lane: int) -> None:
        """Load one lane's model, start and received tensors into the module."""
        self.workspace.load(self.lanes.row(lane))
        self.module.start = self.lanes.start[lane]
        received = {name: value[lane] for name, value in self.lanes.received.items()}
        self.module.received = Received(received, TRAINING)

    def losses(self) -> list[float]:
        """Loss of each lane's model on its own samples, in nats; NaN if the stage needs none."""
        if not self.job.stage.losses:
            return [torch.nan] * len(self.lanes)
        losses, pool = [], self.job.executor.samples
        for lane, rows in enumerate(self.lanes.owned):
            self.load(lane)
            losses.append(mean_loss(self.workspace, pool.x[rows], pool.y[rows]))
        return losses

    def report(self, lane: int) -> Report:
        """What a lane's client sends and keeps beside its model."""
        work = self.job.work
        if not work.reports and not overrides(self.module, "on_local_end"):
            return Report()
        with self.check_side_effects(lane, "on_local_end"):
            return self.job.executor.report(self.lanes.owned[lane], work)
