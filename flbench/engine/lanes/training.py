"""The training of lanes: their phases, their epochs, and the steps that they make together."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack
from functools import cache, cached_property, partial
from itertools import accumulate
from math import prod

import numpy as np
import torch
from torch import Tensor

from flbench.core.client import LocalPhase
from flbench.core.dataset import Indices
from flbench.core.file_memory import write
from flbench.core.networks import choosing
from flbench.core.state import Schedule
from flbench.engine.batches import orders
from flbench.engine.lanes.group import Steps, Turn, turns
from flbench.engine.lanes.hooks import LaneHooks, NotVectorisable, attributes, same_phases
from flbench.engine.lanes.lanes import (
    Frozen,
    Lanes,
    NotTogether,
    Place,
    Placed,
    StageJob,
    jobs_of,
    sent,
)
from flbench.engine.lanes.optimizer import LaneOptimizer, clipped
from flbench.engine.lanes.step import NO_LABEL, LaneStep, Named, Programs
from flbench.engine.optimizers import scaled_rate
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
POOL = 2**28
"""Bytes of samples that several runs may have together, as they are copied to one table."""
SHARE = 1 / 32
"""The share of a CUDA device's free memory that they may take instead."""


def train(jobs: Sequence[StageJob], pool: Pool | None = None) -> Pool:
    """Train the clients of some jobs in lanes, as many at once as fit in memory.

    Clients share lanes if they train equally long and fast, and have the same network. The models
    are written to the jobs' rows, what else came out to their outcomes.

    Args:
        jobs: of several runs, or of one.
        pool: the samples with which jobs were trained before; None = there were none.

    Returns:
        The samples of these jobs.

    Raises:
        NotTogether: the jobs cannot share lanes.
        NotVectorisable: nor can the clients of one job.
    """
    refuse_different(jobs)
    alike: dict[tuple[Schedule, int], list[Place]] = {}
    for job in jobs:
        networks = job.executor.workspace.layout.network_of(job.start.params).tolist()
        schedules = job.stage.schedules(len(job.owned))
        for client, candidate in job.start.active.nonzero().tolist():
            key = schedules[client], networks[client][candidate]
            alike.setdefault(key, []).append((job, client, candidate))
    if pool is None or not pool.serves(jobs):
        pool = Pool(jobs)
    first = pool.first(jobs)
    for (schedule, network), places in alike.items():
        for group in groups(places):
            lanes = Lanes.of(group)
            with ExitStack() as settings:
                for job in jobs_of(lanes.places):
                    module = job.executor.workspace.module
                    settings.enter_context(choosing(module, network))
                    settings.enter_context(local_settings(module, schedule, job.round))
                outcomes = LaneTraining(lanes, schedule, pool, first).run()
            into = [job.rows[client][candidate] for job, client, candidate in lanes.places]
            write_rows(into, lanes.rows())
            for (job, client, candidate), outcome in zip(lanes.places, outcomes, strict=True):
                job.outcomes[client][candidate] = outcome
    return pool


def groups(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Divide the places of some jobs into those that are trained at once.

    The lanes of a job are divided as if they were alone, so that they have the same company from
    their own run whatever others there are.

    Yields:
        The places of one job after the other, each in the order of its clients' numbers of samples.
    """

    def samples(place: Place) -> int:
        return len(place[0].owned[place[1]])

    parts: list[tuple[int, list[Place]]] = []
    for job in jobs_of(places):
        own = sorted((place for place in places if place[0] is job), key=samples)
        most = most_lanes(own[-1])
        parts += [(at, own[at : at + most]) for at in range(0, len(own), most)]
    parts.sort(key=lambda part: part[0])
    group: list[Place] = []
    for _, part in parts:
        if group and len(group) + len(part) > most_lanes(max(group + part, key=samples)):
            yield group
            group = []
        group = group + part
    yield group


def write_rows(places: Sequence[Tensor], rows: Tensor) -> None:
    """Copy rows, shape (n, W), to n places of shape (W,); on a device all at once."""
    if rows.device.type != "cpu":
        torch._foreach_copy_(list(places), list(rows.unbind()))
        return
    for place, row in zip(places, rows, strict=True):
        write(place, row)


def most_lanes(place: Place) -> int:
    """How many lanes are trained at once, none of which has more samples than this one."""
    job, client, _ = place
    space, x = job.executor.workspace, job.executor.samples.x
    inputs = min(space.module.local.batch_size, len(job.owned[client])) * prod(x.shape[1:])
    scalars, samples = SCALARS, INPUTS
    if space.device.type == "cuda":
        scalars, samples = (_memory(space.device) // each for each in BYTES)
    return max(1, min(scalars // space.layout.width, samples // max(1, inputs)))


def most_samples(device: torch.device) -> int:
    """Bytes of samples that several runs may have together."""
    return int(SHARE * _memory(device)) if device.type == "cuda" else POOL


@cache
def _memory(device: torch.device) -> int:
    """Bytes of a CUDA device's memory that were free when lanes were first trained on it.

    Other processes may use the rest.
    """
    return int(torch.cuda.mem_get_info(device)[0])


def refuse_different(jobs: Sequence[StageJob]) -> None:
    """Refuse jobs whose clients would not train alike.

    Raises:
        NotTogether: names what differs.
    """
    if len(jobs) == 1:
        return
    first, *others = map(likeness, jobs)
    for name, value in first.items():
        if any(other[name] != value for other in others):
            raise NotTogether(f"{name} differs between them")


def likeness(job: StageJob) -> dict[str, object]:
    """What the jobs that share lanes have in common, by the name it has in messages."""
    space = job.executor.workspace
    return {
        "the round": job.round,
        "the stage": job.stage.label,
        "the network": (space.layout.slots, type(space.module)),
        "local training": (space.module.local, job.rate),
        "the optimiser": (type(space.optimizer), space.optimizer.defaults),
        "what clients receive": {
            name: (table.shape[1:], table.dtype) for name, table in job.received.items()
        },
        "whether clients train all scalars": job.start.trained_mask is None,
        "the device": space.device,
    }


class Pool:
    """The visible samples of the runs of some jobs, in one table.

    Attributes:
        x: shape (M, ...).
        y: shape (M, ...).

    Raises:
        NotTogether: those of several runs take more memory than `most_samples`.
    """

    def __init__(self, jobs: Sequence[StageJob]) -> None:
        self._of = [job.executor.samples for job in jobs]
        if len(jobs) == 1:
            self.x, self.y = self._of[0].x, self._of[0].y
            return
        most = most_samples(self._of[0].x.device)
        if sum(samples.x.nbytes + samples.y.nbytes for samples in self._of) > most:
            raise NotTogether(f"their samples take more than {most >> 20} MiB together")
        self.x = torch.cat([samples.x for samples in self._of])
        self.y = torch.cat([samples.y for samples in self._of])

    def serves(self, jobs: Sequence[StageJob]) -> bool:
        """Whether it has the samples of these jobs, in their order."""
        asked = [job.executor.samples for job in jobs]
        return len(asked) == len(self._of) and all(map(operator.is_, asked, self._of))

    def first(self, jobs: Sequence[StageJob]) -> dict[StageJob, int]:
        """Number of the first sample of each job."""
        starts = accumulate((len(samples.y) for samples in self._of), initial=0)
        return dict(zip(jobs, starts, strict=False))


class LaneTraining:
    """Trains lanes from their start through all phases.

    Args:
        lanes: they are trained in place.
        schedule: how long and fast.
        pool: the samples.
        first: number of the first sample of each job in the pool.
    """

    def __init__(
        self, lanes: Lanes, schedule: Schedule, pool: Pool, first: dict[StageJob, int]
    ) -> None:
        self.lanes, self.schedule, self.pool, self.first = lanes, schedule, pool, first
        self.jobs = jobs_of(lanes.places)
        self.hooks = {job: LaneHooks(lanes, job) for job in self.jobs}
        self.space = self.jobs[0].executor.workspace

    def run(self) -> list[TrainedCandidate]:
        """Train them; return the outcome of each."""
        lanes = self.lanes
        loss_start = self._in_place({job: hooks.losses() for job, hooks in self.hooks.items()})
        for job in self.jobs:
            job.executor.workspace.module.train()
        phases, *others = [hooks.phases(self.schedule) for hooks in self.hooks.values()]
        if not all(same_phases(phases, other) for other in others):
            raise NotTogether("their phases differ")
        executor = self.jobs[0].executor
        plan_of = cache(lambda samples: [executor.epoch_steps(samples, phase) for phase in phases])
        plans = [plan_of(len(rows)) for rows in lanes.owned]
        most_of = cache(lambda samples: most_steps(self.schedule, phases, plan_of(samples)))
        most = [most_of(len(rows)) for rows in lanes.owned]
        self.rates = self._rates([phase.epochs for phase in phases], plans, most)
        for number, phase in enumerate(phases):
            for hooks in self.hooks.values():
                hooks.start_phase(phase, number)
            self._train_phase(phase, number, [plan[number] for plan in plans], most)
        loss_end = self._in_place({job: hooks.losses() for job, hooks in self.hooks.items()})
        seen_of = cache(lambda samples, made: samples_seen(phases, plan_of(samples), made))
        numbers = zip(lanes.steps.tolist(), lanes.loss.tolist(), strict=True)
        return [
            TrainedCandidate(
                steps=steps_made,
                loss=loss / steps_made if steps_made else torch.nan,
                loss_start=loss_start[lane],
                loss_end=loss_end[lane],
                report=self.hooks[lanes.places[lane][0]].report(lane),
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
            NotTogether: several runs have schedulers.
            NotVectorisable: a scheduler changes more than the learning rate.
        """
        trainer = self.space.trainer
        if not trainer.lr_scheduler_configs:
            return None
        if len(self.jobs) > 1:
            raise NotTogether("their optimisers have schedulers")
        rates_of = cache(partial(trainer.rates, tuple(epochs)))
        try:
            return [
                rates_of(tuple(map(len, plan)), steps)
                for plan, steps in zip(plans, most, strict=True)
            ]
        except Undefined as error:
            raise NotVectorisable(text_of(error)) from error

    def _in_place(self, values: dict[StageJob, list[float]]) -> list[float]:
        """The numbers of each job's lanes, in the order of all lanes."""
        iterators = {job: iter(own) for job, own in values.items()}
        return [next(iterators[job]) for job, _, _ in self.lanes.places]

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
        lanes, space = self.lanes, self.space
        usual, now = self.jobs[0].rate, space.module.local.lr
        rate = scaled_rate(space.optimizer.defaults["lr"], usual, now)
        steps = {job: self._step(job, number) for job in self.jobs}
        phase_steps = PhaseSteps(
            lanes,
            self.pool,
            steps,
            LaneOptimizer(space.optimizer, rate, lanes.theta),
            Frozen(both(phase.mask, lanes.mask, space.device), space.layout),
            self.rates,
        )
        feeds = [
            orders(
                len(rows), phase.epochs, job.executor.seed, job.round, name, job.stage.label, number
            )
            for (job, _, _), rows, name in zip(lanes.places, lanes.owned, lanes.names, strict=True)
        ]
        owned = [
            rows.numpy(force=True) + self.first[job]
            for (job, _, _), rows in zip(lanes.places, lanes.owned, strict=True)
        ]
        filled = self._filled(steps, plans)
        plan, ordered = plans, phase_steps.placed(plans, filled)
        chosen = [job.chosen[client] for job, client, _ in lanes.places]
        lengths = np.array([len(steps) for steps in plan])
        for epoch in zip(*feeds, strict=True):
            left = np.array(most) - lanes.steps
            if (lengths > left).any():
                plan = [steps[:more] for steps, more in zip(plan, left, strict=True)]
                lengths, ordered = np.minimum(lengths, left), phase_steps.placed(plan, filled)
            rows = np.concatenate([own[order] for own, order in zip(owned, epoch, strict=True)])
            if phase_steps.reads_index:
                phase_steps.positions = np.concatenate(
                    [
                        order if own is None else own[order]
                        for own, order in zip(chosen, epoch, strict=True)
                    ]
                )
            for step in ordered:
                for part in phase_steps.parts(step, plan, rows):
                    phase_steps.make(part, rows)

    def _filled(self, steps: dict[StageJob, LaneStep], plans: list[Steps]) -> int | None:
        """Number of samples to which batches are filled up; None = to none.

        Raises:
            NotTogether: only those of some jobs may be.
        """
        if any(len(step) > 1 for plan in plans for step in plan):
            return None
        answers = [
            step.fills(partial(self._full_batch, self.hooks[job].own[0]))
            for job, step in steps.items()
        ]
        if len(set(answers)) > 1:
            raise NotTogether("their last batches cannot all be filled up")
        return self.space.module.local.batch_size if answers[0] else None

    def _full_batch(self, lane: int) -> list[Tensor]:
        """What a lane's step with a full batch would get; the samples are some of the pool."""
        lanes, pool = self.lanes, self.pool
        tables = [*lanes.theta.values(), lanes.buffers, lanes.start, *lanes.received.values()]
        rows = torch.arange(self.space.module.local.batch_size, device=self.space.device)
        batch = [table.index_select(0, rows % len(pool.y))[None] for table in (pool.x, pool.y)]
        return [*(table[lane : lane + 1] for table in tables), *batch]

    def _step(self, job: StageJob, number: int) -> LaneStep:
        """The step of a job's lanes in a phase; a program is kept for phases of the same kind."""
        space, received = job.executor.workspace, job.received
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
        positions: of the samples of all lanes in the order of the epoch (`Batch.index`).

    Args:
        lanes: the lanes.
        pool: the samples.
        steps: that of each job.
        optimizer: updates the lanes.
        frozen: what it does not update.
        rates: the learning rate at each step of each lane; None = it is that of the phase.
    """

    def __init__(
        self,
        lanes: Lanes,
        pool: Pool,
        steps: dict[StageJob, LaneStep],
        optimizer: LaneOptimizer,
        frozen: Frozen,
        rates: list[list[float]] | None = None,
    ) -> None:
        self.lanes, self.pool, self.steps, self.rates = lanes, pool, steps, rates
        self.optimizer, self.frozen = optimizer, frozen
        self.before = lanes.steps.copy()
        self.first = np.cumsum([0, *map(len, lanes.owned)])
        self.trained: set[str] | None = None
        self.positions = np.arange(0)
        reading = {step.reads_index for step in steps.values()}
        if len(reading) > 1:
            raise NotTogether("not all of them look at the numbers of samples")
        self.reads_index = True in reading

    @cached_property
    def job_numbers(self) -> list[int]:
        """The number of each lane's job."""
        numbers = {job: number for number, job in enumerate(self.steps)}
        return [numbers[job] for job, _, _ in self.lanes.places]

    def placed(self, plan: list[Steps], filled: int | None) -> list[Placed]:
        """The steps of an epoch.

        Args:
            plan: steps of each lane.
            filled: see `turns`.
        """
        return [self._place(turn, plan) for turn in turns(plan, filled)]

    def _place(self, turn: Turn, plan: list[Steps]) -> Placed:
        return Placed(turn, plan, self.first, self.job_numbers, self.lanes.loss.device)

    def parts(self, step: Placed, plan: list[Steps], rows: Indices) -> list[Placed]:
        """The step, split into lanes that can make it in one call.

        A recorded step serves the lanes of all jobs, and the module's Python those of one.
        """
        turn = step.turn
        recorded = all([one.is_recorded(turn.sizes) for one in self.steps.values()])
        if recorded and not self.optimizer.counts and self.rates is None:
            return [step]
        made = numbers = self._made(turn)
        jobs = [0 if recorded else self.job_numbers[lane] for lane in turn.lanes]
        if self._is_numbered(step, made, rows):
            numbers = turn.steps
        else:
            made = numbers = [0] * len(made)
        rates = [self._rate(lane) for lane in turn.lanes]
        parts = turn.parts(list(zip(jobs, made, numbers, rates, strict=True)))
        return [step] if len(parts) == 1 else [self._place(part, plan) for part in parts]

    def _rate(self, lane: int) -> float | None:
        """The learning rate of a lane's next step; None = that of the phase."""
        return None if self.rates is None else self.rates[lane][self.lanes.steps[lane]]

    def _made(self, turn: Turn) -> list[int]:
        """How many steps each lane has made in the phase."""
        made: list[int] = (self.lanes.steps - self.before)[turn.lanes].tolist()
        return made

    def _is_numbered(self, placed: Placed, made: list[int], rows: Indices) -> bool:
        """Whether lanes that have made unequal numbers of steps must make this one apart."""
        if self.optimizer.counts:
            return True
        if len(set(made)) == 1 and len(set(placed.turn.steps)) == 1:
            return True

        def inputs() -> list[Tensor]:
            return [table[:1] for table in self._inputs(placed, rows, None)]

        return any([step.is_numbered(inputs) for step in self.steps.values()])

    def make(self, placed: Placed, rows: Indices) -> None:
        """Let some lanes make a step.

        Args:
            placed: the step.
            rows: of the pool, those of all lanes in the order of the epoch.
        """
        lanes, frozen, turn, group = self.lanes, self.frozen, placed.turn, placed.group
        step = self.steps[lanes.places[turn.lanes[0]][0]]
        made, numbers = min(self._made(turn)), set(turn.steps)
        inputs = self._inputs(placed, rows, step.reads(turn.sizes))
        theta = dict(zip(lanes.theta, inputs, strict=False))
        buffers = inputs[len(theta)]
        if lanes.generators:
            step.space.lane_randomness.generators = [lanes.generators[lane] for lane in turn.lanes]
        gradients, loss, buffers_after = step(
            turn.sizes,
            len(group),
            inputs,
            Index() if len(numbers) > 1 else min(numbers),
            placed.shares,
        )
        trained = {name: theta[name] for name in gradients if name not in frozen.wholly}
        self._refuse_others(trained.keys())
        kept = {name: theta[name].clone() for name in frozen.parameters if name in trained}
        gradients = self._clipped(placed, {name: gradients[name] for name in trained})
        self.optimizer.step(
            group, trained, gradients, made, placed.shares, self._rate(turn.lanes[0])
        )
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

    def _clipped(self, placed: Placed, gradients: Named) -> Named:
        """The gradients, clipped as the suite says."""
        most = self.steps[self.lanes.places[placed.turn.lanes[0]][0]].module.local.clip_norm
        if not most or not gradients:
            return gradients
        masks = self.frozen.parameters
        group = placed.group
        own = {name: m if len(m) == 1 else group.take(m) for name, m in masks.items()}
        return clipped(gradients, own, most, placed.shares)

    def _inputs(self, placed: Placed, rows: Indices, reads: Set[int] | None) -> list[Tensor]:
        """What the step is computed from, see `LaneStep`; of what it does not read, any rows."""
        lanes, group = self.lanes, placed.group
        inputs = [group.take(table) for table in (*lanes.theta.values(), lanes.buffers)]
        for number, table in enumerate((lanes.start, *lanes.received.values()), len(inputs)):
            is_read = reads is None or number in reads
            inputs.append(group.take(table) if is_read else table[: len(group)])
        for samples, unused in zip(placed.samples, placed.unused, strict=True):
            ids = sent(rows[samples], self.pool.x.device)
            for pool in (self.pool.x, self.pool.y):
                inputs.append(pool.index_select(0, ids.view(-1)).view(*ids.shape, *pool.shape[1:]))
            if unused is not None:
                inputs[-1][unused] = NO_LABEL
            if self.reads_index:  # no batch is filled up then
                is_read = reads is None or len(inputs) in reads
                positions = self.positions[samples] if is_read else samples
                inputs.append(sent(positions, self.pool.x.device))
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
