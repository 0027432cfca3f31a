"""Label flip: some clients train on false labels.

Fang, Cao, Jia, Gong, "Local model poisoning attacks to Byzantine-robust federated learning", USENIX
Security 2020, Section 4 (label flipping attack); as Biggio, Nelson, Laskov, ACML 2011, for SVMs.

    y <- C - 1 - y for the training samples of the attackers, or y <- labels[y]

The false labels are in every step of training, whatever the method's loss is. What attackers report
of themselves (the loss of a model on their samples, label counts, class means) is true.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

import flbench as fl

FLAG = "label-flip.attacks"


@dataclass(frozen=True)
class LabelFlip:
    """Some clients train on false labels."""

    paper: ClassVar[str] = "Fang, Cao, Jia, Gong, USENIX Security 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "client"
    across_networks: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"share": 0.0}})

    share: Annotated[
        float, Ge(0), Le(1), fl.only_with("attackers", ()), "share of the clients that attack"
    ] = 0.2
    labels: Annotated[
        tuple[int, ...], "false label of each label; none = C - 1 - y, as in the paper"
    ] = ()
    attackers: Annotated[
        tuple[int, ...], "ids of those who attack, whom a suite may leave unjudged; none = a share"
    ] = ()

    @fl.hookimpl(wrapper=True)
    def client_module(self, ctx: fl.Context) -> Generator[None, fl.ClientModule, fl.ClientModule]:
        """Any method's module, on other labels."""
        module = yield
        false = self.labels or tuple(reversed(range(ctx.classes)))
        if len(false) != ctx.classes or not set(false) <= set(range(ctx.classes)):
            raise fl.UserError(
                f"labels: {ctx.classes} labels from 0 to {ctx.classes - 1} expected, got {false}"
            )

        table = torch.tensor(false)

        def flipped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x, table.to(y.device)[y]

        return fl.attacks.poisoned(module, FLAG, flipped)

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients know whether they attack."""
        attackers = fl.attacks.attackers(ctx, self.share, self.attackers)
        return fl.Start(client_memory={FLAG: fl.attacks.flags(ctx, stage.clients, attackers)})
