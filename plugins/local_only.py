"""Local-only: every client trains alone and nothing is exchanged.

    w_i <- LocalTrain(w_i, D_i), all from the same w_0

The baseline of Rokvic, Danassis, Faltings, IJCNN 2025, section IV-C, and of most others; also
called SOLO (FLIS), Standalone (DC-PFL) and Local (FedC2I).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from flbench import Context, Membership, Setup, Stage, Start, hookimpl


@dataclass(frozen=True)
class LocalOnly:
    """Every client trains alone; nothing is exchanged."""

    schedule: Annotated[
        Literal["matched", "full"],
        "who trains in a round: 'matched' the sampled cohort, so that work equals that of"
        " federated methods; 'full' everybody",
    ] = "matched"

    @hookimpl
    def setup(self, ctx: Context) -> Setup:
        """One row per client, all equal at first."""
        rows = ctx.initial.expand(ctx.clients, -1).clone()
        return Setup(models=rows, membership=Membership(home=torch.arange(ctx.clients)))

    @hookimpl
    def plan(self, ctx: Context) -> Sequence[Stage] | None:
        """Everybody, if asked for."""
        if self.schedule == "matched":
            return None
        return (Stage("train", torch.arange(ctx.clients), ctx.local.epochs),)

    @hookimpl
    def dispatch(self, ctx: Context) -> Start:
        """Nothing crosses, in either direction."""
        return Start(crosses=ctx.layout.nothing)
