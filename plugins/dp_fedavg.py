"""DP-FedAvg: clients clip their updates and add their share of Gaussian noise.

McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR
2018, Algorithm 1 (flat clipping), with the noise of the sum added by the n clients of a stage:

    u_i - w <- (u_i - w) min(1, S / |u_i - w|_2) + N(0, z^2 S^2 / n)

The sum then has noise of standard deviation z S, as in the paper. Departures: clients are averaged
as the method says (FedAvg: by samples, while the paper's bound holds for capped weights); no
epsilon is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt

import flbench as fl


@dataclass(frozen=True)
class DPFedAvg:
    """Clients clip their updates and add their share of Gaussian noise."""

    paper: ClassVar[str] = "McMahan, Ramage, Talwar, Zhang, ICLR 2018"
    year: ClassVar[int] = 2018
    kind: ClassVar[str] = "global"
    across_networks: ClassVar[bool] = True

    clip: Annotated[float, Gt(0), "S, the largest norm of an update"] = 1.0
    noise: Annotated[float, Ge(0), "z, standard deviation of the sum's noise over S"] = 0.1

    @fl.hookimpl
    def encode(self, stage: fl.Stage, ctx: fl.Context) -> Callable[[fl.Message], fl.Message]:
        """Clip, then add noise from random numbers of the client's own."""
        deviation = self.noise * self.clip / math.sqrt(len(stage.clients))

        def private(message: fl.Message) -> fl.Message:
            update = message.update
            update = update * (self.clip / update.norm().clamp(min=self.clip))
            rng = ctx.rng("dp-fedavg", ctx.round, stage.label, client=message.client)
            noise = torch.from_numpy(rng.standard_normal(len(update), dtype="float32"))
            return message.sending(update + deviation * noise.to(update.device))

        return private
