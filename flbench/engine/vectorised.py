"""The vectorised executor: trains many clients at once, each in a lane of a batch dimension.

`torch.func.vmap` runs the ClientModule's own `training_step` over the lanes. All lanes make their
k-th step together; lanes whose batches have the same shape share one call, so that clients with
different numbers of samples need no padding. Every lane has the same batches and the same dropout
as in the sequential executor, and its parameters are equal up to the order of float sums.

A module for which this does not hold is detected, and its clients are trained one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from flbench.core.client import (
    TRAINING,
    ClientModule,
    LocalPhase,
    LocalWork,
    Received,
    Report,
    module_phases,
)
from flbench.core.dataset import Indices
from flbench.core.layout import ParameterLayout, trained_parameters
from flbench.core.networks import choosing
from flbench.core.seeding import torch_seed
from flbench.core.state import Dispatched, Schedule, Stage, Upload
from flbench.engine.batches import orders
from flbench.engine.cross_evaluation import mean_loss
from flbench.engine.lane_group import LaneGroup, Steps, Turn, turns
from flbench.engine.lane_optimizer import CHANGED, LaneOptimizer, has_initial_settings, not_shared
from flbench.engine.lane_step import USES, LaneStep, Named, Programs
from flbench.engine.sequential import (
    IDLE,
    Outcome,
    Sequential,
    both,
    copy_idle,
    local_settings,
    most_steps,
    scaled_rate,
    stack_upload,
    start_phase,
)
from flbench.engine.workspace import Workspace
from flbench.errors import FlbenchError
from flbench.federation.federation import Samples

T = TypeVar("T")
SLOWER = "lanes are slower"
SET_HERE = "start", "received", "steps", "loss_function", "loss_was_used"
"""Attributes of a ClientModule that executors set."""
SCALARS = 2**28
"""Scalars that are trained at once; lanes beyond that are trained afterwards."""


class NotVectorisable(Exception):
    """The module does something for one client that lanes cannot share; the text says what."""


@dataclass
class Lanes:
    """Models that are trained together: L lanes.

    Attributes:
        places: (position of the acting client, candidate) of each lane.
        clients: name of each lane's client (`Samples.name`).
        owned: rows of the pool that each lane trains on.
        start: rows before the training, shape (L, W).
        theta: tensors of parameters: name -> shape (L, ...).
        buffers: buffer scalars, shape (L, B).
        received: tensors that each client received, name -> (L, ...).
        mask: scalars that training changes, shape (L, W), bool; None = all.
        generators: source of each lane's dropout; empty if the module has none.
        loss: sum over the steps, shape (L,), float64, nats.
        steps: optimiser steps of each lane.
    """

    places: list[tuple[int, int]]
    clients: list[int]
    owned: list[Tensor]
    start: Tensor
    theta: Named
    buffers: Tensor
    received: Named
    mask: Tensor | None
    generators: list[torch.Generator]
    loss: Tensor
    steps: list[int]

    def __len__(self) -> int:
        return len(self.places)

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


def overrides(module: ClientModule, name: str) -> bool:
    """Whether a module overrides an attribute of ClientModule."""
    return name in vars(module) or getattr(type(module), name) is not getattr(ClientModule, name)


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


class Order:
    """The order in which lanes take their samples in an epoch.

    Args:
        rows: rows of the pool of each lane, shuffled.
    """

    def __init__(self, rows: list[Indices]) -> None:
        self.rows = np.concatenate(rows)
        self.first = np.cumsum([0, *map(len, rows)])

    def batches(self, turn: Turn, plan: list[Steps]) -> Iterator[Indices]:
        """Rows of the pool of each batch of a turn, shape (G, b)."""
        for number, size in enumerate(turn.sizes):
            places = zip(turn.lanes, turn.steps, strict=True)
            at = [self.first[lane] + plan[lane][k][number].start for lane, k in places]
            yield self.rows[np.array(at)[:, None] + np.arange(size)]


class Vectorised(Sequential):
    """Trains the clients of a stage at once, or one by one where lanes would change a result.

    Args:
        workspace: holds the module.
        samples: the visible ones.
        seed: of the run.
        say: prints the reason when clients are trained one by one.
        measures: train the first stage both ways, and go on with the faster one.
    """

    def __init__(
        self,
        workspace: Workspace,
        samples: Samples,
        seed: int,
        say: Callable[[str], None],
        *,
        measures: bool = False,
    ) -> None:
        super().__init__(workspace, samples, seed)
        self.say, self.measures = say, measures
        self.usual_rate = workspace.module.local.lr
        self.uses = USES
        self.programs: dict[tuple[object, ...], Programs] = {}
        self.reason = self._known_reason()
        if self.reason is not None:
            say(f"clients are trained one by one: {self.reason}")

    @property
    def name(self) -> str:
        """How clients are trained, where the module allows it."""
        return "sequential" if self.reason == SLOWER else "vectorised"

    def _known_reason(self) -> str | None:
        """Why clients of this module must be trained one by one; None = no reason is known."""
        reason = not_shared(self.workspace.optimizer)
        if reason is not None:
            return reason
        for child in self.workspace.module.modules():
            if isinstance(child, nn.modules.dropout._DropoutNd):
                return f"{type(child).__name__} draws other random numbers in lanes"
        return None

    def fit_into(
        self,
        rows: Sequence[Tensor],
        start: Dispatched,
        stage: Stage,
        work: LocalWork,
        round_: int,
    ) -> Upload:
        """Train every acting client from its start; see `Sequential.fit_into`."""
        if self.measures and self.reason is None and int(start.active.sum()) > 1:
            self.measures = False
            self._measure(rows, start, stage, work, round_)
        if self.reason is None:
            try:
                with self._no_draws(), self._using(work):
                    upload = self._fit_lanes(rows, start, stage, work, round_)
                    self._refuse_lost_loss(int(upload.steps.sum()), work)
                    return upload
            except Exception as error:
                if isinstance(error, FlbenchError) and error.__cause__ is None:
                    raise
                text = (str(error).strip() or "no message").splitlines()[0]
                known = isinstance(error, NotVectorisable)
                self.reason = text if known else f"{type(error).__name__}: {text}"
                self.say(f"round {round_}: clients are trained one by one: {self.reason}")
        return super().fit_into(rows, start, stage, work, round_)

    def _measure(
        self,
        rows: Sequence[Tensor],
        start: Dispatched,
        stage: Stage,
        work: LocalWork,
        round_: int,
    ) -> None:
        """Train a stage both ways, and say which one took less time; all later stages take it."""
        self.fit_into(rows, start, stage, work, round_)  # records the steps
        began = perf_counter()
        self.fit_into(rows, start, stage, work, round_)
        between = perf_counter()
        if self.reason is None:
            super().fit_into(rows, start, stage, work, round_)
            lanes, alone = between - began, perf_counter() - between
            text = f"a stage took {lanes:.3f} s in lanes and {alone:.3f} s one by one"
            if lanes > alone:
                self.reason = SLOWER
            self.say(f"clients are trained {'one by one' if self.reason else 'in lanes'}: {text}")

    @contextmanager
    def _no_draws(self) -> Iterator[None]:
        """Refuse draws from torch's default generators, which are not seeded for a client here."""
        cuda = [self.workspace.device] if self.workspace.device.type == "cuda" else []

        def states() -> list[Tensor]:
            return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, cuda)]

        with torch.random.fork_rng(devices=cuda):
            before = states()
            yield
            if not all(map(torch.equal, before, states())):
                raise NotVectorisable("it draws random numbers outside of training_step")

    def _fit_lanes(
        self,
        rows: Sequence[Tensor],
        start: Dispatched,
        stage: Stage,
        work: LocalWork,
        round_: int,
    ) -> Upload:
        """Train every active candidate in a lane, at most SCALARS scalars at once.

        Clients share lanes if they train equally long and fast, and have the same network.
        """
        acting, candidates, _ = start.params.shape
        copy_idle(rows, start)
        outcomes = [[IDLE] * candidates for _ in range(acting)]
        owned = [self.owned(client, stage) for client in stage.clients.tolist()]
        places = [(int(i), int(j)) for i, j in start.active.nonzero()]
        places.sort(key=lambda place: len(owned[place[0]]))
        alike: dict[tuple[Schedule, int], list[tuple[int, int]]] = {}
        networks = self.workspace.layout.network_of(start.params)
        for place in places:
            key = stage.schedule(place[0]), int(networks[place])
            alike.setdefault(key, []).append(place)
        lanes_at_once = max(1, SCALARS // self.workspace.layout.width)
        for (schedule, network), places in alike.items():
            for at in range(0, len(places), lanes_at_once):
                some = places[at : at + lanes_at_once]
                lanes = self._make_lanes(some, owned, start, stage, round_)
                module = self.workspace.module
                with choosing(module, network), local_settings(module, schedule, round_):
                    found = self._train_lanes(lanes, stage, schedule, work, round_)
                for (client, candidate), row, outcome in zip(
                    lanes.places, lanes.rows(), found, strict=True
                ):
                    rows[client][candidate] = row
                    outcomes[client][candidate] = outcome
        return stack_upload(stage, round_, start, list(map(len, owned)), outcomes)

    def _make_lanes(
        self,
        places: list[tuple[int, int]],
        owned: list[Tensor],
        start: Dispatched,
        stage: Stage,
        round_: int,
    ) -> Lanes:
        """Build the lanes of some candidates."""
        layout, device = self.workspace.layout, self.workspace.device
        acting, candidates = torch.tensor(places).unbind(dim=1)
        rows = start.params[acting, candidates].to(device)
        names = [self.samples.name(client) for client in stage.clients[acting].tolist()]
        drawing = names if self.workspace.lane_randomness.layers else []
        seeds = [torch_seed(self.seed, "dropout", round_, name, stage.label) for name in drawing]
        received = {**start.client_memory, **start.extras}
        return Lanes(
            places=places,
            clients=names,
            owned=[owned[client] for client, _ in places],
            start=rows,
            theta={name: table.clone() for name, table in split(rows, layout).items()},
            buffers=rows[:, layout.parameters :].clone(),
            received={name: tensor[acting].to(device) for name, tensor in received.items()},
            mask=None if start.trained_mask is None else start.trained_mask[acting].to(device),
            generators=[torch.Generator(device).manual_seed(seed) for seed in seeds],
            loss=torch.zeros(len(places), dtype=torch.float64, device=device),
            steps=[0] * len(places),
        )

    def _train_lanes(
        self, lanes: Lanes, stage: Stage, schedule: Schedule, work: LocalWork, round_: int
    ) -> list[Outcome]:
        """Train lanes in place; return the outcome of each."""
        module = self.workspace.module
        loss_start = self._losses(lanes, stage)
        module.train()
        phases = self._phases(lanes, schedule, work)
        plans = [[self._steps(len(rows), phase) for phase in phases] for rows in lanes.owned]
        most = [most_steps(schedule, phases, plan) for plan in plans]
        for number, phase in enumerate(phases):
            self._start_phase(lanes, phase, number)
            self._train_phase(
                lanes, phase, number, [plan[number] for plan in plans], most, stage, work, round_
            )
        loss_end = self._losses(lanes, stage)
        return [
            Outcome(
                steps=steps_made,
                loss=float(lanes.loss[lane]) / steps_made if steps_made else torch.nan,
                loss_start=loss_start[lane],
                loss_end=loss_end[lane],
                report=self._lane_report(lanes, lane, work),
            )
            for lane, steps_made in enumerate(lanes.steps)
        ]

    def _train_phase(
        self,
        lanes: Lanes,
        phase: LocalPhase,
        number: int,
        plans: list[Steps],
        most: list[int],
        stage: Stage,
        work: LocalWork,
        round_: int,
    ) -> None:
        """Train lanes in place in one phase.

        Args:
            lanes: the lanes.
            phase: the phase.
            number: its number, from 0.
            plans: steps of each lane in an epoch.
            most: steps that each lane may have made after the phase.
            stage: the stage.
            work: what the methods add to it.
            round_: number of the round.
        """
        space = self.workspace
        rate = scaled_rate(space.optimizer.defaults["lr"], self.usual_rate, space.module.local.lr)
        optimizer = LaneOptimizer(space.optimizer, rate, lanes.theta)
        frozen = Frozen(both(phase.mask, lanes.mask, space.device), space.layout)
        step = self._step(lanes, stage, number, work)
        before = list(lanes.steps)
        feeds = [
            orders(len(rows), phase.epochs, self.seed, round_, name, stage.label, number)
            for rows, name in zip(lanes.owned, lanes.clients, strict=True)
        ]
        owned = [rows.numpy(force=True) for rows in lanes.owned]
        plan, ordered = plans, list(turns(plans))
        for epoch in zip(*feeds, strict=True):
            left = [most[lane] - lanes.steps[lane] for lane in range(len(lanes))]
            if any(len(steps) > more for steps, more in zip(plan, left, strict=True)):
                plan = [steps[:more] for steps, more in zip(plan, left, strict=True)]
                ordered = list(turns(plan))
            order = Order([rows[shuffled] for rows, shuffled in zip(owned, epoch, strict=True)])
            for turn in ordered:
                apart = optimizer.counts or not step.is_recorded(turn.sizes)
                for part in turn.parts(
                    [lanes.steps[lane] for lane in turn.lanes] if apart else None
                ):
                    self._make_step(lanes, part, plan, order, step, optimizer, frozen, before)

    def _step(self, lanes: Lanes, stage: Stage, number: int, work: LocalWork) -> LaneStep:
        """The step of the lanes in a phase; a program is kept for phases of the same kind."""
        network = self.workspace.layout.network_of(lanes.start[:1])
        shapes = tuple(
            (name, tuple(table.shape[1:]), table.dtype) for name, table in lanes.received.items()
        )
        key = stage.label, number, int(network), shapes
        programs = self.programs.setdefault(key, Programs())
        names = list(lanes.received)
        return LaneStep(self.workspace, work, names, programs, attributes, self.uses)

    def _make_step(
        self,
        lanes: Lanes,
        turn: Turn,
        plan: list[Steps],
        order: Order,
        step: LaneStep,
        optimizer: LaneOptimizer,
        frozen: Frozen,
        before: list[int],
    ) -> None:
        """Let some lanes make a step."""
        space, group = self.workspace, LaneGroup(turn.lanes, self.workspace.device)
        made = lanes.steps[turn.lanes[0]] - before[turn.lanes[0]]
        theta = {name: group.take(table) for name, table in lanes.theta.items()}
        buffers = group.take(lanes.buffers)
        inputs = [*theta.values(), buffers]
        for table in (lanes.start, *lanes.received.values()):
            inputs.append(group.take(table))
        for ids in order.batches(turn, plan):
            rows = torch.from_numpy(ids).to(space.device)
            for pool in (self.samples.x, self.samples.y):
                inputs.append(
                    pool.index_select(0, rows.view(-1)).view(*rows.shape, *pool.shape[1:])
                )
        if lanes.generators:
            space.lane_randomness.generators = [lanes.generators[lane] for lane in turn.lanes]
        gradients, loss, buffers_after = step(turn.sizes, len(group), inputs, made)
        kept = {name: theta[name].clone() for name in frozen.parameters.keys() - frozen.wholly}
        trained = {name: table for name, table in theta.items() if name not in frozen.wholly}
        optimizer.step(group, trained, gradients, made)
        for name, values in kept.items():
            mask = frozen.parameters[name]
            mask = mask if len(mask) == 1 else group.take(mask)
            theta[name].copy_(torch.where(mask, theta[name], values))
        if frozen.buffers is not None:
            mask = frozen.buffers
            mask = mask if len(mask) == 1 else group.take(mask)
            buffers_after = torch.where(mask, buffers_after, buffers)
        for name, table in trained.items():
            group.put(lanes.theta[name], table)
        lanes.buffers[group.part] = buffers_after
        lanes.loss[group.part] += loss
        for lane in turn.lanes:
            lanes.steps[lane] += 1

    def _phases(self, lanes: Lanes, schedule: Schedule, work: LocalWork) -> Sequence[LocalPhase]:
        """The phases, which must be the same for all lanes."""

        def phases(module: ClientModule) -> list[LocalPhase]:
            default = module.batches_per_step
            return [
                replace(phase, batches_per_step=phase.batches_per_step or default)
                for phase in work.phases(module, schedule.whole_epochs)
            ]

        always = work.phases is not module_phases
        hooks = "phases", "batches_per_step"
        first, *others = self._call_per_lane(lanes, phases, *hooks, always=always)
        if not all(same_phases(first, other) for other in others):
            raise NotVectorisable("phases differ between clients")
        return first

    def _start_phase(self, lanes: Lanes, phase: LocalPhase, number: int) -> None:
        """Start the phase in every lane; afterwards all parameters must take a gradient."""
        module = self.workspace.module
        self._call_per_lane(
            lanes,
            lambda module: start_phase(module, phase, number),
            "on_phase_start",
            always=phase.start is not None,
        )
        trained = trained_parameters(module)
        if not all(
            slot.name in trained for slot in self.workspace.layout.slots if slot.kind == "parameter"
        ):
            raise NotVectorisable("some of its parameters take no gradient")

    def _call_per_lane(
        self,
        lanes: Lanes,
        function: Callable[[ClientModule], T],
        *hooks: str,
        always: bool = False,
    ) -> list[T]:
        """Call a function that calls hooks of the module, for each lane.

        The hooks must set all attributes to the same values for all lanes. The function is called
        once if the module does not override any of the hooks, unless it is `always` called for
        every lane.
        """
        module, results = self.workspace.module, []
        if not always and not any(overrides(module, hook) for hook in hooks):
            return [function(self._load_lane(lanes, 0))]
        first: dict[str, object] = {}
        for lane in range(len(lanes)):
            with self._check_side_effects(lanes, lane, hooks[0]):
                results.append(function(module))
            now = attributes(module)
            first = first or now
            for name in first.keys() | now.keys():
                if not equal(first.get(name), now.get(name)):
                    raise NotVectorisable(f"{hooks[0]} sets another '{name}' for other clients")
        return results

    @contextmanager
    def _check_side_effects(self, lanes: Lanes, lane: int, hook: str) -> Iterator[None]:
        """Load a lane, and check after a hook that it wrote nothing that the lane would lose.

        That is parameters, buffers, `start`, `received` and settings of the optimiser.
        """
        module, row = self._load_lane(lanes, lane), lanes.row(lane)
        module.steps, start, received = lanes.steps[lane], module.start, dict(module.received)
        yield
        after = self.workspace.layout.flatten(module)
        if not torch.equal(after.view(torch.uint8), row.view(torch.uint8)):  # as bytes: NaN = NaN
            raise NotVectorisable(f"{hook} writes parameters or buffers")
        same = [module.received.get(name) is value for name, value in received.items()]
        if module.start is not start or len(module.received) > len(received) or not all(same):
            raise NotVectorisable(f"{hook} replaces `start` or an entry of `received`")
        if not has_initial_settings(self.workspace.optimizer):
            raise NotVectorisable(CHANGED)

    def _load_lane(self, lanes: Lanes, lane: int) -> ClientModule:
        """Load one lane's model, start and received tensors into the module."""
        self.workspace.load(lanes.row(lane))
        module = self.workspace.module
        module.start = lanes.start[lane]
        received = {name: value[lane] for name, value in lanes.received.items()}
        module.received = Received(received, TRAINING)
        return module

    def _losses(self, lanes: Lanes, stage: Stage) -> list[float]:
        """Loss of each lane's model on its own samples, in nats; NaN if the stage needs none."""
        if not stage.losses:
            return [torch.nan] * len(lanes)
        losses = []
        for lane, rows in enumerate(lanes.owned):
            self._load_lane(lanes, lane)
            losses.append(mean_loss(self.workspace, self.samples.x[rows], self.samples.y[rows]))
        return losses

    def _lane_report(self, lanes: Lanes, lane: int, work: LocalWork) -> Report:
        """What a lane's client sends and keeps beside its model."""
        if not work.reports and not overrides(self.workspace.module, "on_local_end"):
            return Report()
        with self._check_side_effects(lanes, lane, "on_local_end"):
            return self._report(lanes.owned[lane], work)
