"""The sequential executor: trains the clients of a stage one after the other, on one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from flbench.core import client_memory
from flbench.core.bank_budget import RowStore
from flbench.core.client_module import (
    TRAINING,
    ClientModule,
    LocalPhase,
    LocalWork,
    Received,
    Report,
    mean_cross_entropy,
)
from flbench.core.dataset import Indices
from flbench.core.file_memory import write
from flbench.core.seeding import torch_seed
from flbench.core.state import Dispatched, Schedule, Stage, Upload
from flbench.core.types import Extras
from flbench.engine.batches import orders, steps, subset
from flbench.engine.model_evaluation import mean_loss
from flbench.engine.optimizers import scaled_rate
from flbench.engine.reusable_table import Tables
from flbench.engine.workspace import Workspace
from flbench.errors import FlbenchError, PluginError, Undefined, UserError, in_one_line, text_of
from flbench.federation.federation import Samples


@dataclass(frozen=True)
class TrainedCandidate:
    """One candidate model of one client after training; `seen` are the samples of its steps."""

    steps: int
    loss: float
    loss_start: float
    loss_end: float
    report: Report = field(default_factory=Report)
    seen: int = 0
    logged: dict[str, float] = field(default_factory=dict)


ONE_VALUE = "Expected more than 1 value per channel"
"""What torch says of a batch of one sample before BatchNorm."""
IDLE = TrainedCandidate(0, torch.nan, torch.nan, torch.nan)
"""A candidate that was not trained."""


@dataclass(frozen=True)
class ClientTask:
    """What one client trains in a stage.

    Attributes:
        stage: the stage.
        work: what the methods add.
        address: round, and name of the client (`Samples.name`).
        client: its id.
        rows: rows of the pool that it trains on, shape (m,), int64.
        chosen: positions of these among all that it owns, shape (m,); None = they are all.
        schedule: how long and fast.
        received: tensors that it received and keeps, by name.
        mask: scalars that training changes, shape (W,), bool; None = all.
    """

    stage: Stage
    work: LocalWork
    address: tuple[int, int]
    client: int
    rows: Tensor
    chosen: Indices | None
    schedule: Schedule
    received: dict[str, Tensor]
    mask: Tensor | None


class Sequential:
    """Trains any ClientModule; the other executors must give its results.

    The visible `samples` are on the device of the `workspace`; the `store` says where tables of
    uploads are.
    """

    def __init__(
        self, workspace: Workspace, samples: Samples, seed: int, store: RowStore | None = None
    ) -> None:
        self.workspace = workspace
        self.samples = samples
        self.seed = seed
        self.tables = Tables(store)

    @property
    def name(self) -> str:
        """How clients are trained."""
        return "sequential"

    @property
    def evaluates_in_lanes(self) -> bool:
        """Whether models with samples of their own each may be evaluated in one pass."""
        return False

    def leave_lanes(self, reason: str) -> None:
        """Train one by one from now on, as where lanes are not possible; here nothing changes."""

    def owned(self, client: int, stage: Stage) -> Tensor:
        """Rows of the pool that a client trains on in a stage, shape (m,), int64."""
        rows = self.all_owned(client, stage)
        chosen = self.chosen(client, stage)
        return rows if chosen is None else rows[chosen]

    def all_owned(self, client: int, stage: Stage) -> Tensor:
        """`owned`, if the stage did not train on some of the samples only."""
        lists = self.samples.splits["train"]
        return lists.rows if stage.pooled else lists[client]

    def chosen(self, client: int, stage: Stage) -> Indices | None:
        """Positions of those of a client's samples that it trains on, shape (m,); None = all."""
        if stage.samples is None:
            return None
        samples = len(self.all_owned(client, stage))
        return subset(samples, stage, self.seed, self.samples.name(client))

    def numbers_owned(self, stage: Stage) -> list[int]:
        """How many samples each client of a stage trains on."""
        lists = self.samples.splits["train"]
        there = lists.sizes_of(stage.clients)
        if stage.pooled:
            there = [lists.total] * len(there)
        return there if stage.samples is None else [min(n, stage.samples) for n in there]

    def fit(self, start: Dispatched, stage: Stage, work: LocalWork, round_: int) -> Upload:
        """Train every acting client from its start, as the methods' hooks say in `work`.

        Raises:
            PluginError: the ClientModule or a term failed; names client, stage and round.
            Undefined: a method's loss was not used by another method's client module.
        """
        table = self.tables.take(start.params, self.workspace.device)
        upload = self.fit_into(table.unbind(), start, stage, work, round_)
        return replace(upload, params=table)

    def fit_into(
        self,
        rows: Sequence[Tensor],
        start: Dispatched,
        stage: Stage,
        work: LocalWork,
        round_: int,
    ) -> Upload:
        """`fit`, with the models written to given places; the upload is without them.

        Args:
            rows: where the candidates of each client are written, shape (c, W) each.
        """
        device, used = self.workspace.device, list[int]()
        copy_idle(rows, start)
        outcomes = [[IDLE] * start.params.shape[1] for _ in stage.clients]
        with (
            self.using(work),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            for i, task in enumerate(self._tasks(start, stage, work, round_)):
                for candidate in start.active[i].nonzero()[:, 0].tolist():
                    with named_in_errors(
                        task, work.provided_by or self.workspace.module.provided_by
                    ):
                        outcomes[i][candidate] = self._train(start.params[i, candidate], task)
                    self.workspace.copy_to(rows[i][candidate])
                used.append(len(task.rows))
        self.workspace.refuse_replaced()
        return stack_upload(stage, round_, start, used, outcomes)

    def _tasks(
        self, start: Dispatched, stage: Stage, work: LocalWork, round_: int
    ) -> Iterator[ClientTask]:
        """What each client of a stage trains, one after the other."""
        masks, tensors = start.trained_mask, {**start.client_memory, **start.extras}
        for i, client in enumerate(stage.clients.tolist()):
            yield ClientTask(
                stage=stage,
                work=work,
                address=(round_, self.samples.name(client)),
                client=client,
                rows=self.owned(client, stage),
                chosen=self.chosen(client, stage),
                schedule=stage.schedule(i),
                received={name: one[i].to(self.workspace.device) for name, one in tensors.items()},
                mask=None if masks is None else masks[i],
            )

    def _train(self, row: Tensor, task: ClientTask) -> TrainedCandidate:
        """Train one model of a client; the workspace holds it afterwards."""
        space, pool, stage, rows = self.workspace, self.samples, task.stage, task.rows
        module, trainer = space.module, space.trainer
        space.seed(torch_seed(self.seed, "dropout", *task.address, stage.label))
        space.load(row)
        module.start, module.received = row, Received(task.received, TRAINING)
        loss_start = mean_loss(space, pool.x[rows], pool.y[rows]) if stage.losses else torch.nan
        space.training_mode()
        with learning_rate(space, task.schedule, task.address[0]), trainer.client(task.work.terms):
            seen = self._train_phases(task)
            at_end = mean_loss(space, pool.x[rows], pool.y[rows]) if stage.losses else torch.nan
            module.steps = trainer.made
            report = self.report(rows, task.work)
        self.refuse_lost_loss(trainer.made, task.work)
        return TrainedCandidate(
            steps=trainer.made,
            loss=mean_in_order(trainer.losses),
            loss_start=loss_start,
            loss_end=at_end,
            report=report,
            seen=seen,
            logged=trainer.logged(),
        )

    def _train_phases(self, task: ClientTask) -> int:
        """Train the model of the workspace through all phases; returns the samples of its steps."""
        space, pool, trainer = self.workspace, self.samples, self.workspace.trainer
        rows, schedule = task.rows, task.schedule
        phases = task.work.phases(space.module, schedule.whole_epochs)
        plans = [self.epoch_steps(len(rows), phase) for phase in phases]
        left = most_steps(schedule, phases, plans)
        trainer.begin(sum(phase.epochs for phase in phases), left)
        seen = 0
        for number, (phase, batches) in enumerate(zip(phases, plans, strict=True)):
            trainer.begin_phase(both(phase.mask, task.mask, space.device), len(batches))
            start_phase(space.module, phase, number)
            where = (*task.address, task.stage.label, number)
            for order in orders(len(rows), phase.epochs, self.seed, *where):
                if not batches or trainer.made >= left or trainer.should_stop:
                    break
                shuffled = rows.index_select(0, torch.as_tensor(order)).to(space.device)
                x, y = pool.x.index_select(0, shuffled), pool.y.index_select(0, shuffled)
                before = trainer.made
                taken = batches[: left - before]
                trainer.epoch(self._batches(x, y, taken, order, task.chosen))
                seen += samples_of(batches[: trainer.made - before])
        trainer.end()
        return seen

    def _batches(
        self,
        x: Tensor,
        y: Tensor,
        steps: Sequence[Sequence[slice]],
        order: Indices,
        chosen: Indices | None,
    ) -> Iterator[Any]:
        """The batch of each step, samples and labels; a tuple of them where a step takes several.

        Which samples they are can be asked until the next one is taken (`Numbering`).
        """
        numbering, device = self.workspace.module.numbering, self.workspace.device
        for step in steps:
            parts = [(x[cut], y[cut]) for cut in step]
            numbering.batches = parts
            numbering.index = partial(positions, order, chosen, step, device)
            yield parts[0] if len(parts) == 1 else tuple(parts)

    def planned_steps(self, stage: Stage) -> Tensor:
        """Optimiser steps of each client of a stage, shape (n,), int64, without own phases."""
        plan = cache(lambda samples: self.epoch_steps(samples, LocalPhase(1)))

        @cache
        def made(samples: int, schedule: Schedule) -> int:
            phase = LocalPhase(schedule.whole_epochs)
            return most_steps(schedule, [phase], [plan(samples)])

        owned = self.numbers_owned(stage)
        schedules = stage.schedules(len(owned))
        return torch.tensor(list(map(made, owned, schedules)), dtype=torch.int64)

    def refuse_lost_loss(self, steps: int, work: LocalWork) -> None:
        """Refuse a `batch_loss` that no step took."""
        module = self.workspace.module
        if steps and work.provided_by and not module.loss_was_used:
            raise Undefined(
                f"the loss of {work.provided_by} is lost: the training_step of"
                f" {module.provided_by} takes no `batch_loss`, so the two cannot be combined"
            )

    @contextmanager
    def using(self, work: LocalWork) -> Iterator[None]:
        """Let the module take the loss of a stage's methods."""
        module = self.workspace.module
        module.loss_function, module.loss_was_used = work.loss, False
        try:
            yield
        finally:
            module.loss_function = mean_cross_entropy
            module.numbering.batches, module.numbering.index = (), None

    def epoch_steps(self, samples: int, phase: LocalPhase) -> list[list[slice]]:
        """The optimiser steps of one epoch; see `steps`."""
        module, space = self.workspace.module, self.workspace
        per_step = phase.batches_per_step or module.batches_per_step
        return steps(
            samples,
            module.local.batch_size,
            per_step,
            skip_single=space.has_batchnorm,
            drop_last=module.local.drop_last,
        )

    def report(self, rows: Tensor, work: LocalWork) -> Report:
        """What a client sends and keeps beside its model, from its rows of the pool."""
        module = self.workspace.module
        own = type(module).on_local_end is not ClientModule.on_local_end
        if not own and not work.reports:
            return Report()
        x, y = self.samples.x[rows], self.samples.y[rows]
        reports = [Report(module.on_local_end(x, y))] if own else []
        reports += [reporter(module, x, y) for reporter in work.reports]
        return Report(
            joined([report.sent for report in reports], "sends"),
            joined([report.kept for report in reports], "keeps"),
        )


@contextmanager
def named_in_errors(task: ClientTask, whose: str) -> Iterator[None]:
    """Let what the block raises name round, client, stage, and whose loss or module it is.

    Raises:
        PluginError: the module or a term failed.
        UserError: BatchNorm cannot be trained on the batches.
    """
    round_, client = task.address[0], task.client
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if ONE_VALUE in text_of(error):
            raise UserError(
                f"round {round_}: client {client}: a batch has one sample, which"
                " BatchNorm cannot be trained on: set local.batch_size to 2 or more"
            ) from error
        if isinstance(error, FlbenchError):
            raise
        raise PluginError(
            f"round {round_}: {whose}: client {client}"
            f" failed in stage '{task.stage.label}': {in_one_line(error)}"
        ) from error


def positions(
    order: Indices,
    chosen: Indices | None,
    step: Sequence[slice],
    device: torch.device,
    batch: int,
) -> Tensor:
    """Positions of a batch's samples among all that a client owns, shape (b,); see `Batch.index`.

    Args:
        order: the samples of an epoch, as positions among those that the stage trains on.
        chosen: positions of these among all; None = they are all.
        step: the part of the epoch that each batch of the step is.
        device: where it is asked for.
        batch: number of the batch.
    """
    at = order[step[batch]]
    return torch.as_tensor(at if chosen is None else chosen[at]).to(device)


def joined(tables: Sequence[Extras], verb: str) -> Extras:
    """The tensors of several tables, copied.

    Raises:
        PluginError: two tables have the same name.
    """
    names = [name for table in tables for name in table]
    for name in names:
        if names.count(name) > 1:
            raise PluginError(f"each of two methods {verb} '{name}': rename it in one of them")
    return {name: value.detach().clone() for table in tables for name, value in table.items()}


def mean_in_order(losses: Sequence[Tensor]) -> float:
    """The mean of scalars, added in their order in double precision; NaN of none."""
    total = 0.0
    for loss in torch.stack(list(losses)).tolist() if losses else ():
        total += loss  # not `sum`, which compensates for rounding from Python 3.12 on
    return total / len(losses) if losses else torch.nan


def most_steps(
    schedule: Schedule, phases: Sequence[LocalPhase], plans: Sequence[list[list[slice]]]
) -> int:
    """Optimiser steps that a client makes; `plans` has the steps of one epoch of each phase."""
    pairs = zip(phases, plans, strict=True)
    return schedule.most_steps(sum(phase.epochs * len(plan) for phase, plan in pairs))


def samples_of(steps: Sequence[list[slice]]) -> int:
    """Samples that some steps take, all together."""
    return sum(cut.stop - cut.start for step in steps for cut in step)


def samples_seen(
    phases: Sequence[LocalPhase], plans: Sequence[list[list[slice]]], made: int
) -> int:
    """Samples of the first steps of a client; `plans` as in `most_steps`."""
    seen = 0
    for phase, plan in zip(phases, plans, strict=True):
        whole = min(phase.epochs, made // max(1, len(plan)))
        made -= whole * len(plan)
        rest = plan[:made] if whole < phase.epochs else []
        seen += whole * samples_of(plan) + samples_of(rest)
        made -= len(rest)
    return seen


def start_phase(module: ClientModule, phase: LocalPhase, number: int) -> None:
    """Let the phase prepare the module, or the module itself."""
    if phase.start is None:
        module.on_phase_start(number)
    else:
        phase.start(module)


def both(one: Tensor | None, other: Tensor | None, device: torch.device) -> Tensor | None:
    """The mask of scalars that two masks have; None stands for all scalars."""
    masks = [mask.to(device) for mask in (one, other) if mask is not None]
    return masks[0] & masks[-1] if masks else None


@contextmanager
def local_settings(module: ClientModule, schedule: Schedule, round_: int) -> Iterator[None]:
    """Let the module know the learning rate of a client in a round."""
    usual = module.local
    module.local = usual.at(round_) if schedule.lr is None else replace(usual, lr=schedule.lr)
    try:
        yield
    finally:
        module.local = usual


@contextmanager
def learning_rate(space: Workspace, schedule: Schedule, round_: int) -> Iterator[None]:
    """Set the learning rate of the optimiser, and let the module know it, for one client."""
    groups, usual = space.optimizer.param_groups, space.module.local.lr
    rates = [group["lr"] for group in groups]
    with local_settings(space.module, schedule, round_):
        for group in groups:
            group["lr"] = scaled_rate(group["lr"], usual, space.module.local.lr)
        try:
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def copy_idle(rows: Sequence[Tensor], start: Dispatched) -> None:
    """Leave the candidates that are not trained as they are; `rows` as in `fit_into`."""
    for i, candidate in (~start.active).nonzero().tolist():
        write(rows[i][candidate], start.params[i, candidate])


def stack_upload(
    stage: Stage,
    round_: int,
    start: Dispatched,
    used: list[int],
    outcomes: list[list[TrainedCandidate]],
) -> Upload:
    """Build the upload without its models.

    Steps, loss and extras are those of the first candidate that a client trained; it is the chosen
    one.

    Args:
        stage: the stage.
        round_: number of the round, for messages.
        start: the start of its clients.
        used: number of training samples of each client.
        outcomes: outcome of each client and candidate.
    """
    acting, candidates, _ = start.params.shape
    first = [next((o for o in row if o is not IDLE), IDLE) for row in outcomes]
    reports = [outcome.report for outcome in first]
    names = common_extras([kinds(report.sent) for report in reports], stage, round_)

    def table(field: str) -> Tensor:
        values = [[getattr(outcome, field) for outcome in row] for row in outcomes]
        return torch.tensor(values, dtype=torch.float64).reshape(acting, candidates)

    return Upload(
        ids=stage.clients,
        params=torch.empty(acting, candidates, 0),  # they are elsewhere
        active=start.active,
        rows=start.rows,
        samples=torch.tensor(used, dtype=torch.int64),
        steps=torch.tensor([outcome.steps for outcome in first], dtype=torch.int64),
        loss=torch.tensor([outcome.loss for outcome in first], dtype=torch.float64),
        loss_start=table("loss_start"),
        loss_end=table("loss_end"),
        chosen=start.active.int().argmax(dim=1).cpu(),
        extras={name: torch.stack([report.sent[name] for report in reports]) for name in names},
        kept=stack_kept([report.kept for report in reports], stage, round_),
        seen=torch.tensor([outcome.seen for outcome in first], dtype=torch.int64),
        logged=[outcome.logged for outcome in first],
    )


def stack_kept(entries: Sequence[Extras], stage: Stage, round_: int) -> Extras:
    """What each client keeps, one table per name; shorter entries are padded.

    Raises:
        PluginError: clients keep different names, or entries of other shapes or types.
    """
    types: list[dict[str, ShapeAndType]] = [
        {name: ((), value.dtype) for name, value in own.items()} for own in entries
    ]
    common_extras(types, stage, round_, "keep")
    try:
        return {
            name: client_memory.padded([own[name] for own in entries])
            for name in (entries[0] if entries else {})
        }
    except RuntimeError as error:
        raise PluginError(
            f"round {round_}: stage '{stage.label}': what clients keep cannot be padded to one"
            f" length: {in_one_line(error)}"
        ) from error


def kinds(extras: Extras) -> dict[str, ShapeAndType]:
    """Shape and type of each tensor of a client."""
    return {name: (tuple(value.shape), value.dtype) for name, value in extras.items()}


ShapeAndType = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a client's entry in an extra."""


def common_extras(
    known: Sequence[dict[str, ShapeAndType]], stage: Stage, round_: int, verb: str = "upload"
) -> dict[str, ShapeAndType]:
    """The extras of an upload, from those of its clients.

    Raises:
        PluginError: they differ.
    """
    for one in known:
        if one != known[0]:
            odd = sorted(n for n in known[0] | one if known[0].get(n) != one.get(n))
            where = f"round {round_}: stage '{stage.label}'"
            raise PluginError(f"{where}: clients differ in what they {verb}: {', '.join(odd)}")
    return known[0] if known else {}
