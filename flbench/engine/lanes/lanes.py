"""Lanes: models that are trained together, of the clients of one run or of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from flbench.core.client import LocalWork
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


class NotTogether(Exception):
    """The stages of several runs cannot share lanes; the text says why."""


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
        programs: recorded steps, of the run or of all that share them.
        uses: a step is recorded when it is made for this time.
        owned: rows of the pool that each client trains on.
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


Place = tuple[StageJob, int, int]
"""A job, the position of one of its clients, and the number of a candidate."""


@dataclass
class Lanes:
    """Models that are trained together: L lanes.

    Attributes:
        places: job, client and candidate of each lane; those of a job are neighbours.
        names: of each lane's client (`Samples.name`).
        owned: rows of its run's pool that each lane trains on.
        start: rows before the training, shape (L, W).
        theta: tensors of parameters: name -> shape (L, ...).
        buffers: buffer scalars, shape (L, B).
        received: tensors that each client received, name -> (L, ...).
        mask: scalars that training changes, shape (L, W), bool; None = all.
        generators: source of each lane's dropout; empty if the module has none.
        loss: sum over the steps, shape (L,), float64, nats.
        steps: optimiser steps of each lane, shape (L,).
    """

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
    def of(cls, places: list[Place]) -> Lanes:
        """The lanes of some candidates, at their start."""
        jobs = jobs_of(places)
        space = jobs[0].executor.workspace
        layout, device = space.layout, space.device
        names = [
            job.executor.samples.name(int(job.stage.clients[client])) for job, client, _ in places
        ]
        rows = _gathered(places, [job.start.params for job in jobs], device)
        masks = [job.start.trained_mask for job in jobs if job.start.trained_mask is not None]
        drawing = zip(places, names, strict=True) if space.lane_randomness.layers else ()
        seeds = [
            torch_seed(job.executor.seed, "dropout", job.round, name, job.stage.label)
            for (job, _, _), name in drawing
        ]
        return cls(
            places=places,
            names=names,
            owned=[job.owned[client] for job, client, _ in places],
            start=rows,
            theta={name: table.clone() for name, table in split(rows, layout).items()},
            buffers=rows[:, layout.parameters :].clone(),
            received={
                name: _gathered(places, [job.received[name] for job in jobs], device, whole=True)
                for name in jobs[0].received
            },
            mask=_gathered(places, masks, device, whole=True) if masks else None,
            generators=[torch.Generator(device).manual_seed(seed) for seed in seeds],
            loss=torch.zeros(len(places), dtype=torch.float64, device=device),
            steps=np.zeros(len(places), dtype=np.int64),
        )

    def of_job(self, job: StageJob) -> list[int]:
        """The numbers of a job's lanes."""
        return [lane for lane, place in enumerate(self.places) if place[0] is job]

    def rows(self) -> Tensor:
        """The models, shape (L, W)."""
        return torch.cat([*(table.flatten(1) for table in self.theta.values()), self.buffers], 1)

    def row(self, lane: int) -> Tensor:
        """A lane's model, shape (W,)."""
        parts = [table[lane].flatten() for table in self.theta.values()]
        return torch.cat([*parts, self.buffers[lane]])


def jobs_of(places: Sequence[Place]) -> list[StageJob]:
    """The jobs that have places, in their order."""
    return list(dict.fromkeys(job for job, _, _ in places))


def _gathered(
    places: list[Place], tables: list[Tensor], device: torch.device, *, whole: bool = False
) -> Tensor:
    """A row per place, shape (L, ...).

    Args:
        tables: of each job, by client and candidate.
        whole: the tables have one entry per client, which all of its candidates share.
    """
    found: list[Tensor] = []
    at: dict[int, int] = {}
    for number, job in enumerate(jobs_of(places)):
        own = [lane for lane, place in enumerate(places) if place[0] is job]
        clients, candidates = torch.tensor([places[lane][1:] for lane in own]).unbind(dim=1)
        table = tables[number]
        found.append((table[clients] if whole else table[clients, candidates]).to(device))
        at.update({lane: len(at) + k for k, lane in enumerate(own)})
    if len(found) == 1:
        return found[0]
    order = torch.tensor([at[lane] for lane in range(len(places))], device=device)
    return torch.cat(found).index_select(0, order)


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
        shares: the part of them that each job has; empty if all are of one job.
        samples: of each batch, the places of its samples in the shuffled rows of all lanes of an
            epoch, one lane after the other, shape (G, b). A batch that is filled up repeats its
            last sample.
        unused: of each batch, where it is filled up, shape (G, b), bool; None = nowhere.

    Args:
        turn: the step.
        plan: steps of each lane in an epoch.
        first: where each lane begins in the rows of an epoch.
        jobs: the number of each lane's job.
        device: of the lanes.
    """

    def __init__(
        self,
        turn: Turn,
        plan: list[Steps],
        first: Indices,
        jobs: Sequence[int],
        device: torch.device,
    ) -> None:
        self.turn, self.group = turn, LaneGroup(turn.lanes, device)
        ends = list(accumulate(Counter(jobs[lane] for lane in turn.lanes).values()))
        self.shares = list(map(slice, [0, *ends], ends)) if len(ends) > 1 else []
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
