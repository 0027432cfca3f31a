"""FedLC: a loss that is calibrated by the client's own number of samples of each class.

Zhang, Li, Li, Xu, Wu, Ding, Wu, "Federated learning with label distribution skew via logits
calibration", ICML 2022, equation 8.

    loss = CE(f(x) - tau n_y^(-1/4), y)

A class without samples has the limit of a margin that grows without bound: it takes no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FedLC:
    """A loss that is calibrated by the client's own number of samples of each class."""

    paper: ClassVar[str] = "Zhang, Li, Li, Xu, Wu, Ding, Wu, ICML 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "client"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"tau": 0.0}})

    tau: Annotated[float, Ge(0), "size of the margin; 0 = FedAvg"] = 1.0

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients know their own class counts."""
        margin = self.tau * ctx.own_label_counts(stage.clients).float() ** -0.25
        return fl.Start(client_memory={"margin": margin.to(ctx.initial.device)})

    @fl.hookimpl
    def batch_loss(self) -> fl.BatchLoss | None:
        """Cross-entropy of the logits minus the margins."""
        return calibrated if self.tau else None


def calibrated(batch: fl.Batch) -> Tensor:
    """The calibrated loss; where a client's counts are not known, such as a newcomer's, plain."""
    margin = batch.module.received.get("margin", 0.0)
    return fl.cross_entropy(batch.logits - margin, batch.y)
