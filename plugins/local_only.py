"""Local-only: every client trains its own model, and nothing is sent.

    w_i <- LocalTrain(w_i, D_i), all from the same w_0

The baseline of Rokvic, Danassis, Faltings, IJCNN 2025, section IV-C, and of most others; also
called SOLO (FLIS), Standalone (DC-PFL) and Local (FedC2I).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import flbench as fl


@dataclass(frozen=True)
class LocalOnly:
    """Every client trains its own model; nothing is sent."""

    paper: ClassVar[str] = "Rokvic, Danassis, Faltings, IJCNN 2025"
    year: ClassVar[int] = 2025
    kind: ClassVar[str] = "personalised"
    baseline: ClassVar[bool] = True
    row_per_client: ClassVar[bool] = True
    across_networks: ClassVar[bool] = True
    presets: ClassVar[fl.Presets] = {"fedc2i": {"schedule": "full"}, "dc-pfl": {"schedule": "full"}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        fails={"every-hook-answers": "plan acts with schedule=full only"}
    )

    schedule: Annotated[
        Literal["matched", "full"],
        "clients that train in a round: 'matched' the sampled cohort, as in federated methods;"
        " 'full' all clients",
    ] = "matched"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client, all equal at first."""
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage] | None:
        """With `schedule=full` all clients train."""
        if self.schedule == "matched":
            return None
        return (fl.Stage("train", ctx.everybody, ctx.local.epochs),)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """Nothing is sent, in both directions."""
        return fl.Start(sent_mask=ctx.layout.none_mask)
