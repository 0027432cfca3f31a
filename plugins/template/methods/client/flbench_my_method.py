"""my-method: FedAvg whose clients train with smoothed labels.

My paper.

    client i minimises the cross-entropy of (1 - smoothing) y + smoothing / C,  C = number of labels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch.nn.functional as F
from annotated_types import Ge, Lt
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class MyMethod:
    """FedAvg whose clients train with smoothed labels."""

    paper: ClassVar[str] = "My paper"
    year: ClassVar[int] = 2026
    kind: ClassVar[str] = "global"  # all clients get one model
    tasks: ClassVar[tuple[str, ...]] = ("classes",)  # numbers have no smoothed labels
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"smoothing": 0.0}})

    smoothing: Annotated[float, Ge(0), Lt(1), "share of a label that all labels get"] = 0.1

    @fl.hookimpl
    def batch_loss(self) -> fl.BatchLoss:
        """Cross-entropy with smoothed labels, in nats; any other method can be named beside it."""

        def smoothed(batch: fl.Batch) -> Tensor:
            logits = batch.logits.movedim(-1, 1)  # of text, classes come last
            return F.cross_entropy(logits, batch.y, label_smoothing=self.smoothing)

        return smoothed
