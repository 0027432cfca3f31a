"""The vectorised executor: clients as a batch dimension, one lane per client.

`torch.func.vmap` runs the ClientModule's own `training_step` over lanes. Lanes with the same number
of samples share a group, so ragged clients need no padding; every lane sees the same batches as
under the sequential executor, and ends at the same parameters up to the order of float sums.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from flbench.client import ClientModule, LocalPhase
from flbench.engine.batches import orders, steps
from flbench.engine.cross_eval import mean_loss
from flbench.engine.sequential import IDLE, Outcome, Sequential, Term, stack_upload
from flbench.errors import FlbenchError, PluginError
from flbench.layout import ParameterLayout
from flbench.state import Dispatched, Stage, Upload

ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimisers that treat every scalar alone, so that a stack of rows can share one."""


def like(optimizer: torch.optim.Optimizer, theta: Tensor) -> torch.optim.Optimizer:
    """A new optimiser of the same kind and settings, of other scalars."""
    kind = type(optimizer)
    taken = inspect.signature(kind).parameters  # AdamW's defaults hold more than it takes
    return kind([theta], **{k: v for k, v in optimizer.defaults.items() if k in taken})


@dataclass
class _Lanes:
    """Models of equal sample count, trained together: L lanes.

    Attributes:
        places: (acting client, candidate) of each lane.
        theta: trainable scalars, shape (L, P).
        buffers: buffer scalars, shape (L, B).
        start: the rows as they came, shape (L, W).
        x: samples, shape (L, m, ...).
        y: labels, shape (L, m).
        told: what each client was told, name -> (L, ...).
    """

    places: list[tuple[int, int]]
    theta: nn.Parameter
    buffers: Tensor
    start: Tensor
    x: Tensor
    y: Tensor
    told: dict[str, Tensor]


class Vectorised(Sequential):
    """Trains the clients of a stage at once; what it cannot, it trains one by one."""

    def why_not(self) -> str | None:
        """Why this module must be trained sequentially; None if it need not be."""
        module, optimizer = self.workspace.module, self.workspace.optimizer
        if not isinstance(optimizer, ELEMENTWISE) or len(optimizer.param_groups) != 1:
            return "its optimiser is not one group of SGD, Adam or AdamW"
        if any(isinstance(child, nn.modules.dropout._DropoutNd) for child in module.modules()):
            return "dropout draws other numbers in company than alone"
        return None

    def fit(self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int) -> Upload:
        """Train every acting client from its start; see `Sequential.fit`."""
        if self.why_not() is not None:
            return super().fit(start, stage, terms, round_)
        acting, candidates, _ = start.params.shape
        trained = start.params.to(self.workspace.device).clone()
        outcomes = [[IDLE] * candidates for _ in range(acting)]
        rows = [self.owned(client, stage) for client in stage.clients.tolist()]
        sizes = [len(owned) for owned in rows]
        for size in sorted(set(sizes)):
            places = [
                (place, candidate)
                for place in range(acting)
                for candidate in range(candidates)
                if sizes[place] == size and start.active[place, candidate]
            ]
            if places:
                lanes = self._lanes(places, rows, trained, start)
                try:
                    found = self._train_lanes(lanes, stage, terms, round_)
                except FlbenchError:
                    raise
                except Exception as error:
                    raise PluginError(
                        f"round {round_}: stage '{stage.label}' cannot be vectorised:"
                        f" {type(error).__name__}: {error}; use --executor sequential"
                    ) from error
                for lane, (place, candidate) in enumerate(places):
                    own = [lanes.theta[lane].detach(), lanes.buffers[lane]]
                    trained[place, candidate] = torch.cat(own)
                    outcomes[place][candidate] = found[lane]
        return stack_upload(stage, start, trained.detach(), sizes, outcomes)

    def _lanes(
        self,
        places: list[tuple[int, int]],
        rows: list[Tensor],
        trained: Tensor,
        start: Dispatched,
    ) -> _Lanes:
        cut, device = self.workspace.layout.parameters, self.workspace.device
        stack = torch.stack([trained[place, candidate] for place, candidate in places])
        index = torch.stack([rows[place] for place, _ in places])
        clients = torch.tensor([place for place, _ in places])
        return _Lanes(
            places=places,
            theta=nn.Parameter(stack[:, :cut].clone()),
            buffers=stack[:, cut:].clone(),
            start=stack,
            x=self.samples.x[index],
            y=self.samples.y[index],
            told={k: v[clients].to(device) for k, v in {**start.own, **start.extras}.items()},
        )

    def _train_lanes(
        self, lanes: _Lanes, stage: Stage, terms: Sequence[Term], round_: int
    ) -> list[Outcome]:
        """Train a group of lanes in place; lane i's outcome is the i-th returned."""
        space, count = self.workspace, len(lanes.places)
        module, samples = space.module, lanes.y.shape[1]
        ids = stage.clients[torch.tensor([place for place, _ in lanes.places])].tolist()
        before = self._losses(lanes) if stage.losses else [torch.nan] * count
        self._put(lanes, 0)  # phases may depend on what the stage's clients were told
        module.train()
        lane_step = _Step(module, terms, space.layout)
        batched = vmap(grad_and_value(lane_step.loss, has_aux=True))
        total, taken = torch.zeros(count, dtype=torch.float64, device=space.device), 0
        lane = torch.arange(count)[:, None]
        for number, phase in enumerate(module.phases(stage.epochs)):
            module.on_phase_start(number)
            plan = steps(
                samples, module.local.batch_size,
                phase.batches_per_step or module.batches_per_step,
                skip_single=space.has_batchnorm,
            )  # fmt: skip
            optimizer = like(space.optimizer, lanes.theta)
            shuffles = [
                orders(samples, phase.epochs, self.seed, round_, client, stage.label, number)
                for client in ids
            ]
            for _ in range(phase.epochs):
                order = torch.stack([torch.as_tensor(next(shuffle)) for shuffle in shuffles])
                x, y = lanes.x[lane, order], lanes.y[lane, order]
                for step in plan:
                    parts = tuple((x[:, cut], y[:, cut]) for cut in step)
                    batch = parts[0] if len(parts) == 1 else parts
                    lane_step.index = taken
                    with space.fabric.autocast():
                        gradient, (loss, buffers) = batched(
                            lanes.theta.detach(), lanes.buffers, lanes.start, lanes.told, batch
                        )
                    self._update(lanes, optimizer, gradient, buffers, phase)
                    total += loss
                    taken += 1
        after = self._losses(lanes) if stage.losses else [torch.nan] * count
        return [
            Outcome(
                steps=taken,
                loss=float(total[i]) / taken if taken else torch.nan,
                loss_start=before[i],
                loss_end=after[i],
                extras=self._report(lanes, i, taken),
            )
            for i in range(count)
        ]

    @staticmethod
    @torch.no_grad()
    def _update(
        lanes: _Lanes,
        optimizer: torch.optim.Optimizer,
        gradient: Tensor,
        buffers: Tensor,
        phase: LocalPhase,
    ) -> None:
        """One optimiser step for all lanes; the phase's mask acts on what changed."""
        before, cut = lanes.theta.detach().clone(), lanes.theta.shape[1]
        lanes.theta.grad = gradient
        optimizer.step()
        if phase.mask is None:
            lanes.buffers = buffers
            return
        moves = phase.mask.to(before.device)
        lanes.theta.copy_(torch.where(moves[:cut], lanes.theta, before))
        lanes.buffers = torch.where(moves[cut:], buffers, lanes.buffers)

    def _put(self, lanes: _Lanes, lane: int) -> ClientModule:
        """Put one lane's model, start and context into the module."""
        self.workspace.load(torch.cat([lanes.theta[lane].detach(), lanes.buffers[lane]]))
        module = self.workspace.module
        module.start = lanes.start[lane]
        module.received = {name: value[lane] for name, value in lanes.told.items()}
        return module

    def _losses(self, lanes: _Lanes) -> list[float]:
        """Loss of each lane's model on its own samples."""
        losses = []
        for lane in range(len(lanes.places)):
            self._put(lanes, lane)
            losses.append(mean_loss(self.workspace, lanes.x[lane], lanes.y[lane]))
        return losses

    def _report(self, lanes: _Lanes, lane: int, taken: int) -> dict[str, Tensor]:
        """What the module wants uploaded beside the parameters."""
        if type(self.workspace.module).on_local_end is ClientModule.on_local_end:
            return {}
        module = self._put(lanes, lane)
        module.steps = taken
        answer = module.on_local_end(lanes.x[lane], lanes.y[lane])
        return {name: value.detach().clone() for name, value in answer.items()}


class _Step(nn.Module):
    """One lane's loss as a function of its row: what `vmap` and `grad` are applied to.

    It wraps the ClientModule so that `functional_call` has a forward that is the module's training
    step and the terms.
    """

    def __init__(
        self, module: ClientModule, terms: Sequence[Term], layout: ParameterLayout
    ) -> None:
        super().__init__()
        self.module = module
        self.terms = tuple(terms)
        self.layout = layout
        self.index = 0

    def forward(self, batch: Any) -> Tensor:  # noqa: ANN401 - a batch, or a tuple of them
        """Return the loss of one batch."""
        loss = self.module.training_step(batch, self.index)
        for term in self.terms:
            loss = loss + term(self.module)
        return loss

    def loss(
        self,
        theta: Tensor,
        buffers: Tensor,
        start: Tensor,
        told: dict[str, Tensor],
        batch: Any,  # noqa: ANN401 - see forward
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one lane and its buffers after the step."""
        cut = self.layout.parameters
        tensors = {}
        for slot in self.layout.slots:
            if slot.kind == "parameter":
                tensors[slot.name] = theta[slot.start : slot.stop].view(slot.shape)
            else:
                own = buffers[slot.start - cut : slot.stop - cut].clone().view(slot.shape)
                tensors[slot.name] = own.long() if slot.kind == "counter" else own
        self.module.start, self.module.received = start, told
        named = {f"module.{name}": tensor for name, tensor in tensors.items()}
        loss: Tensor = functional_call(self, named, (batch,))
        moved = [tensors[slot.name] for slot in self.layout.slots if slot.kind != "parameter"]
        if not moved:
            return loss, buffers
        return loss, torch.cat([tensor.reshape(-1).to(buffers.dtype) for tensor in moved])
