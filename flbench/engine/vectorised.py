"""The vectorised executor: trains many clients at once, each in a lane of a batch dimension.

`torch.func.vmap` runs the ClientModule's own `training_step` over the lanes. All lanes make their
k-th step together; lanes whose batches have the same shape share one call, so that clients with
different numbers of samples need no padding. Every lane has the same batches and the same dropout
as in the sequential executor, and its parameters are equal up to the order of float sums.

A module for which this does not hold is detected, and its clients are trained one by one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from flbench.core.client import (
    TRAINING,
    ClientModule,
    LocalPhase,
    LocalWork,
    ModuleCall,
    Received,
    Report,
    module_phases,
)
from flbench.core.layout import trained_parameters
from flbench.core.seeding import torch_seed
from flbench.core.state import Dispatched, Schedule, Stage, Upload
from flbench.engine.batches import orders
from flbench.engine.cross_evaluation import mean_loss
from flbench.engine.sequential import (
    IDLE,
    Outcome,
    Sequential,
    both,
    local_settings,
    most_steps,
    scaled_rate,
    stack_upload,
    start_phase,
)
from flbench.engine.workspace import Workspace
from flbench.errors import FlbenchError
from flbench.federation.federation import Samples

ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimisers that update every scalar independently, so that the lanes can share one."""
CHANGED = "the settings of its optimiser were changed"
T = TypeVar("T")
SCALARS = 2**28
"""Scalars that are trained at once; lanes beyond that are trained afterwards."""
Named = dict[str, Tensor]


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
        theta: trainable scalars, shape (L, P).
        buffers: buffer scalars, shape (L, B).
        received: tensors that each client received, name -> (L, ...).
        mask: scalars that training changes, shape (L, W), bool; None = all.
        generators: source of each lane's dropout.
        loss: sum over the steps, shape (L,), float64, nats.
        steps: optimiser steps of each lane.
    """

    places: list[tuple[int, int]]
    clients: list[int]
    owned: list[Tensor]
    start: Tensor
    theta: Tensor
    buffers: Tensor
    received: Named
    mask: Tensor | None
    generators: list[torch.Generator]
    loss: Tensor
    steps: list[int]

    def __len__(self) -> int:
        return len(self.places)

    def row(self, lane: int) -> Tensor:
        """A lane's model, shape (W,)."""
        return torch.cat([self.theta[lane], self.buffers[lane]])

    def restore_frozen(self, theta: Tensor, buffers: Tensor, trained: Tensor) -> None:
        """Restore the scalars outside a mask, shape (W,) or (L, W), from earlier copies."""
        cut = theta.shape[1]
        self.theta.copy_(torch.where(trained[..., :cut], self.theta, theta))
        self.buffers.copy_(torch.where(trained[..., cut:], self.buffers, buffers))


def group_by_shape(batches: list[tuple[Tensor, ...]]) -> list[list[int]]:
    """Groups of lanes whose next `batches` have the same shapes; a lane without any is in none."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for lane, parts in enumerate(batches):
        if parts:
            groups.setdefault(tuple(len(part) for part in parts), []).append(lane)
    return list(groups.values())


class Step:
    """The loss of one lane as a function of its tensors, to which `vmap` and `grad` are applied.

    The gradient is taken for each tensor, not for the row of which the tensors are slices: its
    backward pass would write a complete row for every slice.
    """

    def __init__(self, space: Workspace, work: LocalWork) -> None:
        self.cut = space.layout.parameters
        self.parameters = [slot for slot in space.layout.slots if slot.kind == "parameter"]
        self.buffers = [slot for slot in space.layout.slots if slot.kind != "parameter"]
        self.randomness = space.lane_randomness
        self.module = space.module
        self.terms = work.terms
        self.index = 0
        self.call = ModuleCall(space.module, self._training_loss)
        self.gradients = vmap(grad_and_value(self._loss, has_aux=True))

    def named(self, theta: Tensor) -> Named:
        """Split rows of trainable scalars, shape (L, P), into tensors: name -> (L, ...)."""
        return {
            slot.name: theta[:, slot.start : slot.stop].view(-1, *slot.shape)
            for slot in self.parameters
        }

    def _training_loss(self, batch: Any) -> Tensor:  # noqa: ANN401 - a batch, or a tuple of them
        """The loss of one batch and its terms."""
        loss = self.module.training_step(batch, self.index)
        for term in self.terms:
            loss = loss + term(self.module)
        return loss

    def _loss(
        self,
        parameters: Named,
        buffers: Tensor,
        start: Tensor,
        received: Named,
        batch: Any,  # noqa: ANN401 - a batch, or a tuple of them
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one lane and its buffers after the step."""
        named_buffers = {}
        for slot in self.buffers:
            values = buffers[slot.start - self.cut : slot.stop - self.cut].clone().view(slot.shape)
            named_buffers[slot.name] = values.long() if slot.kind == "counter" else values
        self.module.start, self.module.received = start, Received(received, TRAINING)
        self.randomness.lane_marker = start[:0].sum()
        loss = self.call.with_tensors({**parameters, **named_buffers}, batch)
        if not named_buffers:
            return loss, buffers.clone()
        after = [tensor.reshape(-1).to(buffers.dtype) for tensor in named_buffers.values()]
        return loss, torch.cat(after)


def same_optimizer(
    optimizer: torch.optim.Optimizer, rows: list[nn.Parameter], usual: float, now: float
) -> torch.optim.Optimizer:
    """A new optimiser of the same class and settings for other parameters.

    Its learning rate is the one that the optimiser has where that of the suite changes from
    `usual` to `now`.
    """
    kind = type(optimizer)
    accepted = inspect.signature(kind).parameters  # AdamW's `defaults` holds further entries
    settings = {k: v for k, v in optimizer.defaults.items() if k in accepted}
    settings["lr"] = scaled_rate(settings["lr"], usual, now)
    return kind(rows, **settings)


def overrides(module: ClientModule, name: str) -> bool:
    """Whether a module overrides an attribute of ClientModule."""
    return name in vars(module) or getattr(type(module), name) is not getattr(ClientModule, name)


def attributes(module: ClientModule) -> dict[str, object]:
    """Attributes of a module and its parts that hooks may set, except row, start and received."""
    return {
        f"{name}.{key}" if name else key: value
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if name or key not in ("start", "received", "steps")
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


def has_initial_settings(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the one parameter group of an optimiser has the settings that it was created with."""
    group = optimizer.param_groups[0]
    return all(equal(group[name], value) for name, value in optimizer.defaults.items())


def same_phases(one: Sequence[LocalPhase], other: Sequence[LocalPhase]) -> bool:
    """Whether two clients train in the same phases."""
    fields = ("epochs", "mask", "batches_per_step", "start")
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        equal(getattr(a, name), getattr(b, name)) for a, b in pairs for name in fields
    )


class Vectorised(Sequential):
    """Trains the clients of a stage at once, or one by one where lanes would change a result.

    `say` prints the reason when clients are trained one by one.
    """

    def __init__(
        self, workspace: Workspace, samples: Samples, seed: int, say: Callable[[str], None]
    ) -> None:
        super().__init__(workspace, samples, seed)
        self.say = say
        self.usual_rate = workspace.module.local.lr
        self.reason = self._known_reason()
        if self.reason is not None:
            say(f"clients are trained one by one: {self.reason}")

    def _known_reason(self) -> str | None:
        """Why clients of this module must be trained one by one; None = no reason is known."""
        optimizer = self.workspace.optimizer
        if not isinstance(optimizer, ELEMENTWISE) or len(optimizer.param_groups) != 1:
            return "its optimiser is not SGD, Adam or AdamW with one parameter group"
        if not has_initial_settings(optimizer):
            return CHANGED
        for child in self.workspace.module.modules():
            if isinstance(child, nn.modules.dropout._DropoutNd):
                return f"{type(child).__name__} draws other random numbers in lanes"
        return None

    def fit(self, start: Dispatched, stage: Stage, work: LocalWork, round_: int) -> Upload:
        """Train every acting client from its start; see `Sequential.fit`."""
        if self.reason is None:
            try:
                with self._no_draws(), self._using(work):
                    upload = self._fit_lanes(start, stage, work, round_)
                    self._refuse_lost_loss(int(upload.steps.sum()), work)
                    return upload
            except Exception as error:
                if isinstance(error, FlbenchError) and error.__cause__ is None:
                    raise
                text = (str(error).strip() or "no message").splitlines()[0]
                known = isinstance(error, NotVectorisable)
                self.reason = text if known else f"{type(error).__name__}: {text}"
                self.say(f"round {round_}: clients are trained one by one: {self.reason}")
        return super().fit(start, stage, work, round_)

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

    def _fit_lanes(self, start: Dispatched, stage: Stage, work: LocalWork, round_: int) -> Upload:
        """Train every active candidate in a lane, at most SCALARS scalars at once.

        Clients share lanes if they train equally long and fast.
        """
        acting, candidates, _ = start.params.shape
        trained = start.params.to(self.workspace.device).clone()
        outcomes = [[IDLE] * candidates for _ in range(acting)]
        owned = [self.owned(client, stage) for client in stage.clients.tolist()]
        places = [(int(i), int(j)) for i, j in start.active.nonzero()]
        places.sort(key=lambda place: len(owned[place[0]]))
        equal_schedules: dict[Schedule, list[tuple[int, int]]] = {}
        for place in places:
            equal_schedules.setdefault(stage.schedule(place[0]), []).append(place)
        lanes_at_once = max(1, SCALARS // self.workspace.layout.width)
        for schedule, places in equal_schedules.items():
            for at in range(0, len(places), lanes_at_once):
                some = places[at : at + lanes_at_once]
                lanes = self._make_lanes(some, owned, trained, start, stage, round_)
                with local_settings(self.workspace.module, schedule, round_):
                    found = self._train_lanes(lanes, stage, schedule, work, round_)
                for lane, outcome in enumerate(found):
                    client, candidate = lanes.places[lane]
                    trained[client, candidate] = lanes.row(lane)
                    outcomes[client][candidate] = outcome
        used = [len(rows) for rows in owned]
        return stack_upload(stage, round_, start, trained, used, outcomes)

    def _make_lanes(
        self,
        places: list[tuple[int, int]],
        owned: list[Tensor],
        trained: Tensor,
        start: Dispatched,
        stage: Stage,
        round_: int,
    ) -> Lanes:
        """Build the lanes of some candidates; `trained` holds the models, shape (n, c, W)."""
        cut, device = self.workspace.layout.parameters, self.workspace.device
        acting, candidates = torch.tensor(places).unbind(dim=1)
        rows = trained[acting, candidates]
        names = [self.samples.name(client) for client in stage.clients[acting].tolist()]
        seeds = [torch_seed(self.seed, "dropout", round_, name, stage.label) for name in names]
        received = {**start.client_memory, **start.extras}
        return Lanes(
            places=places,
            clients=names,
            owned=[owned[client] for client, _ in places],
            start=rows,
            theta=rows[:, :cut].clone(),
            buffers=rows[:, cut:].clone(),
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
        step = Step(self.workspace, work)
        phases = self._phases(lanes, schedule, work)
        most = [
            most_steps(schedule, phases, [self._steps(len(rows), phase) for phase in phases])
            for rows in lanes.owned
        ]
        for number, phase in enumerate(phases):
            self._start_phase(lanes, phase, number)
            trained = both(phase.mask, lanes.mask, lanes.theta.device)
            rows = [nn.Parameter(row) for row in lanes.theta]
            rates = self.usual_rate, module.local.lr
            optimizer = same_optimizer(self.workspace.optimizer, rows, *rates)
            address = (round_, stage.label, number)
            feeds = [
                islice(self._batches(lanes, lane, phase, *address), most[lane] - lanes.steps[lane])
                for lane in range(len(lanes))
            ]
            step.index = 0
            while any(batches := [next(feed, ()) for feed in feeds]):
                theta, buffers = lanes.theta, lanes.buffers
                if trained is not None:
                    theta, buffers = theta.clone(), buffers.clone()
                for group in group_by_shape(batches):
                    group_batches = [batches[lane] for lane in group]
                    lanes.buffers[group] = self._gradients(lanes, rows, group, group_batches, step)
                optimizer.step()
                if trained is not None:
                    lanes.restore_frozen(theta, buffers, trained)
                for row in rows:
                    row.grad = None
                step.index += 1
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

    def _batches(
        self, lanes: Lanes, lane: int, phase: LocalPhase, round_: int, label: str, number: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """The batches of each of a lane's steps in a phase, as rows of the pool."""
        owned = lanes.owned[lane]
        address = (round_, lanes.clients[lane], label, number)
        for order in orders(len(owned), phase.epochs, self.seed, *address):
            shuffled = owned[torch.as_tensor(order)]
            for cuts in self._steps(len(owned), phase):
                yield tuple(shuffled[cut] for cut in cuts)

    def _gradients(
        self,
        lanes: Lanes,
        rows: list[nn.Parameter],
        group: list[int],
        batches: list[tuple[Tensor, ...]],
        step: Step,
    ) -> Tensor:
        """Set the gradients of a group of lanes, and update their steps and losses.

        Args:
            lanes: all lanes.
            rows: the trainable scalars of each lane, shape (P,), whose gradients are set.
            group: numbers of the lanes.
            batches: the batches of each of these lanes, as rows of the pool, all of one shape.
            step: the loss of a lane.

        Returns:
            The buffers of these lanes after the step, shape (len(group), B).
        """
        x, y = self.samples.x, self.samples.y
        stacked = [torch.stack(part) for part in zip(*batches, strict=True)]
        parts = tuple((x[part], y[part]) for part in stacked)
        batch = parts[0] if len(parts) == 1 else parts

        def select(table: Tensor) -> Tensor:
            return table if len(group) == len(lanes) else table[group]

        theta, buffers, start = select(lanes.theta), select(lanes.buffers), select(lanes.start)
        received = {name: select(value) for name, value in lanes.received.items()}
        step.randomness.generators = [lanes.generators[lane] for lane in group]
        with self.workspace.fabric.autocast():
            gradient, (loss, buffers_after) = step.gradients(
                step.named(theta), buffers, start, received, batch
            )
        flat = torch.cat([gradient[slot.name].flatten(1) for slot in step.parameters], dim=1)
        for i, lane in enumerate(group):
            rows[lane].grad = flat[i]
            lanes.steps[lane] += 1
        lanes.loss[group] += loss
        result: Tensor = buffers_after
        return result

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
