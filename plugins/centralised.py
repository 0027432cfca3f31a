"""Centralised: one model trained on the training data of all clients, a reference for accuracy.

The reference of Rokvic, Danassis, Faltings, "Lazy but effective: collaborative personalized
federated learning with heterogeneous data", IJCNN 2025, section IV.

    w <- LocalTrain(w, union of all D_i) for `epochs` epochs per round; all clients use w

The clients' samples are sent once and counted in scalars. The method is never ranked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

import flbench as fl


@dataclass(frozen=True)
class Centralised:
    """All training data in one place; a reference, never ranked."""

    paper: ClassVar[str] = "Rokvic, Danassis, Faltings, IJCNN 2025"
    year: ClassVar[int] = 2025
    kind: ClassVar[str] = "global"
    pools_data: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        fails={
            "relabelled-clients": "the trainer has the random numbers of client 0",
            "bytes-add-up": "the trainer has all data: no model is sent",
        }
    )

    epochs: Annotated[int, Ge(1), "passes over all data per round"] = 1

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        """One trainer with the samples of all clients, which are sent in round 1."""
        if ctx.round == 1:
            size = ctx.client_data(0)[0][0].numel()
            ctx.send("up", ctx.everybody, "samples", ctx.samples * (size + 1))
        return (fl.Stage("train", ctx.everybody[:1], self.epochs, pooled=True),)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """No model is sent."""
        return fl.Start(sent_mask=ctx.layout.none_mask)
