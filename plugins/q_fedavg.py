"""q-FedAvg: clients with a larger loss count more.

Li, Sanjabi, Beirami, Smith, "Fair resource allocation in federated learning", ICLR 2020, Algorithm
2, with L = 1 / learning rate.

    Delta_i = L (w - w_i);  h_i = q F_i^(q-1) |Delta_i|^2 + L F_i^q
    w <- w - sum F_i^q Delta_i / sum h_i

F_i is the loss of the model that client i starts from, on its training samples. With q = 0 it is
the uniform mean. Buffers are averaged.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from annotated_types import Ge

import flbench as fl

Stages = Sequence[fl.Stage]


@dataclass(frozen=True)
class QFedAvg:
    """Clients with a larger loss count more."""

    paper: ClassVar[str] = "Li, Sanjabi, Beirami, Smith, ICLR 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "server"

    q: Annotated[float, Ge(0), "how much a larger loss counts; 0 = not at all"] = 1.0

    @fl.hookimpl(wrapper=True)
    def plan(self) -> Generator[None, Stages, Stages]:
        """Clients measure the loss of the model that they start from, and send it."""
        stages = yield
        return [replace(stage, losses=stage.losses or stage.aggregates) for stage in stages]

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """A step along the updates, weighted by the q-th power of the losses."""
        ctx.send("up", upload.ids, "loss", 1)
        size, smoothness = ctx.layout.parameters, 1 / ctx.local.lr
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters, "uniform")
        for row, shares in enumerate(membership.shares(upload.ids, len(state.models))):
            members = (shares > 0).nonzero()[:, 0].to(rows.device)
            if not len(members):
                continue
            trained, start = upload.selected()[members, :size], state.models[row, :size]
            loss = upload.loss_start[members.cpu(), upload.chosen[members.cpu()]].to(rows.device)
            delta = smoothness * (start - trained).double()
            powers = loss**self.q
            h = smoothness * powers
            if self.q:
                h = h + self.q * loss ** (self.q - 1) * delta.square().sum(dim=1)
            rows[row, :size] = (start - powers @ delta / h.sum()).to(rows.dtype)
        return fl.Models(rows)
