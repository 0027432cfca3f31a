"""The training of lanes: their phases, their epochs, and the steps that they make together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from copy import copy
from functools import cache, partial
from math import prod

import numpy as np
import torch
from torch import Tensor

from flbench.core.client_module import LocalPhase
from flbench.core.file_memory import write
from flbench.core.networks import choosing
from flbench.core.state import Schedule
from flbench.core.targets import no_target
from flbench.engine.batches import orders
from flbench.engine.lanes import phase as one_phase
from flbench.engine.lanes.group import LaneGroup, Sizes, Steps, Turn, turns
from flbench.engine.lanes.hooks import LaneHooks, NotVectorisable, attributes
from flbench.engine.lanes.lanes import Frozen, Lanes, Place, Placed, StageJob, sent
from flbench.engine.lanes.optimizer import LaneOptimizer, clipped
from flbench.engine.lanes.phase import Batches, Epoch
from flbench.engine.lanes.step import LaneStep, Named, Programs
from flbench.engine.optimizers import scaled_rate
from flbench.engine.recording.cuda_graphs import Program
from flbench.engine.recording.program import Index
from flbench.engine.sequential import (
    TrainedCandidate,
    both,
    local_settings,
    most_steps,
    samples_seen,
)
from flbench.errors import Undefined, text_of

SCALARS = 2**28
"""Scalars that are trained at once; lanes beyond that are trained afterwards."""
INPUTS = 2**22
"""Scalars of samples in one step: what a network makes of them takes many times their memory."""
BYTES = 2**7, 2**13
"""Bytes of a CUDA device's free memory for each of the scalars above, in place of a fixed number.

By W6, ResNet-18 takes 6 KB for a scalar of its samples, and LeNet-5 .2 KB.
"""


def train(job: StageJob) -> None:
    """Train the clients of a stage in lanes, as many at once as fit in memory.

    Clients share lanes if they train equally long and fast, and have the same network. The models
    are written to the job's rows, what else came out to its outcomes.

    Raises:
        NotVectorisable: the clients cannot be trained in lanes.
    """
    module = job.executor.workspace.module
    networks = job.executor.workspace.layout.network_of(job.start.params).tolist()
    schedules = job.stage.schedules(len(job.owned))
    alike: dict[tuple[Schedule, int], list[Place]] = {}
    for client, candidate in job.start.active.nonzero().tolist():
        key = schedules[client], networks[client][candidate]
        alike.setdefault(key, []).append((client, candidate))
    for (schedule, network), places in alike.items():
        for group in groups(job, places):
            lanes = Lanes.of(job, group)
            with choosing(module, network), local_settings(module, schedule, job.round):
                outcomes = LaneTraining(lanes, schedule).run()
            write_rows([job.rows[client][candidate] for client, candidate in group], lanes.rows())
            for (client, candidate), outcome in zip(group, outcomes, strict=True):
                job.outcomes[client][candidate] = outcome


def groups(job: StageJob, places: Sequence[Place]) -> list[list[Place]]:
    """Divide places into those that are trained at once, by their clients' numbers of samples."""
    ordered = sorted(places, key=lambda place: len(job.owned[place[0]]))
    most = most_lanes(job, ordered[-1])
    return [ordered[at : at + most] for at in range(0, len(ordered), most)]


def write_rows(places: Sequence[Tensor], rows: Tensor) -> None:
    """Copy rows, shape (n, W), to n places of shape (W,); on a device all at once."""
    if rows.device.type != "cpu":
        torch._foreach_copy_(list(places), list(rows.unbind()))
        return
    for place, row in zip(places, rows, strict=True):
        write(place, row)


def most_lanes(job: StageJob, place: Place) -> int:
    """How many lanes are trained at once, none of which has more samples than this one."""
    space, x = job.executor.workspace, job.executor.samples.x
    inputs = min(space.module.local.batch_size, len(job.owned[place[0]])) * prod(x.shape[1:])
    scalars, samples = SCALARS, INPUTS
    if space.device.type == "cuda":
        scalars, samples = (_memory(space.device) // each for each in BYTES)
    return max(1, min(scalars // space.layout.width, samples // max(1, inputs)))


@cache
def _memory(device: torch.device) -> int:
    """Bytes of a CUDA device's memory that were free when lanes were first trained on it.

    Other processes may use the rest.
    """
    return int(torch.cuda.mem_get_info(device)[0])


class LaneTraining:
    """Trains lanes from their start through all phases.

    Args:
        lanes: they are trained in place.
        schedule: how long and fast.
    """

    def __init__(self, lanes: Lanes, schedule: Schedule) -> None:
        self.lanes, self.job, self.schedule = lanes, lanes.job, schedule
        self.executor = self.job.executor
        self.space = self.executor.workspace
        self.hooks = LaneHooks(lanes)

    def run(self) -> list[TrainedCandidate]:
        """Train them; return the outcome of each."""
        lanes, hooks, executor = self.lanes, self.hooks, self.executor
        loss_start = hooks.losses()
        self.space.module.train()
        phases = hooks.phases(self.schedule)
        plan_of = cache(lambda samples: [executor.epoch_steps(samples, phase) for phase in phases])
        plans = [plan_of(len(rows)) for rows in lanes.owned]
        most_of = cache(lambda samples: most_steps(self.schedule, phases, plan_of(samples)))
        most = [most_of(len(rows)) for rows in lanes.owned]
        self.rates = self._rates([phase.epochs for phase in phases], plans, most)
        for number, phase in enumerate(phases):
            hooks.start_phase(phase, number)
            self._train_phase(phase, number, [plan[number] for plan in plans], most)
        loss_end = hooks.losses()
        seen_of = cache(lambda samples, made: samples_seen(phases, plan_of(samples), made))
        numbers = zip(lanes.steps.tolist(), lanes.loss.tolist(), strict=True)
        return [
            TrainedCandidate(
                steps=steps_made,
                loss=loss / steps_made if steps_made else torch.nan,
                loss_start=loss_start[lane],
                loss_end=loss_end[lane],
                report=hooks.report(lane),
                seen=seen_of(len(lanes.owned[lane]), steps_made),
            )
            for lane, (steps_made, loss) in enumerate(numbers)
        ]

    def _rates(
        self, epochs: list[int], plans: list[list[Steps]], most: list[int]
    ) -> list[list[float]] | None:
        """The learning rate at each step of each lane; None = it is that of the phase.

        Args:
            epochs: of each phase.
            plans: the steps of an epoch of each phase, for each lane.
            most: steps that each lane makes.

        Raises:
            NotVectorisable: a scheduler changes more than the learning rate.
        """
        trainer = self.space.trainer
        if not trainer.lr_scheduler_configs:
            return None
        rates_of = cache(partial(trainer.rates, tuple(epochs)))
        try:
            return [
                rates_of(tuple(map(len, plan)), steps)
                for plan, steps in zip(plans, most, strict=True)
            ]
        except Undefined as error:
            raise NotVectorisable(text_of(error)) from error

    def _train_phase(
        self, phase: LocalPhase, number: int, plans: list[Steps], most: list[int]
    ) -> None:
        """Train the lanes in one phase.

        Args:
            phase: the phase.
            number: its number, from 0.
            plans: steps of each lane in an epoch.
            most: steps that each lane may have made after the phase.
        """
        lanes, job, space = self.lanes, self.job, self.space
        rate = scaled_rate(space.optimizer.defaults["lr"], job.rate, space.module.local.lr)
        step = self._step(number)
        phase_steps = PhaseSteps(
            lanes,
            step,
            LaneOptimizer(space.optimizer, rate, lanes.theta),
            Frozen(both(phase.mask, lanes.mask, space.device), space.layout),
            self.rates,
        )
        where = job.stage.label, number
        feeds = [
            orders(len(rows), phase.epochs, self.executor.seed, job.round, name, *where)
            for rows, name in zip(lanes.owned, lanes.names, strict=True)
        ]
        owned = [rows.numpy(force=True) for rows in lanes.owned]
        filled = self._filled(step, plans)
        plan, ordered = plans, phase_steps.placed(plans, filled)
        chosen = [job.chosen[client] for client, _ in lanes.places]
        lengths = np.array([len(steps) for steps in plan])

        def epochs() -> Iterator[Epoch]:
            nonlocal plan, ordered, lengths
            made = lanes.steps.copy()
            for epoch in zip(*feeds, strict=True):
                left = np.array(most) - made
                if (lengths > left).any():
                    plan = [steps[:more] for steps, more in zip(plan, left, strict=True)]
                    lengths, ordered = np.minimum(lengths, left), phase_steps.placed(plan, filled)
                made += lengths
                shuffled = [own[order] for own, order in zip(owned, epoch, strict=True)]
                pairs = zip(chosen, epoch, strict=True) if phase_steps.reads_index else ()
                positions = [order if own is None else own[order] for own, order in pairs]
                yield Epoch(
                    ordered,
                    plan,
                    np.concatenate(shuffled),
                    np.concatenate(positions) if positions else None,
                )

        if one_phase.is_wanted():
            one_phase.train(phase_steps, list(epochs()), step.programs.phases)
        else:
            phase_steps.train(epochs())

    def _filled(self, step: LaneStep, plans: list[Steps]) -> int | None:
        """Number of samples to which batches are filled up; None = to none."""
        if any(len(batches) > 1 for plan in plans for batches in plan):
            return None
        return self.space.module.local.batch_size if step.fills(self._full_batch) else None

    def _full_batch(self) -> list[Tensor]:
        """What the first lane's step with a full batch would get, of any samples."""
        lanes, samples = self.lanes, self.executor.samples
        tables = [*lanes.theta.values(), lanes.buffers, lanes.start, *lanes.received.values()]
        rows = torch.arange(self.space.module.local.batch_size, device=self.space.device)
        columns = samples.x, samples.y
        batch = [table.index_select(0, rows % len(samples.y))[None] for table in columns]
        return [*(table[:1] for table in tables), *batch]

    def _step(self, number: int) -> LaneStep:
        """The step of the lanes in a phase; a program is kept for phases of the same kind."""
        job, space, received = self.job, self.space, self.job.received
        network = space.layout.network_of(self.lanes.start[:1])
        shapes = tuple(
            (name, tuple(table.shape[1:]), table.dtype) for name, table in received.items()
        )
        key = job.stage.label, number, int(network), shapes
        programs = job.programs.setdefault(key, Programs())
        return LaneStep(space, job.work, list(received), programs, attributes, job.uses)


class PhaseSteps:
    """The steps of lanes in a phase.

    Attributes:
        reads_index: whether steps get the positions of samples.

    Args:
        lanes: the lanes.
        step: what they compute.
        optimizer: updates the lanes.
        frozen: what it does not update.
        rates: the learning rate at each step of each lane; None = it is that of the phase.
    """

    def __init__(
        self,
        lanes: Lanes,
        step: LaneStep,
        optimizer: LaneOptimizer,
        frozen: Frozen,
        rates: list[list[float]] | None = None,
    ) -> None:
        self.lanes, self.step, self.rates = lanes, step, rates
        self.samples = lanes.job.executor.samples
        self.optimizer, self.frozen = optimizer, frozen
        self.before = lanes.steps.copy()
        self.first = np.cumsum([0, *map(len, lanes.owned)])
        self.trained: set[str] | None = None
        self.reads_index = step.reads_index

    def placed(self, plan: list[Steps], filled: int | None) -> list[Placed]:
        """The steps of an epoch.

        Args:
            plan: steps of each lane.
            filled: see `turns`.
        """
        return [self._place(turn, plan) for turn in turns(plan, filled)]

    def _place(self, turn: Turn, plan: list[Steps]) -> Placed:
        return Placed(turn, plan, self.first, self.lanes.loss.device)

    def train(self, epochs: Iterable[Epoch]) -> None:
        """Make the steps of some epochs, one by one."""
        for epoch in epochs:
            for placed in epoch.ordered:
                for part in self.parts(placed, epoch):
                    self.make(part, self.batches(part, epoch))

    def parts(self, placed: Placed, epoch: Epoch) -> list[Placed]:
        """The step, split into lanes that can make it in one call."""
        turn, step = placed.turn, self.step
        if step.is_recorded(turn.sizes) and not self.optimizer.counts and self.rates is None:
            return [placed]
        made = self._made(turn)
        is_numbered = self._is_numbered(placed, made, epoch)
        numbers = zip(made, turn.steps, strict=True) if is_numbered else [(0, 0)] * len(made)
        rates = [self._rate(lane) for lane in turn.lanes]
        parts = turn.parts(list(zip(numbers, rates, strict=True)))
        return [placed] if len(parts) == 1 else [self._place(part, epoch.plan) for part in parts]

    def _rate(self, lane: int) -> float | None:
        """The learning rate of a lane's next step; None = that of the phase."""
        return None if self.rates is None else self.rates[lane][self.lanes.steps[lane]]

    def _made(self, turn: Turn) -> list[int]:
        """How many steps each lane has made in the phase."""
        made: list[int] = (self.lanes.steps - self.before)[turn.lanes].tolist()
        return made

    def _is_numbered(self, placed: Placed, made: list[int], epoch: Epoch) -> bool:
        """Whether lanes that have made unequal numbers of steps must make this one apart."""
        if self.optimizer.counts:
            return True
        if len(set(made)) == 1 and len(set(placed.turn.steps)) == 1:
            return True

        def inputs() -> list[Tensor]:
            batches = self.batches(placed, epoch)
            return [table[:1] for table in self._inputs(placed, batches, None)]

        return self.step.is_numbered(inputs)

    def batches(self, placed: Placed, epoch: Epoch) -> Batches:
        """The samples of a step, and their positions where they are read."""
        device, positions = self.samples.x.device, epoch.positions
        return [
            (
                sent(epoch.rows[samples], device),
                None if positions is None else sent(positions[samples], device),
            )
            for samples in placed.samples
        ]

    def begin(self) -> None:
        """Forget the steps that were made."""
        self.lanes.steps[:] = self.before = np.zeros_like(self.before)
        self.trained = None
        self.optimizer.clear()

    def copied(self) -> PhaseSteps:
        """The same steps on copies of all tables that they read or change."""
        other = copy(self)
        other.lanes = one_phase.copied_lanes(self.lanes)
        other.optimizer, other.frozen = self.optimizer.copied(), self.frozen.copied()
        other.step = copy(self.step)
        other.step.has_graphs = False
        return other

    def programs(self, sizes: set[Sizes]) -> list[Program] | None:
        """The recorded steps of these sizes; None = they cannot be called for all lanes at once."""
        known = self.step.programs.known
        if self.rates is not None or not all(map(self.step.is_recorded, sizes)):
            return None
        return [program for size in sizes if (program := known[size]) is not None]

    def settings(self) -> tuple[Hashable, ...]:
        """What its steps depend on beside tables and programs."""
        places = self.samples.x.data_ptr(), self.samples.y.data_ptr()
        return self.step.module.local.clip_norm, *places

    def make(self, placed: Placed, batches: Batches) -> None:
        """Let some lanes make a step.

        Args:
            placed: the step.
            batches: the numbers of its samples.
        """
        lanes, step, frozen = self.lanes, self.step, self.frozen
        turn, group = placed.turn, placed.group
        made, numbers = min(self._made(turn)), set(turn.steps)
        inputs = self._inputs(placed, batches, step.reads(turn.sizes))
        theta = dict(zip(lanes.theta, inputs, strict=False))
        buffers = inputs[len(theta)]
        if lanes.generators:
            step.space.lane_randomness.generators = [lanes.generators[lane] for lane in turn.lanes]
        gradients, loss, buffers_after = step(
            turn.sizes, len(group), inputs, Index() if len(numbers) > 1 else min(numbers)
        )
        trained = {name: theta[name] for name in gradients if name not in frozen.wholly}
        self._refuse_others(trained.keys())
        kept = {name: theta[name].clone() for name in frozen.parameters if name in trained}
        gradients = self._clipped(group, {name: gradients[name] for name in trained})
        self.optimizer.step(group, trained, gradients, made, self._rate(turn.lanes[0]))
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
        if buffers.shape[1]:
            lanes.buffers[group.part] = buffers_after
        group.put(lanes.loss, group.take(lanes.loss).add_(loss))
        lanes.steps[group.numbers] += 1

    def _clipped(self, group: LaneGroup, gradients: Named) -> Named:
        """The gradients, clipped as the suite says."""
        most = self.step.module.local.clip_norm
        if not most or not gradients:
            return gradients
        masks = self.frozen.parameters
        own = {name: m if len(m) == 1 else group.take(m) for name, m in masks.items()}
        return clipped(gradients, own, most)

    def _inputs(self, placed: Placed, batches: Batches, reads: Set[int] | None) -> list[Tensor]:
        """What the step is computed from, see `LaneStep`; of what it does not read, any rows."""
        lanes, group, x, y = self.lanes, placed.group, self.samples.x, self.samples.y
        inputs = [group.take(table) for table in (*lanes.theta.values(), lanes.buffers)]
        for number, table in enumerate((lanes.start, *lanes.received.values()), len(inputs)):
            is_read = reads is None or number in reads
            inputs.append(group.take(table) if is_read else table[: len(group)])
        for (ids, positions), unused in zip(batches, placed.unused, strict=True):
            for table in (x, y):
                own = table.index_select(0, ids.view(-1))
                inputs.append(own.view(*ids.shape, *table.shape[1:]))
            if unused is not None:
                wide = unused.view(*unused.shape, *[1] * (y.dim() - 1))
                inputs[-1].masked_fill_(wide, no_target(y))
            if positions is not None:  # no batch is filled up then
                inputs.append(positions)
        return inputs

    def _refuse_others(self, trained: Iterable[str]) -> None:
        """Refuse to count steps of parameters that the loss reaches in some of them only.

        Raises:
            NotVectorisable: one by one, each parameter has a count of its own.
        """
        names = set(trained)
        self.trained = names if self.trained is None else self.trained
        if self.optimizer.counts and self.trained != names:
            raise NotVectorisable("its loss reaches other parameters from step to step")
