"""The vectorised executor: clients as a batch dimension, one lane per client.

`torch.func.vmap` runs the ClientModule's own `training_step` over lanes. All lanes take their k-th
step together; those whose batches have the same shape share one call, so ragged clients need no
padding. Every lane sees the same batches and draws the same dropout as under the sequential
executor, and ends at the same parameters up to the order of float sums.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from flbench.core.client import ClientModule, LocalPhase
from flbench.core.layout import ParameterLayout
from flbench.core.seeding import torch_seed
from flbench.core.state import Dispatched, Stage, Upload
from flbench.core.types import Extras
from flbench.engine.batches import orders, steps
from flbench.engine.cross_evaluation import mean_loss
from flbench.engine.sequential import IDLE, Outcome, Sequential, Term, stack_upload
from flbench.engine.workspace import Workspace
from flbench.errors import FlbenchError
from flbench.federation.federation import Samples

ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimisers that treat every scalar alone, so that the lanes can share one."""

CHANGED = "its optimiser has not the settings that it was made with"

T = TypeVar("T")

SCALARS = 2**28
"""Parameters that are trained together; more lanes than that take turns."""


def like(optimizer: torch.optim.Optimizer, rows: list[nn.Parameter]) -> torch.optim.Optimizer:
    """A new optimiser of the same kind and settings, of other scalars."""
    kind = type(optimizer)
    taken = inspect.signature(kind).parameters  # AdamW's defaults hold more than it takes
    return kind(rows, **{k: v for k, v in optimizer.defaults.items() if k in taken})


class OneByOne(Exception):
    """What a module does is its client's own, and lanes cannot share it; the text says what."""


def overrides(module: ClientModule, name: str) -> bool:
    """Whether a module answers something itself."""
    return name in vars(module) or getattr(type(module), name) is not getattr(ClientModule, name)


def settings(module: ClientModule) -> dict[str, object]:
    """What hooks may leave on a module beside its row: attributes and modes of its parts."""
    return {
        f"{name}.{key}" if name else key: value
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if name or key not in ("start", "received", "steps")
    }


def same(one: object, other: object) -> bool:
    """Whether two values are the same; False where nobody can tell."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        fits = one.shape == other.shape and one.dtype == other.dtype
        return fits and torch.equal(one, other.to(one.device))
    try:
        return bool(one == other)
    except Exception:
        return False


def as_made(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimiser's one group has the settings that `like` gives another one."""
    group = optimizer.param_groups[0]
    return all(same(group[name], value) for name, value in optimizer.defaults.items())


def same_plans(one: Sequence[LocalPhase], other: Sequence[LocalPhase]) -> bool:
    """Whether two clients train in the same phases."""
    fields = ("epochs", "mask", "batches_per_step")
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        same(getattr(a, name), getattr(b, name)) for a, b in pairs for name in fields
    )


class Vectorised(Sequential):
    """Trains the clients of a stage at once; what it cannot, it trains one by one, and says why.

    Args:
        say: tells the person something.
    """

    def __init__(
        self, workspace: Workspace, samples: Samples, seed: int, say: Callable[[str], None]
    ) -> None:
        super().__init__(workspace, samples, seed)
        self.say = say
        self.reason = self._why_not()
        if self.reason is not None:
            say(f"clients are trained one by one: {self.reason}")

    def _why_not(self) -> str | None:
        """Why this module must be trained sequentially; None if nothing is known against it."""
        optimizer = self.workspace.optimizer
        if not isinstance(optimizer, ELEMENTWISE) or len(optimizer.param_groups) != 1:
            return "its optimiser is not one group of SGD, Adam or AdamW"
        if not as_made(optimizer):
            return CHANGED
        for child in self.workspace.module.modules():
            if isinstance(child, nn.modules.dropout._DropoutNd):
                return f"{type(child).__name__} draws other numbers in company than alone"
        return None

    def fit(self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int) -> Upload:
        """Train every acting client from its start; see `Sequential.fit`."""
        if self.reason is None:
            try:
                with self._no_draws():
                    return self._fit_lanes(start, stage, terms, round_)
            except FlbenchError:
                raise
            except Exception as error:
                text = (str(error).strip() or "no message").splitlines()[0]
                known = isinstance(error, OneByOne)
                self.reason = text if known else f"{type(error).__name__}: {text}"
                self.say(f"round {round_}: clients are trained one by one: {self.reason}")
        return super().fit(start, stage, terms, round_)

    @contextmanager
    def _no_draws(self) -> Iterator[None]:
        """Refuse draws from torch's own generators, which have no client's seed here."""
        cuda = [self.workspace.device] if self.workspace.device.type == "cuda" else []

        def states() -> list[Tensor]:
            return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, cuda)]

        with torch.random.fork_rng(devices=cuda):
            before = states()
            yield
            if not all(map(torch.equal, before, states())):
                raise OneByOne("it draws random numbers outside of training_step")

    def _fit_lanes(
        self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int
    ) -> Upload:
        acting, candidates, _ = start.params.shape
        trained = start.params.to(self.workspace.device).clone()
        outcomes = [[IDLE] * candidates for _ in range(acting)]
        owned = [self.owned(client, stage) for client in stage.clients.tolist()]
        places = [(int(i), int(j)) for i, j in start.active.nonzero()]
        places.sort(key=lambda place: len(owned[place[0]]))
        together = max(1, SCALARS // self.workspace.layout.width)
        for at in range(0, len(places), together):
            lanes = self._lanes(places[at : at + together], owned, trained, start, stage, round_)
            for lane, outcome in enumerate(self._train_lanes(lanes, stage, terms, round_)):
                place, candidate = lanes.places[lane]
                trained[place, candidate] = lanes.row(lane)
                outcomes[place][candidate] = outcome
        return stack_upload(stage, start, trained, [len(rows) for rows in owned], outcomes)

    def _lanes(
        self,
        places: list[tuple[int, int]],
        owned: list[Tensor],
        trained: Tensor,
        start: Dispatched,
        stage: Stage,
        round_: int,
    ) -> Lanes:
        cut, device = self.workspace.layout.parameters, self.workspace.device
        stack = torch.stack([trained[place, candidate] for place, candidate in places])
        who = torch.tensor([place for place, _ in places])
        clients = [self.samples.name(one) for one in stage.clients[who].tolist()]
        seeds = [torch_seed(self.seed, "dropout", round_, one, stage.label) for one in clients]
        return Lanes(
            places=places,
            clients=clients,
            owned=[owned[place] for place, _ in places],
            start=stack,
            theta=stack[:, :cut].clone(),
            buffers=stack[:, cut:].clone(),
            told={k: v[who].to(device) for k, v in {**start.client_memory, **start.extras}.items()},
            dice=[torch.Generator(device).manual_seed(seed) for seed in seeds],
            loss=torch.zeros(len(places), dtype=torch.float64, device=device),
            steps=[0] * len(places),
        )

    def _train_lanes(
        self, lanes: Lanes, stage: Stage, terms: Sequence[Term], round_: int
    ) -> list[Outcome]:
        """Train a group of lanes in place; lane i's outcome is the i-th returned."""
        module = self.workspace.module
        before = self._losses(lanes, stage)
        module.train()
        step = Step(self.workspace, terms)
        for number, phase in enumerate(self._phases(lanes, stage.epochs)):
            self._start_phase(lanes, number)
            rows = [nn.Parameter(row) for row in lanes.theta]
            optimizer = like(self.workspace.optimizer, rows)
            address = (round_, stage.label, number)
            feeds = [self._batches(lanes, lane, phase, *address) for lane in range(len(lanes))]
            step.module.index = 0
            while any(batch := [next(feed, ()) for feed in feeds]):
                kept = lanes.theta.clone() if phase.mask is not None else None
                for at in alike(batch):
                    moved = self._gradients(lanes, rows, at, [batch[lane] for lane in at], step)
                    if phase.mask is not None:
                        moves = phase.mask[lanes.theta.shape[1] :].to(moved.device)
                        moved = torch.where(moves, moved, lanes.buffers[at])
                    lanes.buffers[at] = moved
                optimizer.step()
                if kept is not None and phase.mask is not None:
                    moves = phase.mask[: kept.shape[1]].to(kept.device)
                    lanes.theta.copy_(torch.where(moves, lanes.theta, kept))
                for row in rows:
                    row.grad = None
                step.module.index += 1
        after = self._losses(lanes, stage)
        return [
            Outcome(
                steps=taken,
                loss=float(lanes.loss[lane]) / taken if taken else torch.nan,
                loss_start=before[lane],
                loss_end=after[lane],
                extras=self._told(lanes, lane),
            )
            for lane, taken in enumerate(lanes.steps)
        ]

    def _phases(self, lanes: Lanes, epochs: int) -> Sequence[LocalPhase]:
        """The phases of all lanes, each asked with what its client was told."""

        def plan(module: ClientModule) -> list[LocalPhase]:
            usual, phases = module.batches_per_step, module.phases(epochs)
            return [replace(p, batches_per_step=p.batches_per_step or usual) for p in phases]

        first, *others = self._ask(lanes, plan, "phases", "batches_per_step")
        if not all(same_plans(first, other) for other in others):
            raise OneByOne("phases differ between clients")
        return first

    def _start_phase(self, lanes: Lanes, number: int) -> None:
        """Tell the module that a phase starts, once for every lane."""
        module = self.workspace.module
        self._ask(lanes, lambda module: module.on_phase_start(number), "on_phase_start")
        if not all(parameter.requires_grad for parameter in module.parameters()):
            raise OneByOne("some of its parameters take no gradient")

    def _ask(self, lanes: Lanes, ask: Callable[[ClientModule], T], *hooks: str) -> list[T]:
        """What a module answers for each lane; once for all where the hooks are not its own.

        Raises:
            OneByOne: a hook leaves behind what is not the same for all lanes.
        """
        module, answers = self.workspace.module, []
        if not any(overrides(module, hook) for hook in hooks):
            return [ask(self._put(lanes, 0))]
        left: dict[str, object] = {}
        for lane in range(len(lanes)):
            with self._alone(lanes, lane, hooks[0]):
                answers.append(ask(module))
            now = settings(module)
            left = left or now
            for name in left.keys() | now.keys():
                if not same(left.get(name), now.get(name)):
                    raise OneByOne(f"{hooks[0]} leaves another '{name}' for other clients")
        return answers

    @contextmanager
    def _alone(self, lanes: Lanes, lane: int, hook: str) -> Iterator[None]:
        """Around a hook that is asked about one lane; what it writes would be lost.

        Raises:
            OneByOne: it writes what the lanes keep elsewhere.
        """
        module, row = self._put(lanes, lane), lanes.row(lane)
        module.steps, start, told = lanes.steps[lane], module.start, dict(module.received)
        yield
        held = self.workspace.layout.flatten(module)
        if not torch.equal(held.view(torch.uint8), row.view(torch.uint8)):  # NaN is NaN
            raise OneByOne(f"{hook} writes parameters or buffers")
        kept = [module.received.get(name) is value for name, value in told.items()]
        if module.start is not start or len(module.received) > len(told) or not all(kept):
            raise OneByOne(f"{hook} replaces `start` or an entry of `received`")
        if not as_made(self.workspace.optimizer):
            raise OneByOne(CHANGED)

    def _batches(
        self, lanes: Lanes, lane: int, phase: LocalPhase, round_: int, label: str, number: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """The batches of each of a lane's steps in a phase, as rows of the pool."""
        module, owned = self.workspace.module, lanes.owned[lane]
        plan = steps(
            len(owned), module.local.batch_size,
            phase.batches_per_step or module.batches_per_step,
            skip_single=self.workspace.has_batchnorm,
        )  # fmt: skip
        address = (round_, lanes.clients[lane], label, number)
        for order in orders(len(owned), phase.epochs, self.seed, *address):
            shuffled = owned[torch.as_tensor(order)]
            for cuts in plan:
                yield tuple(shuffled[cut] for cut in cuts)

    def _gradients(
        self,
        lanes: Lanes,
        rows: list[nn.Parameter],
        at: list[int],
        batch: list[tuple[Tensor, ...]],
        step: Step,
    ) -> Tensor:
        """Give some lanes' rows their gradients; return their buffers after it, (len(at), B)."""
        x, y = self.samples.x, self.samples.y
        stacked = [torch.stack(part) for part in zip(*batch, strict=True)]
        parts = tuple((x[part], y[part]) for part in stacked)
        everyone = len(at) == len(lanes)
        theta, buffers, start = (
            table if everyone else table[at] for table in (lanes.theta, lanes.buffers, lanes.start)
        )
        told = {name: value if everyone else value[at] for name, value in lanes.told.items()}
        step.dice.generators = [lanes.dice[lane] for lane in at]
        with self.workspace.fabric.autocast():
            gradient, (loss, moved) = step.batched(
                step.named(theta), buffers, start, told, parts[0] if len(parts) == 1 else parts
            )
        flat = torch.cat([gradient[name].flatten(1) for name in step.names], dim=1)
        for place, lane in enumerate(at):
            rows[lane].grad = flat[place]
            lanes.steps[lane] += 1
        lanes.loss[at] += loss
        after: Tensor = moved
        return after

    def _put(self, lanes: Lanes, lane: int) -> ClientModule:
        """Put one lane's model, start and context into the module."""
        self.workspace.load(lanes.row(lane))
        module = self.workspace.module
        module.start = lanes.start[lane]
        module.received = {name: value[lane] for name, value in lanes.told.items()}
        return module

    def _losses(self, lanes: Lanes, stage: Stage) -> list[float]:
        """Loss of each lane's model on its own samples, where the stage asks for it."""
        if not stage.losses:
            return [torch.nan] * len(lanes)
        losses = []
        for lane, rows in enumerate(lanes.owned):
            self._put(lanes, lane)
            losses.append(mean_loss(self.workspace, self.samples.x[rows], self.samples.y[rows]))
        return losses

    def _told(self, lanes: Lanes, lane: int) -> Extras:
        """What the module wants uploaded beside a lane's parameters."""
        if not overrides(self.workspace.module, "on_local_end"):
            return {}
        with self._alone(lanes, lane, "on_local_end"):
            return self._report(lanes.owned[lane])


Named = dict[str, Tensor]


@dataclass
class Lanes:
    """Models that are trained together: L lanes.

    Attributes:
        places: (acting client, candidate) of each lane.
        clients: name of each lane's client (`Samples.name`).
        owned: rows of the pool that each lane trains on.
        start: the rows as they came, shape (L, W).
        theta: trainable scalars, shape (L, P).
        buffers: buffer scalars, shape (L, B).
        told: what each client was told, name -> (L, ...).
        dice: what each lane draws dropout from.
        loss: sum over the steps, shape (L,), float64.
        steps: optimiser steps each lane made.
    """

    places: list[tuple[int, int]]
    clients: list[int]
    owned: list[Tensor]
    start: Tensor
    theta: Tensor
    buffers: Tensor
    told: Named
    dice: list[torch.Generator]
    loss: Tensor
    steps: list[int]

    def __len__(self) -> int:
        return len(self.places)

    def row(self, lane: int) -> Tensor:
        """A lane's model, shape (W,)."""
        return torch.cat([self.theta[lane], self.buffers[lane]])


def alike(batch: list[tuple[Tensor, ...]]) -> list[list[int]]:
    """The lanes that still have a batch, those of one shape together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for lane, parts in enumerate(batch):
        if parts:
            groups.setdefault(tuple(len(part) for part in parts), []).append(lane)
    return list(groups.values())


class Step:
    """One lane's loss as a function of its tensors: what `vmap` and `grad` are applied to.

    The gradient is taken for each tensor and not for the row they are slices of, whose backward
    would write a whole row for every slice.
    """

    def __init__(self, space: Workspace, terms: Sequence[Term]) -> None:
        self.layout: ParameterLayout = space.layout
        self.dice = space.dice
        self.module = Forward(space.module, terms)
        self.names = [slot.name for slot in self.layout.slots if slot.kind == "parameter"]
        self.batched = vmap(grad_and_value(self._loss, has_aux=True))

    def named(self, theta: Tensor) -> Named:
        """The tensors of rows of trainable scalars, (L, P): name -> (L, ...)."""
        return {
            slot.name: theta[:, slot.start : slot.stop].view(-1, *slot.shape)
            for slot in self.layout.slots
            if slot.kind == "parameter"
        }

    def _loss(
        self,
        parameters: Named,
        buffers: Tensor,
        start: Tensor,
        told: Named,
        batch: Any,  # noqa: ANN401 - a batch, or a tuple of them
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one lane and its buffers after the step."""
        cut, kept = self.layout.parameters, {}
        for slot in self.layout.slots:
            if slot.kind != "parameter":
                own = buffers[slot.start - cut : slot.stop - cut].clone().view(slot.shape)
                kept[slot.name] = own.long() if slot.kind == "counter" else own
        inner = self.module.module
        inner.start, inner.received, self.dice.token = start, told, start[:0].sum()
        named = {f"module.{name}": tensor for name, tensor in {**parameters, **kept}.items()}
        loss: Tensor = functional_call(self.module, named, (batch,))
        if not kept:
            return loss, buffers.clone()
        return loss, torch.cat([t.reshape(-1).to(buffers.dtype) for t in kept.values()])


class Forward(nn.Module):
    """Stands around a module so that calling it is its training step and the terms."""

    def __init__(self, module: ClientModule, terms: Sequence[Term]) -> None:
        super().__init__()
        self.module = module
        self.terms = tuple(terms)
        self.index = 0

    def forward(self, batch: Any) -> Tensor:  # noqa: ANN401 - a batch, or a tuple of them
        """Return the loss of one batch."""
        loss = self.module.training_step(batch, self.index)
        for term in self.terms:
            loss = loss + term(self.module)
        return loss
