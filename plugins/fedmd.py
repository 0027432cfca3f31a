"""FedMD: clients with different networks learn from what all of them predict on common samples.

Li, Wang, "FedMD: heterogenous federated learning via model distillation", arXiv 1910.03581 (2019),
Algorithm 1.

    communicate   f_i(x) for all common samples x
    aggregate     f(x) = mean of f_i(x)
    digest        steps of client i on mean |f_i(x) - f(x)|
    revisit       client i trains on its own samples

The common samples are the server's (`server_samples`), which all clients hold. Departure: no client
is trained on their labels first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

MEAN = "fedmd.mean"


@dataclass(frozen=True)
class FedMD:
    """Clients with different networks learn from what all of them predict on common samples."""

    paper: ClassVar[str] = "Li, Wang, arXiv 1910.03581"
    year: ClassVar[int] = 2019
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    across_networks: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        suite={"server_samples": 20, "further_models": [{"name": "mlp", "hidden": 5}]}
    )

    steps: Annotated[int, Ge(1), "steps towards the mean, on all common samples"] = 10

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model per client; no mean is known."""
        x, _ = ctx.server_data()
        mean = torch.full((len(x), ctx.classes), torch.nan, device=x.device)
        return fl.one_model_per_client(ctx, {MEAN: fl.Memory(mean)})

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> Sequence[fl.Stage]:
        """Digest, once there is a mean; revisit."""
        digest = fl.Stage("train", ctx.cohort, self.steps, name="digest", steps=self.steps)
        revisit = fl.Stage("train", ctx.cohort, ctx.local.epochs)
        return [revisit] if state.memory[MEAN].isnan().any() else [digest, revisit]

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """No model is sent; the mean is."""
        mean = state.memory[MEAN]
        mean = mean.expand(len(stage.clients), *mean.shape)
        digests = stage.name == "digest"
        return fl.Start(sent_mask=ctx.layout.none_mask, extras={"mean": mean} if digests else {})

    @fl.hookimpl
    def batch_loss(self, stage: fl.Stage, ctx: fl.Context) -> fl.BatchLoss | None:
        """The distance to the mean."""
        x, _ = ctx.server_data()

        def distance(batch: fl.Batch) -> Tensor:
            gap: Tensor = batch.module(x) - batch.module.received["mean"]
            return gap.abs().mean()

        return distance if stage.name == "digest" else None

    @fl.hookimpl
    def report(self, stage: fl.Stage, ctx: fl.Context) -> fl.Reporter | None:
        """What a client predicts."""
        common, _ = ctx.server_data()

        @torch.no_grad()
        def logits(module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
            module.eval()
            return fl.Report(sent={"logits": module(common)})

        return None if stage.name == "digest" else logits

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The mean of what clients predict; every client keeps its model."""
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        sent = upload.extras.get("logits")
        return fl.Models(rows, {} if sent is None else {MEAN: sent.mean(dim=0)})
