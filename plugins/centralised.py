"""Centralised: all clients' training data in one place, the line nobody without the data can draw.

The reference of Rokvic, Danassis, Faltings, "Lazy but effective: collaborative personalized
federated learning with heterogeneous data", IJCNN 2025, section IV.

    w <- LocalTrain(w, union of all D_i) for `epochs` epochs a round; everybody is judged by w

The clients' samples cross once, and are counted in scalars. It is never ranked.
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
            "relabelled-clients": "the trainer goes by the name of client 0, whoever that is",
            "bytes-add-up": "the trainer owns all data: nothing crosses",
        }
    )

    epochs: Annotated[int, Ge(1), "passes over all data per round"] = 1

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        """One trainer with everybody's samples."""
        if ctx.round == 1:
            size = ctx.client_data(0)[0][0].numel()
            ctx.send("up", ctx.everybody, "samples", ctx.samples * (size + 1))
        return (fl.Stage("train", ctx.everybody[:1], self.epochs, pooled=True),)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """No model crosses."""
        return fl.Start(sent_mask=ctx.layout.none_mask)
