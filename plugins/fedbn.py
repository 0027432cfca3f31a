"""FedBN: normalisation layers stay with their clients, all others are averaged.

Li, Jiang, Zhang, Kamp, Dou, "FedBN: federated learning on non-IID features via local batch
normalization", ICLR 2021, Algorithm 1. Without normalisation layers it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import flbench as fl


@dataclass(frozen=True)
class FedBN:
    """Normalisation layers stay with their clients, all others are averaged."""

    paper: ClassVar[str] = "Li, Jiang, Zhang, Kamp, Dou, ICLR 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client, all equal at first."""
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """Normalisation layers are not sent, in either direction."""
        return fl.Start(sent_mask=~ctx.layout.norm)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The mean of the other layers goes into every row."""
        mask, counters = ~ctx.layout.norm, ctx.layout.counters
        return fl.Models(fl.partial_mean(state.models, upload, mask, counters))
