"""FedAsync: the server mixes every upload into its model as soon as it arrives.

Xie, Koyejo, Gupta, "Asynchronous federated optimization", arXiv 1903.03934 (2019), Algorithm 1.

    client  minimises f_i(u) + rho / 2 |u - x'|^2 from x', the model with which it was called
    server  x <- (1 - alpha_s) x + alpha_s x_i,   alpha_s = alpha (s + 1)^-a

s, the staleness, is the number of updates since client i was called. A round is as many uploads as
the suite calls clients.

Departure: every client trains all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FedAsync:
    """The server mixes every upload into its model as soon as it arrives."""

    paper: ClassVar[str] = "Xie, Koyejo, Gupta, arXiv 1903.03934"
    year: ClassVar[int] = 2019
    kind: ClassVar[str] = "global"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        suite={"clock": {"seconds_per_step": [1.0, 1.3, 1.7, 2.9, 4.1, 5.3]}}
    )

    mixing: Annotated[float, Gt(0), Le(1), "alpha, the weight of an upload that is not stale"] = 0.6
    decay: Annotated[float, Ge(0), "a, how fast the weight falls with the staleness"] = 0.5
    rho: Annotated[float, Ge(0), "weight of the proximal term; 0 = none"] = 0.005

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Every client is called with the initial model."""
        return fl.Setup(memory=fl.asynchrony.memories(ctx, "fedasync"))

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> list[fl.Stage]:
        """The next uploads, one in a stage."""
        return fl.asynchrony.stages(state, ctx, "fedasync")

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        """The model that was there when the client was called."""
        return fl.asynchrony.start(state, stage, "fedasync")

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], Tensor] | None:
        """Half rho times the squared distance of the trainable scalars from the start."""

        def term(module: fl.ClientModule) -> Tensor:
            u = module.flat()
            return self.rho / 2 * (u - module.start[: len(u)]).square().sum()

        return term if self.rho else None

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """Mix the upload into the model, and call its client again."""
        staleness = fl.asynchrony.staleness(state, upload, "fedasync").double()
        weight = self.mixing * (staleness + 1) ** -self.decay
        both, shares = (
            torch.cat([state.models, upload.selected()]),
            torch.stack([1 - weight, weight]),
        )
        rows = fl.weighted_mean(state.models, both, shares.T, ctx.layout.counters)
        return fl.Models(rows, fl.asynchrony.call_again(state, upload, rows[0], "fedasync"))
