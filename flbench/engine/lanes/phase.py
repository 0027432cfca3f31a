"""A phase of lanes in one call: its indices are sent at once, and its tables stay where they are.

Around each step the host sends the numbers of its samples, copies what it reads to a graph, and
launches the optimiser. Where all lanes make all steps of a phase together and each of these is
recorded, the phase is one function of tables: step after step it gathers the samples that a table
of indices names, computes gradients, and updates the lanes. It is made of the same steps
(`training.PhaseSteps.make`) on tables of its own, so that CUDA can repeat it as one graph
(`recording.in_place`), with the same bits.

No device has tried this yet, so it is done only if the environment variable `FLBENCH_PHASE_GRAPHS`
is 1. On a CPU the function is called without a graph, which saves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Indices
from flbench.engine.lanes.group import Sizes, Steps
from flbench.engine.lanes.lanes import Frozen, Lanes, Placed, sent
from flbench.engine.lanes.optimizer import LaneOptimizer
from flbench.engine.recording.cuda_graphs import CAPTURES, GraphedProgram, Program, without_graphs
from flbench.engine.recording.in_place import InPlace, InPlaceCalls
from flbench.engine.recording.program import LaneProgram

WANTED = "FLBENCH_PHASE_GRAPHS"
MOST = 256
"""Phases of more steps are trained step by step: capturing takes as long as several of them."""

Batches = list[tuple[Tensor, Tensor | None]]
"""Of each batch of a step, the numbers of its samples and, where it reads them, their positions."""


class Epoch(NamedTuple):
    """An epoch of some lanes.

    Attributes:
        ordered: its steps.
        plan: steps of each lane.
        rows: the shuffled samples of all lanes, one lane after the other.
        positions: of these (`Batch.index`); None = no step reads them.
    """

    ordered: list[Placed]
    plan: list[Steps]
    rows: Indices
    positions: Indices | None


class PhaseOfSteps(Protocol):
    """What is needed of `training.PhaseSteps`."""

    lanes: Lanes
    optimizer: LaneOptimizer
    frozen: Frozen

    def train(self, epochs: Sequence[Epoch]) -> None:
        """Make all steps, one by one."""

    def make(self, placed: Placed, batches: Batches) -> None:
        """Make a step."""

    def copied(self) -> PhaseOfSteps:
        """The same steps on copies of all tables that they read or change."""

    def begin(self) -> None:
        """Forget the steps that were made."""

    def programs(self, sizes: set[Sizes]) -> list[Program] | None:
        """The recorded steps of these sizes; None = they cannot be called for all lanes at once."""

    def settings(self) -> tuple[Hashable, ...]:
        """What its steps depend on beside tables and programs."""


def is_wanted() -> bool:
    """Whether phases shall be trained in one call."""
    return os.environ.get(WANTED) == "1"


def train(steps: PhaseOfSteps, epochs: Sequence[Epoch], calls: InPlaceCalls) -> None:
    """Train a phase, in one call if that is possible.

    Args:
        steps: of the phase.
        epochs: of the phase.
        calls: phases of this kind that were trained in one call before.
    """
    ordered = [placed for epoch in epochs for placed in epoch.ordered]
    programs = steps.programs({placed.turn.sizes for placed in ordered})
    if not can_be_one(steps.lanes, ordered, programs):
        steps.train(epochs)
        return
    given = [*tables(steps), *indices(epochs, steps.lanes.loss.device)]
    changed = [*steps.lanes.theta.values(), steps.lanes.buffers, steps.lanes.loss]
    is_made = calls(
        key(steps, ordered, programs or []),
        lambda: whole(steps, ordered, given[len(tables(steps)) :]),
        given,
        changed,
        lambda: steps.train(epochs),
    )
    if is_made:
        steps.lanes.steps += len(ordered)


def can_be_one(lanes: Lanes, ordered: Sequence[Placed], programs: Sequence[Program] | None) -> bool:
    """Whether a phase may be trained in one call."""
    if programs is None or lanes.generators or not 0 < len(ordered) <= MOST:
        return False
    if lanes.loss.device.type in CAPTURES and not all(map(_has_graphs, programs)):
        return False
    return all(len(placed.group) == len(lanes) for placed in ordered)


def _has_graphs(program: Program) -> bool:
    """Whether a program could be captured, as far as is known."""
    return isinstance(program, GraphedProgram) and not program.has_failed


def tables(steps: PhaseOfSteps) -> list[Tensor]:
    """All tables that steps read or change, without the samples and the optimiser's state."""
    lanes, frozen = steps.lanes, steps.frozen
    fixed = [lanes.start, *lanes.received.values(), *frozen.parameters.values()]
    fixed += [] if frozen.buffers is None else [frozen.buffers]
    return [*lanes.theta.values(), lanes.buffers, lanes.loss, *fixed]


def indices(epochs: Sequence[Epoch], device: torch.device) -> list[Tensor]:
    """The numbers of the samples of all steps, shape (n,), and their positions, if these are read.

    They are in the order of the steps, their batches, and the lanes.
    """
    columns = [[epoch.rows for epoch in epochs]]
    positions = [epoch.positions for epoch in epochs if epoch.positions is not None]
    columns += [positions] if positions else []
    return [
        sent(
            np.concatenate(
                [
                    own[samples].ravel()
                    for own, epoch in zip(column, epochs, strict=True)
                    for samples in chain.from_iterable(placed.samples for placed in epoch.ordered)
                ]
            ),
            device,
        )
        for column in columns
    ]


def key(
    steps: PhaseOfSteps, ordered: Sequence[Placed], programs: Sequence[Program]
) -> tuple[Hashable, ...]:
    """What the function of a phase depends on beside its tables."""
    frozen = steps.frozen
    outside = [
        tensor.data_ptr()
        for program in map(without_graphs, programs)
        if isinstance(program, LaneProgram)
        for tensor in program.outside
    ]
    return (
        len(steps.lanes),
        *((placed.turn.sizes, *_filled(placed)) for placed in ordered),
        *outside,
        steps.optimizer.settings,
        *((name, mask.shape) for name, mask in frozen.parameters.items()),
        frozenset(frozen.wholly),
        None if frozen.buffers is None else frozen.buffers.shape,
        *steps.settings(),
    )


def _filled(placed: Placed) -> list[bytes | None]:
    """Which samples fill up each batch of a step: those that repeat the last one."""
    pairs = zip(placed.samples, placed.unused, strict=True)
    return [None if mask is None else (np.diff(own) == 0).tobytes() for own, mask in pairs]


def whole(steps: PhaseOfSteps, ordered: Sequence[Placed], columns: Sequence[Tensor]) -> InPlace:
    """The phase as a function of tables of its own.

    Args:
        steps: of the phase.
        ordered: the steps in their order.
        columns: what `indices` gave.
    """
    own, columns = steps.copied(), [column.clone() for column in columns]
    lanes = own.lanes

    def play() -> None:
        own.begin()
        at = 0
        for placed in ordered:
            batches: Batches = []
            for samples in placed.samples:
                parts = [column[at : at + samples.size].view(samples.shape) for column in columns]
                batches.append((parts[0], parts[1] if len(parts) > 1 else None))
                at += samples.size
            own.make(placed, batches)

    return InPlace(
        play,
        [*tables(own), *columns],
        [*lanes.theta.values(), lanes.buffers, lanes.loss],
        CAPTURES.get(lanes.loss.device.type),
    )


def copied_lanes(lanes: Lanes) -> Lanes:
    """The lanes with tables of their own."""
    return replace(
        lanes,
        start=lanes.start.clone(),
        theta={name: table.clone() for name, table in lanes.theta.items()},
        buffers=lanes.buffers.clone(),
        received={name: table.clone() for name, table in lanes.received.items()},
        loss=lanes.loss.clone(),
        steps=lanes.steps.copy(),
    )
