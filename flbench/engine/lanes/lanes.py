"""Lanes: models that are trained together."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from flbench.core.client_module import LocalWork
from flbench.core.dataset import Indices
from flbench.core.layout import ParameterLayout
from flbench.core.seeding import torch_seed
from flbench.core.state import Dispatched, Stage
from flbench.engine.lanes.group import LaneGroup, Steps, Turn
from flbench.engine.lanes.step import Named, Programs
from flbench.engine.recording.program import USES
from flbench.engine.sequential import IDLE, Sequential, TrainedCandidate

ProgramTable = dict[tuple[object, ...], Programs]
"""Recorded steps, by what the step of a phase depends on."""


@dataclass(eq=False)
class StageJob:
    """A stage of one run, to be trained in lanes.

    Attributes:
        executor: of the run.
        rows: where the candidates of each client are written, shape (c, W) each.
        start: what its clients start from.
        stage: the stage.
        work: what the methods add to it.
        round: its number.
        rate: the suite's learning rate.
        programs: recorded steps of the run.
        uses: a step is recorded when it is made for this time.
        owned: rows of the samples that each client trains on.
        chosen: positions of these among all that the client owns; None = they are all.
        outcomes: of each client and candidate; `train` fills them.
    """

    executor: Sequential
    rows: Sequence[Tensor]
    start: Dispatched
    stage: Stage
    work: LocalWork
    round: int
    rate: float
    programs: ProgramTable
    uses: int = USES
    owned: list[Tensor] = field(init=False)
    chosen: list[Indices | None] = field(init=False)
    outcomes: list[list[TrainedCandidate]] = field(init=False)

    def __post_init__(self) -> None:
        acting, candidates, _ = self.start.params.shape
        clients = self.stage.clients.tolist()
        self.owned = [self.executor.owned(one, self.stage) for one in clients]
        self.chosen = [self.executor.chosen(one, self.stage) for one in clients]
        self.outcomes = [[IDLE] * candidates for _ in range(acting)]

    @property
    def received(self) -> Named:
        """What each client received, name -> shape (n, ...)."""
        return {**self.start.client_memory, **self.start.extras}


Place = tuple[int, int]
"""The position of a client in a stage, and the number of a candidate."""


@dataclass
class Lanes:
    """Models that are trained together: L lanes.

    Attributes:
        job: the stage that they are trained for.
        places: client and candidate of each lane.
        names: of each lane's client (`Samples.name`).
        owned: rows of the samples that each lane trains on.
        start: rows before the training, shape (L, W).
        theta: tensors of parameters: name -> shape (L, ...).
        buffers: buffer scalars, shape (L, B).
        received: tensors that each client received, name -> (L, ...).
        mask: scalars that training changes, shape (L, W), bool; None = all.
        generators: source of each lane's dropout; empty if the module has none.
        loss: sum over the steps, shape (L,), float64, nats.
        steps: optimiser steps of each lane, shape (L,).
    """

    job: StageJob
    places: list[Place]
    names: list[int]
    owned: list[Tensor]
    start: Tensor
    theta: Named
    buffers: Tensor
    received: Named
    mask: Tensor | None
    generators: list[torch.Generator]
    loss: Tensor
    steps: Indices

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def of(cls, job: StageJob, places: list[Place]) -> Lanes:
        """The lanes of some candidates, at their start."""
        space, samples = job.executor.workspace, job.executor.samples
        layout, device = space.layout, space.device
        clients, candidates = torch.tensor(places).unbind(dim=1)
        names = [samples.name(client) for client in job.stage.clients[clients].tolist()]
        rows, masks = job.start.params[clients, candidates].to(device), job.start.trained_mask
        seeds = [
            torch_seed(job.executor.seed, "dropout", job.round, name, job.stage.label)
            for name in (names if space.lane_randomness.layers else ())
        ]
        return cls(
            job=job,
            places=places,
            names=names,
            owned=[job.owned[client] for client, _ in places],
            start=rows,
            theta={name: table.clone() for name, table in split(rows, layout).items()},
            buffers=rows[:, layout.parameters :].clone(),
            received={name: table[clients].to(device) for name, table in job.received.items()},
            mask=None if masks is None else masks[clients].to(device),
            generators=[torch.Generator(device).manual_seed(seed) for seed in seeds],
            loss=torch.zeros(len(places), dtype=torch.float64, device=device),
            steps=np.zeros(len(places), dtype=np.int64),
        )

    def rows(self) -> Tensor:
        """The models, shape (L, W)."""
        return torch.cat([*(table.flatten(1) for table in self.theta.values()), self.buffers], 1)

    def row(self, lane: int) -> Tensor:
        """A lane's model, shape (W,)."""
        parts = [table[lane].flatten() for table in self.theta.values()]
        return torch.cat([*parts, self.buffers[lane]])


def split(rows: Tensor, layout: ParameterLayout) -> Named:
    """The parameters of rows, shape (L, W): name -> shape (L, ...)."""
    return {
        slot.name: rows[:, slot.start : slot.stop].reshape(-1, *slot.shape)
        for slot in layout.slots
        if slot.kind == "parameter"
    }


class Frozen:
    """The scalars that a phase does not train.

    Args:
        trained: mask of those that it trains, shape (W,) or (L, W); None = all.
        layout: of a row.
    """

    def __init__(self, trained: Tensor | None, layout: ParameterLayout) -> None:
        table = (
            None if trained is None else trained.expand(1, -1) if trained.dim() == 1 else trained
        )
        masks = {} if table is None else split(table, layout)
        self.parameters = {name: mask for name, mask in masks.items() if not mask.all()}
        self.wholly = {name for name, mask in self.parameters.items() if not mask.any()}
        self.buffers = None if table is None else table[:, layout.parameters :]

    def copied(self) -> Frozen:
        """The same masks in memory of their own."""
        other = copy(self)
        other.parameters = {name: mask.clone() for name, mask in self.parameters.items()}
        other.buffers = None if self.buffers is None else self.buffers.clone()
        return other


def sent(array: np.ndarray, device: torch.device) -> Tensor:
    """An array as a tensor on a device; what a CUDA device does before is not waited for."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Placed:
    """Lanes that make a step together, and which samples they take.

    Attributes:
        turn: the step.
        group: the lanes.
        samples: of each batch, the places of its samples in the shuffled rows of all lanes of an
            epoch, one lane after the other, shape (G, b). A batch that is filled up repeats its
            last sample.
        unused: of each batch, where it is filled up, shape (G, b), bool; None = nowhere.

    Args:
        turn: the step.
        plan: steps of each lane in an epoch.
        first: where each lane begins in the rows of an epoch.
        device: of the lanes.
    """

    def __init__(self, turn: Turn, plan: list[Steps], first: Indices, device: torch.device) -> None:
        self.turn, self.group = turn, LaneGroup(turn.lanes, device)
        self.samples: list[Indices] = []
        self.unused: list[Tensor | None] = []
        for number, size in enumerate(turn.sizes):
            places = zip(turn.lanes, turn.steps, strict=True)
            cuts = [plan[lane][k][number] for lane, k in places]
            at = first[turn.lanes] + np.array([cut.start for cut in cuts])
            own = np.array([cut.stop - cut.start for cut in cuts])[:, None]
            within = np.arange(size)
            self.samples.append(at[:, None] + np.minimum(within, own - 1))
            unused = within >= own
            self.unused.append(sent(unused, device) if unused.any() else None)
