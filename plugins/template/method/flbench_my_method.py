"""my-method: FedAvg whose server moves a part of the way to the mean.

My paper.

    w <- w + step (wbar - w),  wbar = the sample-weighted mean of the uploads
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt

import flbench as fl


@dataclass(frozen=True)
class MyMethod:
    """FedAvg whose server moves a part of the way to the mean."""

    paper: ClassVar[str] = "My paper"
    year: ClassVar[int] = 2026
    kind: ClassVar[str] = "global"  # all clients get one model
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"step": 1.0}})

    step: Annotated[float, Gt(0), "how far the server goes; 1 = to the mean"] = 0.5

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """Step from the old models to the means; what is no parameter is averaged plainly."""
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        size = ctx.layout.parameters
        rows[:, :size] = torch.lerp(state.models[:, :size], rows[:, :size], self.step)
        return fl.Models(rows)
