"""FedNova: normalised averaging, so that clients with more steps have no larger weight.

Wang, Liu, Liang, Joshi, Poor, "Tackling the objective inconsistency problem in heterogeneous
federated optimization", NeurIPS 2020.

    d_i = (w - u_i) / a_i;  tau = sum p_i a_i;  w <- w - tau sum p_i d_i,  p_i = n_i / sum n_j
    a_i = T_i (SGD); [T - rho (1 - rho^T) / (1 - rho)] / (1 - rho) (momentum rho);
          (1 - (1 - eta mu)^T) / (eta mu) (proximal term mu, where tau = sum p_i T_i)

Buffers are averaged by sample counts. Departure: a proximal term together with momentum is refused;
the released optimiser adds the term to the momentum buffer, which the paper does not describe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FedNova:
    """Normalised averaging: clients with more steps have no larger weight."""

    paper: ClassVar[str] = "Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "global"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        fails={"every-hook-answers": "the term vanishes with mu=0, the default"}
    )

    mu: Annotated[float, Ge(0), "strength of a proximal term, as in FedProx"] = 0.0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> None:
        """Refuse settings for which a_i is not defined."""
        if ctx.local.optimizer != "sgd":
            raise fl.Undefined(
                f"FedNova is defined for SGD, the suite trains with {ctx.local.optimizer}"
            )
        if self.mu and ctx.local.momentum:
            raise fl.Undefined("FedNova with mu > 0 needs local.momentum=0")

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], Tensor] | None:
        """The proximal term, if there is one."""
        if not self.mu:
            return None

        def term(module: fl.ClientModule) -> Tensor:
            u = module.flat()
            return self.mu / 2 * (u - module.start[: len(u)]).square().sum()

        return term

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """Step by tau times the weighted mean of the normalised updates."""
        if membership.weights is not None:
            raise fl.Undefined("FedNova needs disjoint groups: members start from one model")
        ctx.send("up", upload.ids, "a_i", 1)
        a = fl.effective_steps(upload.steps, ctx.local.momentum, ctx.local.lr * self.mu)
        size, rows = ctx.layout.parameters, state.models
        averaged = fl.member_mean(rows, upload, membership, ctx.layout.counters)
        shares = membership.shares(upload.ids, len(rows)) * upload.client_weights
        tau = (shares * (upload.steps.double() if self.mu else a)).sum(dim=1)
        total = shares.sum(dim=1)
        tau = tau / torch.where(total > 0, total, 1.0)  # a row without uploads has no shares
        start = rows[membership.home[upload.ids], :size]
        normalised = (start - upload.selected()[:, :size]) / a.clamp(min=1e-12)[:, None].to(rows)
        mean = fl.weighted_mean(torch.zeros_like(rows[:, :size]), normalised, shares)
        averaged[:, :size] = rows[:, :size] - tau[:, None].to(rows) * mean
        return fl.Models(averaged)
