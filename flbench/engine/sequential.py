"""The sequential executor: trains the clients of a stage one after the other, on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.client import ClientModule, LocalPhase
from flbench.core.seeding import torch_seed
from flbench.core.state import Dispatched, Stage, Upload
from flbench.core.types import Extras
from flbench.engine.batches import orders, steps, subset
from flbench.engine.cross_evaluation import mean_loss
from flbench.engine.workspace import Workspace
from flbench.errors import FlbenchError, PluginError, in_one_line
from flbench.federation.federation import Samples

Term = Callable[[ClientModule], Tensor]


@dataclass(frozen=True)
class Outcome:
    """One candidate model of one client after training."""

    steps: int
    loss: float
    loss_start: float
    loss_end: float
    extras: Extras


IDLE = Outcome(0, torch.nan, torch.nan, torch.nan, {})
"""A candidate that was not trained."""


class Sequential:
    """Trains any ClientModule; the other executors must give its results.

    The visible `samples` are on the device of the `workspace`.
    """

    def __init__(self, workspace: Workspace, samples: Samples, seed: int) -> None:
        self.workspace = workspace
        self.samples = samples
        self.seed = seed

    def owned(self, client: int, stage: Stage) -> Tensor:
        """Rows of the pool that a client trains on in a stage, shape (m,), int64."""
        lists = self.samples.splits["train"]
        rows = torch.cat(lists) if stage.pooled else lists[client]
        return rows[subset(len(rows), stage, self.seed, self.samples.name(client))]

    def fit(self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int) -> Upload:
        """Train every acting client from its start; `terms` are added to every batch's loss.

        Raises:
            PluginError: the ClientModule or a term failed; names client, stage and round.
        """
        device = self.workspace.device
        trained = torch.empty(start.params.shape, device=device).copy_(start.params)
        clients = stage.clients.tolist()
        owned = [self.owned(client, stage) for client in clients]
        outcomes = [[IDLE] * trained.shape[1] for _ in clients]
        tensors = {**start.client_memory, **start.extras}
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for i, candidate in start.active.nonzero().tolist():
                received = {name: tensor[i].to(device) for name, tensor in tensors.items()}
                try:
                    outcomes[i][candidate] = self._train(
                        clients[i],
                        start.params[i, candidate],
                        owned[i],
                        received,
                        stage,
                        terms,
                        round_,
                    )
                except FlbenchError:
                    raise
                except (Exception, SystemExit) as error:
                    raise PluginError(
                        f"round {round_}: {self.workspace.module.provided_by}: client {clients[i]}"
                        f" failed in stage '{stage.label}': {in_one_line(error)}"
                    ) from error
                trained[i, candidate] = self.workspace.snapshot()
        used = [len(rows) for rows in owned]
        return stack_upload(stage, round_, start, trained, used, outcomes)

    def _train(
        self,
        client: int,
        row: Tensor,
        rows: Tensor,
        received: dict[str, Tensor],
        stage: Stage,
        terms: Sequence[Term],
        round_: int,
    ) -> Outcome:
        """Train one model on a client's rows of the pool; the workspace holds it afterwards."""
        space, pool = self.workspace, self.samples
        module, fabric, optimizer = space.module, space.fabric, space.optimizer
        name = pool.name(client)
        space.seed(torch_seed(self.seed, "dropout", round_, name, stage.label))
        space.load(row)
        module.start, module.received = row, received
        loss_start = mean_loss(space, pool.x[rows], pool.y[rows]) if stage.losses else torch.nan
        module.train()
        loss_sum = torch.zeros((), dtype=torch.float64, device=space.device)
        step_count = 0
        for number, phase in enumerate(module.phases(stage.epochs)):
            batches = self._steps(len(rows), phase)
            optimizer.state.clear()
            module.on_phase_start(number)
            address = (round_, name, stage.label, number)
            phase_steps = 0
            for order in orders(len(rows), phase.epochs, self.seed, *address):
                shuffled = rows[torch.as_tensor(order)]
                x, y = pool.x[shuffled], pool.y[shuffled]
                for step in batches:
                    parts = [(x[cut], y[cut]) for cut in step]
                    batch = parts[0] if len(parts) == 1 else tuple(parts)
                    before = space.snapshot() if phase.mask is not None else None
                    with fabric.autocast():
                        loss = module.training_step(batch, phase_steps)
                        for term in terms:
                            loss = loss + term(module)
                    space.clear_gradients()
                    fabric.backward(loss)
                    optimizer.step()
                    if before is not None and phase.mask is not None:
                        space.restore_frozen(before, phase.mask.to(space.device))
                    loss_sum += loss.detach()
                    phase_steps += 1
            step_count += phase_steps
        loss_end = mean_loss(space, pool.x[rows], pool.y[rows]) if stage.losses else torch.nan
        module.steps = step_count
        return Outcome(
            steps=step_count,
            loss=float(loss_sum) / step_count if step_count else torch.nan,
            loss_start=loss_start,
            loss_end=loss_end,
            extras=self._extras(rows),
        )

    def epoch_steps(self, clients: Tensor) -> Tensor:
        """Optimiser steps of one epoch over each client's training samples, shape (n,), int64."""
        phase = LocalPhase(1)
        sizes = self.samples.sizes("train")[clients].tolist()
        return torch.tensor([len(self._steps(size, phase)) for size in sizes], dtype=torch.int64)

    def _steps(self, samples: int, phase: LocalPhase) -> list[list[slice]]:
        """The optimiser steps of one epoch; see `steps`."""
        module, space = self.workspace.module, self.workspace
        per_step = phase.batches_per_step or module.batches_per_step
        size, skip_single = module.local.batch_size, space.has_batchnorm
        return steps(samples, size, per_step, skip_single=skip_single)

    def _extras(self, rows: Tensor) -> Extras:
        """What the client uploads beside its parameters, from its rows of the pool."""
        module = self.workspace.module
        if type(module).on_local_end is ClientModule.on_local_end:
            return {}
        extras = module.on_local_end(self.samples.x[rows], self.samples.y[rows])
        return {name: value.detach().clone() for name, value in extras.items()}


def stack_upload(
    stage: Stage,
    round_: int,
    start: Dispatched,
    trained: Tensor,
    used: list[int],
    outcomes: list[list[Outcome]],
) -> Upload:
    """Build the upload; steps, loss and extras are those of a client's first trained candidate.

    Args:
        stage: the stage.
        round_: number of the round, for messages.
        start: the start of its clients.
        trained: trained models, shape (n, c, W).
        used: number of training samples of each client.
        outcomes: outcome of each client and candidate.
    """
    acting, candidates, _ = trained.shape
    first = [next((o for o in row if o is not IDLE), IDLE) for row in outcomes]
    kinds = [{n: (tuple(e.shape), e.dtype) for n, e in one.extras.items()} for one in first]
    names = common_extras(kinds, stage, round_)

    def table(field: str) -> Tensor:
        values = [[getattr(outcome, field) for outcome in row] for row in outcomes]
        return torch.tensor(values, dtype=torch.float64).reshape(acting, candidates)

    return Upload(
        ids=stage.clients,
        params=trained,
        active=start.active,
        rows=start.rows,
        samples=torch.tensor(used, dtype=torch.int64),
        steps=torch.tensor([outcome.steps for outcome in first], dtype=torch.int64),
        loss=torch.tensor([outcome.loss for outcome in first], dtype=torch.float64),
        loss_start=table("loss_start"),
        loss_end=table("loss_end"),
        chosen=torch.zeros(acting, dtype=torch.int64),
        extras={name: torch.stack([outcome.extras[name] for outcome in first]) for name in names},
    )


Kind = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a client's entry in an extra."""


def common_extras(known: Sequence[dict[str, Kind]], stage: Stage, round_: int) -> dict[str, Kind]:
    """The extras of an upload, from those of its clients.

    Raises:
        PluginError: they differ.
    """
    for kinds in known:
        if kinds != known[0]:
            odd = sorted(n for n in known[0] | kinds if known[0].get(n) != kinds.get(n))
            where = f"round {round_}: stage '{stage.label}'"
            raise PluginError(f"{where}: clients differ in what they upload: {', '.join(odd)}")
    return known[0] if known else {}
