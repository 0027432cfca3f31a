"""Centralised with ids: one model of all data that also knows whose sample it sees, a reference.

    f_i(x) = f(x + a_i) + b_i,   a_i, b_i = s u_i, s v_i, which begin as 0
    all weights <- LocalTrain(weights, union of all D_i)

What one gets from a pooled table with the client's id as a column: a shift of the features and a
level of each label for every client, learnt with the network. It shows how much of what
personalisation gains is a matter of levels. `scale` is s: a client's own numbers are in a part of
the samples only, so they would learn slowly beside the network's weights. `rate`: what nobody
averages needs smaller steps than FedAvg's, for which suites choose theirs. Both were chosen by
validation samples of seed 100 on four natural suites. Of tokens there is no shift. A newcomer has
neither. A reference of flbench (2026), of no paper: the fixed effects of a panel.

The clients' samples are sent once and counted in scalars. The method is never ranked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

import flbench as fl


class WithIds(fl.ClientModule):
    """A network whose samples are shifted and whose logits are raised by numbers of the client.

    Attributes:
        scale: s.
        shifts: u, shape (N + 1, d), the last one of who is not known; of tokens (N + 1, 0).
        levels: v, shape (N + 1, C).
    """

    def __init__(
        self,
        net: nn.Module,
        local: fl.LocalTraining,
        clients: int,
        sizes: tuple[int, int],
        s: float,
    ) -> None:
        super().__init__(net, local)
        shifted, classes = sizes
        self.scale = s
        self.shifts = nn.Parameter(torch.zeros(clients + 1, shifted))
        self.levels = nn.Parameter(torch.zeros(clients + 1, classes))

    def of_clients(self, x: Tensor, owners: Tensor) -> Tensor:
        """The logits of samples, shape (b, ...), of clients, shape (b,)."""
        levels = self.scale * self.levels[owners]
        if self.shifts.shape[1]:
            x = x + self.scale * self.shifts[owners].view_as(x)
        logits: Tensor = self(x)
        return logits + (levels if logits.dim() == 2 else levels[:, None])


@dataclass(frozen=True)
class CentralisedId:
    """All training data in one place, with the clients' ids; a reference, never ranked."""

    paper: ClassVar[str] = "a reference of flbench"
    year: ClassVar[int] = 2026
    kind: ClassVar[str] = "personalised"
    pools_data: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        fails={
            "relabelled-clients": "the trainer has the random numbers of client 0",
            "bytes-add-up": "the trainer has all data: no model is sent",
        }
    )

    epochs: Annotated[int, Ge(1), "passes over all data per round"] = 1
    scale: Annotated[float, Gt(0), "of a client's own numbers, beside the network's"] = 2.0
    rate: Annotated[float, Gt(0), "factor of the suite's learning rate"] = 0.2

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        """One trainer with the samples of all clients, which are sent in round 1."""
        if ctx.round == 1:
            size = ctx.client_data(0)[0][0].numel()
            ctx.send("up", ctx.everybody, "samples", ctx.samples * (size + 1))
        rate = self.rate * ctx.local.lr
        return (fl.Stage("train", ctx.everybody[:1], self.epochs, lr=rate, pooled=True),)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """No model is sent."""
        return fl.Start(sent_mask=ctx.layout.none_mask)

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The network, with numbers of every client."""
        x = ctx.client_data(0)[0]
        shifted = x[0].numel() if x.is_floating_point() else 0
        return WithIds(net, ctx.local, ctx.clients, (shifted, ctx.outputs), self.scale)

    @fl.hookimpl
    def batch_loss(self, ctx: fl.Context) -> fl.BatchLoss:
        """The loss of samples of several clients, each with its client's numbers."""
        ends = ctx.samples.cumsum(0)

        def loss(batch: fl.Batch) -> Tensor:
            assert isinstance(batch.module, WithIds)
            owners = torch.bucketize(batch.index, ends.to(batch.y.device), right=True)
            return fl.cross_entropy(batch.module.of_clients(batch.x, owners), batch.y)

        return loss

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The one model, told who asks; a newcomer is not known."""
        return fl.Personal(
            row=torch.zeros_like(clients),
            extras={"id.client": clients.clamp(max=ctx.clients)},
            predictor=predicted,
        )

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The same of newcomers."""
        return self.personalise(state, clients, ctx)


def predicted(module: fl.ClientModule, x: Tensor) -> Tensor:
    """The logits of one client's samples."""
    assert isinstance(module, WithIds)
    owner = module.received["id.client"].to(x.device).long()
    return module.of_clients(x, owner.expand(len(x)))
