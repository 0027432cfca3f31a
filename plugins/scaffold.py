"""SCAFFOLD: control variates correct the drift of the clients.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for
federated learning", ICML 2020, option II.

    local steps   u <- u - eta (g_i(u) + c - c_i)                 the term <c - c_i, u> of the loss
    afterwards    c_i' = c_i - c + (w - u) / (a_i eta);  upload u and c_i' - c_i
    server        w <- w + eta_g mean(u - w);  c <- c + 1/N sum(c_i' - c_i)

All variates start at zero, so c is always the mean of the members' c_i. It is computed as this
mean, so that after a split every group has its own c. Departures: a_i is T_i for plain SGD and the
sum of momentum's weights otherwise (`momentum_fix`); each client uses its own T_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class Scaffold:
    """Control variates correct the drift of the clients."""

    paper: ClassVar[str] = "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "global"

    server_lr: Annotated[float, Gt(0), "learning rate of the server, eta_g"] = 1.0
    momentum_fix: Annotated[bool, "a_i takes momentum into account"] = True

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One control variate per client, zero at first."""
        if ctx.local.optimizer != "sgd":
            raise fl.Undefined(
                f"SCAFFOLD is defined for SGD, the suite trains with {ctx.local.optimizer}"
            )
        own = ctx.repeated(torch.zeros_like(ctx.initial[: ctx.layout.parameters]))
        return fl.Setup(memory={"scaffold.c_i": fl.Memory(own, "client")})

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Send c of the client's group; clients store their own c_i."""
        if state.membership.weights is not None:
            raise fl.Undefined("SCAFFOLD needs disjoint groups: overlapping rows share no variate")
        own, home = state.memory["scaffold.c_i"], state.membership.home
        groups, group = home[stage.clients].unique(return_inverse=True)
        c = torch.stack([fl.mean_of(own, (home == row).nonzero()[:, 0]) for row in groups])
        return fl.Start(extras={"c": c[group]}, client_memory={"c_i": own[stage.clients]})

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], Tensor]:
        """<c - c_i, u>, whose gradient is the correction."""
        return lambda module: (module.received["c"] - module.received["c_i"]) @ module.flat()

    @fl.hookimpl
    def report(self, stage: fl.Stage) -> fl.Reporter | None:
        """Clients upload the change of their control variate; a probe changes none."""
        return self.change if stage.aggregates else None

    def change(self, module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
        """c_i' - c_i = (w - u) / (a_i eta) - c, shape (P,); 0 of a client without a step."""
        if "c" not in module.received:
            return fl.Report()
        c, rho = module.received["c"], module.local.momentum if self.momentum_fix else 0.0
        if not module.steps:
            return fl.Report({"c_change": torch.zeros_like(c)})
        update = module.start[: len(c)] - module.flat().detach()
        a_i = float(fl.effective_steps(torch.tensor(module.steps), rho))
        weight = a_i * module.local.lr
        return fl.Report({"c_change": update / weight - c})

    @fl.hookimpl
    def weights(self, upload: fl.Upload) -> Tensor:
        """All clients count the same."""
        return fl.client_weights(upload, "uniform")

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """Step along the uniform mean of the updates; store the clients' new variates."""
        counters, size = ctx.layout.counters, ctx.layout.parameters
        rows = fl.member_mean(state.models, upload, membership, counters)
        if self.server_lr != 1:
            before = state.models[:, :size]
            rows[:, :size] = before + self.server_lr * (rows[:, :size] - before)
        own = state.memory["scaffold.c_i"].clone()
        if "c_change" in upload.extras:
            own[upload.ids] += upload.extras["c_change"]
        return fl.Models(rows, {"scaffold.c_i": own})
