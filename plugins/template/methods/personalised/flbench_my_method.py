"""my-method: FedAvg of a part of the network; the other part stays with each client.

My paper.

    start [shared, own_i], train both, upload shared_i;  shared <- mean of shared_i;  own_i stays
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class MyMethod:
    """FedAvg of a part of the network; the other part stays with each client."""

    paper: ClassVar[str] = "My paper"
    year: ClassVar[int] = 2026
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True

    own: Annotated[Literal["head", "body"], "the part that stays with a client"] = "head"

    def shared(self, ctx: fl.Context) -> Tensor:
        """Mask of the scalars that are averaged, shape (W,), bool."""
        return ctx.layout.body if self.own == "head" else ctx.layout.head

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client, all equal at first."""
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """Only the shared part is sent, in both directions."""
        return fl.Start(sent_mask=self.shared(ctx))

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The mean of the shared part goes into every row."""
        shared, counters = self.shared(ctx), ctx.layout.counters
        return fl.Models(fl.partial_mean(state.models, upload, shared, counters))
