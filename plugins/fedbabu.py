"""FedBABU: only the body is trained and averaged; clients adapt a copy before they are evaluated.

Oh, Kim, Yun, "FedBABU: towards enhanced representation for federated image classification", ICLR
2022, Algorithm 1. The head stays as it was initialised and is never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

import flbench as fl

ADAPT = "adapt"


@dataclass(frozen=True)
class FedBABU:
    """Only the body is trained and averaged; clients adapt a copy before they are evaluated."""

    paper: ClassVar[str] = "Oh, Kim, Yun, ICLR 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "personalised"
    effort: ClassVar[tuple[str, ...]] = ("adapt_epochs",)

    adapt_epochs: Annotated[int, Ge(0), "epochs of the whole model before an evaluation"] = 5

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """Only the body is sent, in both directions."""
        return fl.Start(sent_mask=ctx.layout.body)

    @fl.hookimpl
    def phases(self, stage: fl.Stage, ctx: fl.Context) -> fl.PhaseRule | None:
        """The body alone, but for the adaptation."""
        if stage.label == ADAPT:
            return None

        def body_only(module: fl.ClientModule, epochs: int) -> Sequence[fl.LocalPhase]:
            return (fl.LocalPhase(epochs, ctx.layout.body),)

        return body_only

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """Each client adapts a copy; the model itself is evaluated as `federated`."""
        home = state.membership.home[clients].clamp(min=0)
        stage = fl.Stage("train", clients, self.adapt_epochs, ADAPT)
        return fl.Personal(home, adaptation=stage, others={"federated": fl.Personal(home)})

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """A newcomer adapts a copy, too."""
        return self.personalise(state, clients)
