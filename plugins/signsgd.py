"""signSGD with majority vote, and EF-signSGD: clients send one bit for each scalar.

Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with majority vote is communication efficient
and fault tolerant", ICLR 2019, Algorithm 1:

    w <- w + delta sign(sum_i sign(u_i - w))

Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes SignSGD and other gradient compression
schemes", ICML 2019, Algorithm 1:

    p_i = u_i - w + e_i;  client i sends |p_i|_1 / d sign(p_i) and keeps e_i <- p_i - what it sent

One bit has no zero: with signsgd a scalar that did not move gets either sign by a coin of the
client's, so that it moves nothing in the mean; with error feedback +1, which the error corrects. In
a tied vote, the scalar stays. Buffers (BatchNorm) are sent and averaged as they are. Of several
rows, each takes the vote of its members. What clients send under error feedback (|p_i|_1 / d takes
32 bits) is averaged as any method says. A probe, which nobody votes on, is sent whole by signsgd.

Departures: u_i - w is the update of all local epochs, not a gradient. The model goes down whole (in
the paper one bit for each scalar), because the clients of a round were not there in the rounds
before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt
from torch import Tensor

import flbench as fl

ERROR = "ef-signsgd.e"


def signs(values: Tensor) -> Tensor:
    """+1 or -1, of the shape of the values."""
    return torch.where(values < 0, -1.0, 1.0)


@dataclass(frozen=True)
class SignSGD:
    """Clients send the signs of their updates; the server moves by their majority."""

    paper: ClassVar[str] = "Bernstein, Zhao, Azizzadenesheli, Anandkumar, ICLR 2019"
    year: ClassVar[int] = 2019
    kind: ClassVar[str] = "global"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(params={"step": 0.1})

    step: Annotated[float, Gt(0), "delta, how far the server moves each scalar"] = 0.01

    @fl.hookimpl
    def encode(self, stage: fl.Stage, ctx: fl.Context) -> Callable[[fl.Message], fl.Message] | None:
        """The signs alone; a probe is sent whole."""

        def signed(message: fl.Message) -> fl.Message:
            update = message.update
            rng = ctx.rng("signsgd", ctx.round, stage.label, client=message.client)
            coins = torch.from_numpy(rng.random(len(update), dtype="float32")) - 0.5
            either = signs(coins).to(update)
            return message.sending(torch.where(update == 0, either, signs(update)), bits=1)

        return signed if stage.aggregates else None

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """A step of each row along the majority of its members' signs."""
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        size = ctx.layout.parameters
        for row, shares in enumerate(membership.shares(upload.ids, len(rows))):
            members = (shares > 0).nonzero()[:, 0].to(rows.device)
            start = state.models[row, :size]
            votes = (upload.selected()[members, :size] - start).sign().sum(dim=0)
            rows[row, :size] = start + self.step * votes.sign()
        return fl.Models(rows)


@dataclass(frozen=True)
class EFSignSGD:
    """Clients send the signs of their updates, scaled, and keep the error for the next time."""

    paper: ClassVar[str] = "Karimireddy, Rebjock, Stich, Jaggi, ICML 2019"
    year: ClassVar[int] = 2019
    kind: ClassVar[str] = "client"
    across_networks: ClassVar[bool] = True

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Every client remembers its error, zero at first."""
        error = ctx.repeated(torch.zeros_like(ctx.initial))
        return fl.Setup(memory={ERROR: fl.Memory(error, "client")})

    @fl.hookimpl
    def encode(self, stage: fl.Stage) -> Callable[[fl.Message], fl.Message]:
        """The signs and one length; the error of a probe is forgotten with it."""
        return self.scaled if stage.aggregates else self.once

    def once(self, message: fl.Message) -> fl.Message:
        """The signs of the update alone; the client keeps its error as it is."""
        nothing = torch.zeros_like(message.memory[ERROR])
        sent = self.scaled(replace(message, memory={**message.memory, ERROR: nothing}))
        return replace(sent, memory=message.memory)

    def scaled(self, message: fl.Message) -> fl.Message:
        """The signs of the update and of the error so far, times their mean magnitude."""
        before = message.memory[ERROR]
        wanted = message.update + torch.where(message.mask, before, 0.0)
        length = wanted.abs().sum() / message.mask.sum().clamp(min=1)
        sent = torch.where(message.mask, length * signs(wanted), 0.0)
        error = torch.where(message.mask, wanted - sent, before)
        return message.sending(sent, bits=1, overhead=message.overhead + 32, memory={ERROR: error})
