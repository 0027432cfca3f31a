"""Top-k: clients send the largest scalars of their updates, and the rest when it has grown.

Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018, Algorithm 1, with the update
of all local epochs in place of a gradient.

    g_i = top_k(m_i + u_i - w);  m_i <- m_i + u_i - w - g_i

A message is k scalars and their places, ceil(log2 P) bits each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le

import flbench as fl

MEMORY = "top-k.rest"


@dataclass(frozen=True)
class TopK:
    """Clients send the largest scalars of their updates, and the rest when it has grown."""

    paper: ClassVar[str] = "Stich, Cordonnier, Jaggi, NeurIPS 2018"
    year: ClassVar[int] = 2018
    kind: ClassVar[str] = "client"
    across_networks: ClassVar[bool] = True

    share: Annotated[float, Gt(0), Le(1), "k, as a share of the scalars that may be sent"] = 0.1

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Every client remembers what it did not send."""
        rest = ctx.repeated(torch.zeros_like(ctx.initial))
        return fl.Setup(memory={MEMORY: fl.Memory(rest, "client")})

    @fl.hookimpl
    def encode(self, stage: fl.Stage) -> Callable[[fl.Message], fl.Message]:
        """Keep the k largest scalars; those of a probe are forgotten with it."""
        return self.sparse if stage.aggregates else self.once

    def once(self, message: fl.Message) -> fl.Message:
        """The k largest scalars of the update alone; the client remembers what it did before."""
        nothing = torch.zeros_like(message.memory[MEMORY])
        sent = self.sparse(replace(message, memory={**message.memory, MEMORY: nothing}))
        return replace(sent, memory=message.memory)

    def sparse(self, message: fl.Message) -> fl.Message:
        """The k largest scalars of the update and of what was not sent before."""
        rest = message.memory[MEMORY]
        update = message.update + torch.where(message.mask, rest, 0.0)
        free = int(message.mask.sum())
        count = math.ceil(self.share * free)
        keep = torch.zeros_like(message.mask)
        keep[torch.where(message.mask, update.abs(), -1.0).topk(count).indices] = True
        places = count * math.ceil(math.log2(free)) if 0 < count < free else 0
        return message.sending(
            update,
            mask=keep,
            overhead=message.overhead + places,
            memory={MEMORY: torch.where(message.mask, update.masked_fill(keep, 0.0), rest)},
        )
