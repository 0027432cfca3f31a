"""FedAvgM: FedAvg with momentum at the server.

Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", arXiv 1909.06335 (2019).

    g = w - wbar;  v <- beta v + g;  w <- w - eta_s v          (Nesterov: w - eta_s (g + beta v))

wbar is the sample-weighted mean of the uploads. Buffers are averaged without momentum. Rows without
uploads in a round, and their momentum, are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Lt

import flbench as fl


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg with momentum at the server."""

    paper: ClassVar[str] = "Hsu, Qi, Brown, arXiv 1909.06335"
    year: ClassVar[int] = 2019
    kind: ClassVar[str] = "server"
    reads_sums: ClassVar[bool] = True
    presets: ClassVar[fl.Presets] = {"nesterov": {"nesterov": True}}

    beta: Annotated[float, Ge(0), Lt(1), "momentum of the server"] = 0.9
    server_lr: Annotated[float, Gt(0), "learning rate of the server, eta_s"] = 1.0
    nesterov: Annotated[bool, "Nesterov momentum"] = False

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One momentum per row of the bank, zero at first."""
        momentum = torch.zeros(1, ctx.layout.parameters, device=ctx.initial.device)
        return fl.Setup(memory={"fedavgm.momentum": fl.Memory(momentum, "model")})

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """Step from the old row along the momentum of the pseudo-gradients."""
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        trained = membership.shares(upload.ids, len(rows)).sum(dim=1) > 0
        size, momentum = ctx.layout.parameters, state.memory["fedavgm.momentum"].clone()
        gradient = state.models[trained, :size] - rows[trained, :size]
        momentum[trained] = self.beta * momentum[trained] + gradient
        step = momentum[trained]
        if self.nesterov:
            step = gradient + self.beta * step
        rows[trained, :size] = state.models[trained, :size] - self.server_lr * step
        return fl.Models(rows, {"fedavgm.momentum": momentum})
