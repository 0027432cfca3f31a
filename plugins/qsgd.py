"""QSGD: clients send their updates rounded at random to a few levels.

Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient
quantization and encoding", NeurIPS 2017, Section 3.1.

    Q_s(v)_i = |v|_2 sgn(v_i) xi_i;  l = floor(s |v_i| / |v|_2)
    xi_i = (l + 1) / s with probability s |v_i| / |v|_2 - l, else l / s

v is the update of all local epochs, not a gradient. A message is the norm, 32 bits, and
ceil(log2(2 s + 1)) bits for each scalar: the fixed-length form, not the paper's Elias code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

import flbench as fl


@dataclass(frozen=True)
class QSGD:
    """Clients send their updates rounded at random to a few levels."""

    paper: ClassVar[str] = "Alistarh, Grubic, Li, Tomioka, Vojnovic, NeurIPS 2017"
    year: ClassVar[int] = 2017
    kind: ClassVar[str] = "client"
    across_networks: ClassVar[bool] = True

    levels: Annotated[int, Ge(1), "s, levels of each sign beside zero"] = 4

    @fl.hookimpl
    def encode(self, stage: fl.Stage, ctx: fl.Context) -> Callable[[fl.Message], fl.Message]:
        """Quantise what is sent, with random numbers of the client's own."""
        bits = math.ceil(math.log2(2 * self.levels + 1))

        def quantised(message: fl.Message) -> fl.Message:
            update = message.update
            norm = update.norm()
            if norm == 0:
                return replace(message, bits=bits, overhead=message.overhead + 32)
            rng = ctx.rng("qsgd", ctx.round, stage.label, client=message.client)
            chance = torch.from_numpy(rng.random(len(update), dtype="float32"))
            level = (update.abs() / norm * self.levels + chance.to(update.device)).floor()
            rounded = norm * update.sign() * level.clamp(max=self.levels) / self.levels
            return message.sending(rounded, bits=bits, overhead=message.overhead + 32)

        return quantised
