"""FLTrust: the server trusts updates that point where its own update points.

Cao, Fang, Liu, Gong, "FLTrust: Byzantine-robust federated learning via trust bootstrapping", NDSS
2021, Algorithm 2.

    g_0 = update of the server's own training;  TS_i = max(0, cos(g_i, g_0))
    w <- w + alpha / sum_i TS_i  sum_i TS_i |g_0| / |g_i| g_i,  g_i = u_i - w

The root data set are the samples that the server owns (`server_samples`); it trains on them as a
client does: the suite's epochs, batch size, learning rate and momentum. Each row of the bank is
computed from its own members; if none is trusted, it stays. Only trainable scalars are compared;
buffers are averaged with the same trust.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FLTrust:
    """The server trusts updates that point where its own update points."""

    paper: ClassVar[str] = "Cao, Fang, Liu, Gong, NDSS 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "server"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(suite={"server_samples": 20})

    alpha: Annotated[float, Gt(0), "alpha, the global learning rate"] = 1.0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> None:
        """The server must own samples."""
        ctx.server_data()

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The trusted mean of each row's members; a row without uploads keeps its values."""
        rows, trainable = state.models.clone(), ctx.layout.trainable
        trusts: dict[str, list[float]] = {}
        for row, shares in enumerate(membership.shares(upload.ids, len(rows))):
            members = shares.nonzero()[:, 0]
            if not len(members):
                continue
            start, uploads = state.models[row], upload.selected()[members.to(rows.device)]
            own = (self.trained(start, row, ctx) - start)[trainable].double()
            mean, trust = self.trusted((uploads - start)[:, trainable].double(), own)
            rows[row] = fl.weighted_mean(
                rows[row][None], uploads, trust.cpu()[None], ctx.layout.counters
            )[0]
            rows[row, trainable] = start[trainable] + self.alpha * mean.float()
            trusts[str(row)] = [round(float(one), 6) for one in trust]
        ctx.note("fltrust.trust", trusts)
        return fl.Models(rows)

    def trusted(self, updates: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """The trusted mean (P,) of updates (n, P), given the server's own, and their trust (n,)."""
        trust = fl.similarity.cosine(updates, own[None])[:, 0].clamp(min=0).to(updates)
        lengths = updates.norm(dim=1)
        scale = torch.where(lengths > 0, own.norm() / lengths, 0.0)
        total = trust.sum()
        mean = (trust * scale) @ updates / total if total > 0 else torch.zeros_like(own)
        return mean, trust

    def trained(self, start: Tensor, row: int, ctx: fl.Context) -> Tensor:
        """A model after the server's own training, shape (W,)."""
        x, y = ctx.server_data()
        size, rule = ctx.local.batch_size, ctx.local
        rng = ctx.rng("fltrust", ctx.round, row)
        epochs = math.ceil(rule.epochs)
        orders = [torch.as_tensor(rng.permutation(len(x))) for _ in range(epochs)]
        batches = [part.to(x.device) for order in orders for part in order.split(size)]

        def loss(point: Tensor, step: int) -> Tensor:
            some = batches[step]
            return fl.cross_entropy(ctx.forward(point[None], x[some])[0], y[some])

        sgd = rule.optimizer == "sgd"
        steps = max(1, math.floor(len(batches) * rule.epochs / epochs + 1e-9))
        return fl.minimise(start, loss, steps, rule.lr, "sgd" if sgd else "adam", rule.momentum)
