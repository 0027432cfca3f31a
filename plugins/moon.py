"""MOON: features stay near those of the global model, and away from those of the model before.

Li, He, Song, "Model-contrastive federated learning", CVPR 2021, equations 3 and 4.

    loss = sup(x, y) - mu log e_glob / (e_glob + e_prev),  e_m = exp(cos(z, z_m) / tau)

z enters the head (the paper has a projection network before it). `sup` is cross-entropy, or another
method's loss. A client's first previous model is the initial one.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

import flbench as fl

MEMORY = "moon.previous"


@dataclass(frozen=True)
class MOON:
    """Features stay near those of the global model, and away from those of the model before."""

    paper: ClassVar[str] = "Li, He, Song, CVPR 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "client"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"mu": 0.0}})

    mu: Annotated[float, Ge(0), "weight of the contrast; 0 = FedAvg"] = 1.0
    tau: Annotated[float, Gt(0), "temperature"] = 0.5

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Every client remembers the model that it trained last."""
        return fl.Setup(memory={MEMORY: fl.Memory(ctx.repeated(ctx.initial), "client")})

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        """Clients have their previous model; the global one is what they start from."""
        return fl.Start(client_memory={"previous": state.memory[MEMORY][stage.clients]})

    @fl.hookimpl(wrapper=True)
    def batch_loss(self) -> Generator[None, fl.BatchLoss, fl.BatchLoss]:
        """Add the contrast to another method's loss, or to cross-entropy."""
        other = yield

        def loss(batch: fl.Batch) -> Tensor:
            return other(batch) + self.mu * self.contrast(batch)

        return loss if self.mu else other

    def contrast(self, batch: fl.Batch) -> Tensor:
        """The contrastive loss of a batch, a scalar; 0 where no previous model is known."""
        module = batch.module
        if "previous" not in module.received:
            return batch.logits.new_zeros(())
        with torch.no_grad():
            others = [
                module.with_row(row, lambda x: module.features(x)[0], batch.x)
                for row in (module.start, module.received["previous"])
            ]
        near = torch.stack([F.cosine_similarity(batch.features, z) for z in others], dim=1)
        return F.cross_entropy(near / self.tau, torch.zeros_like(near[:, 0], dtype=torch.int64))

    @fl.hookimpl
    def report(self, stage: fl.Stage) -> fl.Reporter | None:
        """Clients keep the model that they trained; not that of a probe."""
        if not stage.aggregates:
            return None
        return lambda module, x, y: fl.Report(kept={MEMORY: module.row()})
