"""my-method: FedAvg whose clients train with smoothed labels.

My paper.

    client i minimises the cross-entropy of (1 - smoothing) y + smoothing / C,  C = number of labels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch.nn.functional as F
from annotated_types import Ge, Lt
from torch import Tensor, nn

import flbench as fl


class Smoothed(fl.ClientModule):
    """Local training with smoothed labels."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining, smoothing: float) -> None:
        super().__init__(net, local)
        self.smoothing = smoothing

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one batch, in nats."""
        x, y = batch
        return F.cross_entropy(self(x).movedim(-1, 1), y, label_smoothing=self.smoothing)


@dataclass(frozen=True)
class MyMethod:
    """FedAvg whose clients train with smoothed labels."""

    paper: ClassVar[str] = "My paper"
    year: ClassVar[int] = 2026
    kind: ClassVar[str] = "global"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"smoothing": 0.0}})

    smoothing: Annotated[float, Ge(0), Lt(1), "share of a label that all labels get"] = 0.1

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module that clients train."""
        return Smoothed(net, ctx.local, self.smoothing)
