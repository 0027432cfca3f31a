"""Ditto: every client keeps a model of its own, near the global one.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML
2021, Algorithm 1.

    global     w   <- FedAvg
    personal   v_i <- v_i - eta (grad f_i(v_i) + lam (v_i - w)),   w = the downloaded model

Departure: both are trained at once, on the same batches. The network holds w, its copy holds v_i.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

import flbench as fl


class Pair(fl.ClientModule):
    """The global network and the client's own network."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining, lam: float) -> None:
        super().__init__(net, local)
        self.own, self.lam = copy.deepcopy(net), lam

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """Both losses, and the squared distance of the own model from the global one."""
        x, y = batch
        own = torch.cat([part.reshape(-1) for part in self.own.parameters()])
        distance = (own - self.start[: len(own)]).square().sum()
        losses = self.batch_loss(fl.Batch(self, x, y)) + self.batch_loss(
            fl.Batch(self, x, y, self.own(x))
        )
        return losses + self.lam / 2 * distance

    def predict(self, x: Tensor) -> Tensor:
        """Clients predict with their own model."""
        logits: Tensor = self.own(x)
        return logits


@dataclass(frozen=True)
class Ditto:
    """Every client keeps a model of its own, near the global one."""

    paper: ClassVar[str] = "Li, Hu, Beirami, Smith, ICML 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"local-only": {"lam": 0.0}})

    lam: Annotated[float, Ge(0), "weight of the distance; 0 = local training only"] = 0.1

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client: the global model, equal in all of them, and its own."""
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module with two networks."""
        return Pair(net, ctx.local, self.lam)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """Only the global model is sent, in both directions."""
        return fl.Start(sent_mask=ctx.layout.submodule("net"))

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The mean of the global models goes into every row; own models stay local."""
        shared, counters = ctx.layout.submodule("net"), ctx.layout.counters
        return fl.Models(fl.partial_mean(state.models, upload, shared, counters))

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer's own model is the global one."""
        row, common = state.models[0].clone(), ctx.layout.submodule("net")
        row[~common] = row[common]
        return fl.Personal(params=row.expand(len(clients), -1))
