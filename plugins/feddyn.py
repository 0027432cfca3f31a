"""FedDyn: each client's loss is corrected, so that all local optima move to the common one.

Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, "Federated learning based on dynamic
regularization", ICLR 2021, Algorithm 1.

    client    w_k <- argmin_u  f_k(u) - <g_k, u> + alpha/2 ||u - w||^2
              g_k <- g_k - alpha (w_k - w)
    server    h   <- h - alpha/N sum_k (w_k - w),  w <- mean_k w_k - h / alpha

Each client keeps its drift d_k = -g_k / alpha, the sum of its own w_k - w. All drifts start at
zero, so h is always the mean of all g_k, and the server adds the mean drift of all N clients to the
mean of the cohort. It is computed as this mean, so that after a split every group has its own h.

It corrects what other methods average: only scalars that are sent have a drift, so `fedper+feddyn`
is FedDyn of the body, with personal heads. Where each client has a row of its own, all of them are
one group. w_k is what the server gets: after encoders, and not from a client whose upload is lost
or late. Departures: local training is the suite's, not exact; both means are weighted by samples
(the paper's are uniform), so that the common optimum is that of FedAvg's objective.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

MEMORY, MOVED = "feddyn.drift", "feddyn.moved"
Starts = Sequence[fl.Start]
Coders = list[Callable[[fl.Message], fl.Message]]


@dataclass(frozen=True)
class FedDyn:
    """Each client's loss is corrected, so that all local optima move to the common one."""

    paper: ClassVar[str] = "Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, ICLR 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "global"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"alpha": 0.0}})

    alpha: Annotated[float, Ge(0), "weight of the dynamic regulariser; 0 = FedAvg"] = 0.1

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One drift per client, zero at first, and what it is to add until the server has it."""
        zero = torch.zeros_like(ctx.initial[: ctx.layout.parameters])
        memory = {name: fl.Memory(ctx.repeated(zero), "client") for name in (MEMORY, MOVED)}
        return fl.Setup(memory=memory)

    @fl.hookimpl(wrapper=True)
    def dispatch(
        self, state: fl.State, stage: fl.Stage, ctx: fl.Context
    ) -> Generator[None, Starts, Starts]:
        """Clients have their drift, and know which scalars are common: those that are sent."""
        starts = yield
        mask = next(start.sent_mask for start in starts if start.sent_mask is not None)
        common = mask.expand(len(stage.clients), -1)[:, : ctx.layout.parameters]
        drift = state.memory[MEMORY][stage.clients]
        known = {"feddyn.drift": drift, "feddyn.common": common.to(drift)}
        return [fl.Start(client_memory=known), *starts]

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], Tensor] | None:
        """Alpha <d_k, u> + alpha/2 ||u - w||^2 over the common scalars."""

        def term(module: fl.ClientModule) -> Tensor:
            u, common = module.flat(), module.received["feddyn.common"]
            moved = (u - module.start[: len(u)]) * common
            return self.alpha * (module.received["feddyn.drift"] @ u + moved.square().sum() / 2)

        return term if self.alpha else None

    @fl.hookimpl
    def report(self, stage: fl.Stage) -> fl.Reporter | None:
        """How far each client moved the common scalars, NaN elsewhere."""

        def moved(module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
            u, common = module.flat().detach(), module.received["feddyn.common"].bool()
            return fl.Report(kept={MOVED: torch.where(common, u - module.start[: len(u)], nan)})

        return moved if self.alpha and stage.aggregates else None

    @fl.hookimpl(wrapper=True)
    def encode(self, stage: fl.Stage, ctx: fl.Context) -> Generator[None, Coders, Coders]:
        """Where other methods code the update, a client has moved by what is left of it."""
        coders, size = (yield), ctx.layout.parameters

        def coded(message: fl.Message) -> fl.Message:
            moved = message.memory[MOVED]
            moved = torch.where(moved.isnan(), nan, message.update[:size])
            return replace(message, memory={**message.memory, MOVED: moved})

        # the last coder is applied first
        return [coded, *coders] if coders and self.alpha and stage.aggregates else coders

    @fl.hookimpl(wrapper=True)
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> Generator[None, fl.Models, fl.Models]:
        """Add the members' mean drift to the mean that another method, or FedAvg, makes.

        The clients that came add to their drifts first how far they moved.
        """
        models = yield
        if not self.alpha:
            return models
        rows, size, ids = models.rows.clone(), ctx.layout.parameters, upload.ids
        drift, moved = state.memory[MEMORY].clone(), state.memory[MOVED].clone()
        drift[ids] = drift[ids] + moved[ids].nan_to_num()
        moved[ids] = 0.0
        # a row for each client; what they share is equal in all
        if membership.home.equal(ctx.everybody):
            shares = torch.ones(1, ctx.clients, dtype=torch.float64)
        else:
            shares = membership.shares(ctx.everybody, len(rows))
            shares[(membership.shares(upload.ids, len(rows)) == 0).all(dim=1)] = 0  # they stay
        nothing = torch.zeros(len(shares), size, device=rows.device)
        rows[:, :size] = rows[:, :size] + fl.weighted_mean(nothing, drift, shares * ctx.samples)
        return replace(models, rows=rows, memory={**models.memory, MEMORY: drift, MOVED: moved})
