"""FedDF: the server distils what the clients' models predict together into their mean.

Lin, Kong, Stich, Jaggi, "Ensemble distillation for robust model fusion in federated learning",
NeurIPS 2020, Algorithm 1.

    w <- mean of the clients' models;  steps on KL(softmax(mean of their logits), softmax(f_w))

The samples are those that the server owns (`server_samples`), without their labels. Each row of the
bank is distilled from its own members. It needs whole models: beside a method whose clients keep a
part of what they train, it is undefined.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

import flbench as fl

Starts = Sequence[fl.Start]


@dataclass(frozen=True)
class FedDF:
    """The server distils what the clients' models predict together into their mean."""

    paper: ClassVar[str] = "Lin, Kong, Stich, Jaggi, NeurIPS 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "server"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedavg": {"steps": 0}}, suite={"server_samples": 20}
    )

    steps: Annotated[int, Ge(0), "gradient steps per round; 0 = FedAvg"] = 50
    lr: Annotated[float, Gt(0), "learning rate of Adam"] = 0.001
    batch: Annotated[int, Ge(1), "samples per step"] = 32

    @fl.hookimpl(wrapper=True)
    def dispatch(self, stage: fl.Stage) -> Generator[None, Starts, Starts]:
        """Refuse to distil models of which the server does not get all that is trained."""
        starts = yield
        masks = [s.returned_mask for s in starts] + [s.sent_mask for s in starts]
        kept = ~next(mask for mask in masks if mask is not None)
        trained = next((s.trained_mask for s in starts if s.trained_mask is not None), True)
        if self.steps and stage.aggregates and (kept & trained).any():
            raise fl.Undefined("it needs whole models, and clients of this method keep a part")
        return starts

    @fl.hookimpl(wrapper=True)
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> Generator[None, fl.Models, fl.Models]:
        """Distil after the other method's aggregation."""
        models = yield
        x, _ = ctx.server_data()
        rows = models.rows.clone()
        for row, shares in enumerate(membership.shares(upload.ids, len(rows))):
            members = upload.selected()[(shares > 0).to(rows.device)]
            if len(members) and self.steps:
                teacher = ctx.logits(members, x).mean(dim=0).softmax(dim=-1)
                rows[row] = self.distilled(rows[row], teacher, x, row, ctx)
        return replace(models, rows=rows)

    def distilled(
        self, start: Tensor, teacher: Tensor, x: Tensor, row: int, ctx: fl.Context
    ) -> Tensor:
        """A model that predicts as the teacher does, shape (W,)."""
        rng, size = ctx.rng("feddf", ctx.round, row), min(self.batch, len(x))
        batches = [torch.as_tensor(rng.permutation(len(x))[:size]) for _ in range(self.steps)]

        def loss(point: Tensor, step: int) -> Tensor:
            some = batches[step].to(x.device)
            logits = ctx.forward(point[None], x[some])[0]
            return F.kl_div(logits.log_softmax(dim=-1), teacher[some], reduction="batchmean")

        return fl.minimise(start, loss, self.steps, self.lr, "adam")
