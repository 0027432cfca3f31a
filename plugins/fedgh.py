"""FedGH: clients with different bodies share a head, which the server trains on their class means.

Yi, Wang, Liu, Shi, Yu, "FedGH: heterogeneous federated learning with generalized global header",
ACM MM 2023, Algorithm 1.

    client    gets the head, trains body and head, uploads z_{i,y}: mean feature of its class y
    server    steps of the head on the mean over all (i, y) of CE(head(z_{i,y}), y)

Departure: the server's steps use all means of a round together, instead of client after client.
Newcomers have the shared head on the initial body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

import flbench as fl

COMMON = {"further_models": [{"name": "mlp", "hidden": 3, "norm": True}], "common_head": True}


@dataclass(frozen=True)
class FedGH:
    """Clients with different bodies share a head, trained at the server on their class means."""

    paper: ClassVar[str] = "Yi, Wang, Liu, Shi, Yu, ACM MM 2023"
    year: ClassVar[int] = 2023
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    across_networks: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(suite=COMMON)

    steps: Annotated[int, Ge(0), "gradient steps of the head per round"] = 20
    lr: Annotated[float, Gt(0), "learning rate of these steps"] = 0.1

    def head(self, ctx: fl.Context) -> Tensor:
        """Mask of the head, shape (W,), bool; weights before biases."""
        head = ctx.layout.head & ctx.layout.common
        if ctx.layout.head.any() and not head.any():
            raise fl.Undefined("the networks have no head in common: set `common_head = true`")
        shapes = [slot.shape for slot in ctx.layout.slots if slot.head and slot.network is None]
        d = shapes[0][-1] if shapes else 0
        if shapes != [(ctx.classes, d), (ctx.classes,)]:
            raise fl.Undefined("the network has no linear head with biases to train on class means")
        return head

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model per client."""
        self.head(ctx)
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """The head is sent; no parameter comes back."""
        return fl.Start(sent_mask=self.head(ctx), returned_mask=ctx.layout.none_mask)

    @fl.hookimpl
    def report(self, ctx: fl.Context) -> fl.Reporter:
        """Mean feature of each class, shape (C, d); NaN where a client has none."""

        @torch.no_grad()
        def class_means(module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
            module.eval()
            z, of_class = module.features(x)[0], F.one_hot(y, ctx.classes).to(x)
            return fl.Report(sent={"means": of_class.T @ z / of_class.sum(dim=0)[:, None]})

        return class_means

    def trained(self, head: Tensor, means: Tensor) -> Tensor:
        """The head after the server's steps on means, shape (n, C, d)."""
        known = ~means.isnan().any(dim=2)
        z, y, d = means[known], known.nonzero()[:, 1], means.shape[2]

        def loss(point: Tensor, step: int) -> Tensor:
            weight, bias = point.split((means.shape[1] * d, len(point) - means.shape[1] * d))
            return F.cross_entropy(z @ weight.view(-1, d).T + bias, y)

        return fl.minimise(head, loss, self.steps, self.lr)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """Every row gets the head that the server has trained."""
        rows, head = state.models.clone(), self.head(ctx)
        rows[upload.ids] = upload.selected()
        rows[:, head] = self.trained(state.models[0, head], upload.extras["means"])
        return fl.Models(rows)
