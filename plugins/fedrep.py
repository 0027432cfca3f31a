"""FedPer and FedRep: a common body, personal heads.

FedPer: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers",
arXiv 1912.00818 (2019), Algorithms 1 and 2.

    download theta; train theta_i and phi_i together;
    theta <- sum n_i theta_i / sum n_i;  the model of client i is [theta, phi_i]

FedRep: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized
federated learning", ICML 2021: one after the other.

    download theta; train only phi_i for E_h epochs, then only theta_i for E_b epochs;
    theta <- sum n_i theta_i / sum n_i;  the model of client i is [theta, phi_i]

In FedRep the masks are applied to the update, so momentum and weight decay do not change the frozen
part. The optimiser is reset in each phase; in the head's phase BatchNorm statistics are frozen.
Departure: the body's mean is weighted by samples; that of FedRep's paper is uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

import flbench as fl


def train_statistics(module: fl.ClientModule, train: bool) -> None:
    """Let BatchNorm layers update their statistics, or freeze them."""
    for child in module.net.modules():
        if isinstance(child, _BatchNorm):
            child.train(train)


FREEZE = partial(train_statistics, train=False)
UNFREEZE = partial(train_statistics, train=True)


@dataclass(frozen=True)
class CommonBody:
    """Clients share the body of their models; the rest stays personal."""

    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True

    def shared(self, ctx: fl.Context) -> Tensor:
        """Mask of the body, buffers included, shape (W,), bool."""
        return ctx.layout.body

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client, all equal at first."""
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def dispatch(self, state: fl.State, ctx: fl.Context) -> fl.Start:
        """Only the body is sent, in both directions."""
        return fl.Start(sent_mask=self.shared(ctx))

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The body's mean goes into every row."""
        counters = ctx.layout.counters
        return fl.Models(fl.partial_mean(state.models, upload, self.shared(ctx), counters))


@dataclass(frozen=True)
class FedPer(CommonBody):
    """A common body and personal last layers, trained together."""

    paper: ClassVar[str] = "Arivazhagan, Aggarwal, Singh, Choudhary, arXiv 1912.00818"
    year: ClassVar[int] = 2019
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"personal": 0}})

    personal: Annotated[int, Ge(0), "K_P, last layers that are personal; 0 = FedAvg"] = 1

    def shared(self, ctx: fl.Context) -> Tensor:
        """Mask of all layers but the last K_P, buffers included, shape (W,), bool."""
        layers = ctx.layout.layers
        return ~layers[len(layers) - min(self.personal, len(layers)) :].any(dim=0)


@dataclass(frozen=True)
class FedRep(CommonBody):
    """A common body, personal heads, trained one after the other."""

    paper: ClassVar[str] = "Collins, Hassani, Mokhtari, Shakkottai, ICML 2021"
    year: ClassVar[int] = 2021
    presets: ClassVar[fl.Presets] = {"fedc2i": {"body_epochs": 1}, "cifar100": {"body_epochs": 5}}
    effort: ClassVar[tuple[str, ...]] = ("body_epochs", "final_head_epochs")
    conformance: ClassVar[fl.Conformance] = fl.Conformance(params={"final_head_epochs": 1})

    body_epochs: Annotated[int, Ge(0), "E_b, epochs of the body; the head gets the others"] = 1
    final_head_epochs: Annotated[int, Ge(0), "head epochs of all clients after the last round"] = 0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client, all equal at first; warn if a part never trains."""
        if not ctx.layout.head.any():
            raise fl.Undefined("the network has no head, and FedRep trains it apart")
        if self.body_epochs > ctx.local.epochs:
            raise fl.Undefined(
                f"body_epochs={self.body_epochs}: expected at most local.epochs={ctx.local.epochs}"
            )
        no_head = self.body_epochs == ctx.local.epochs and not self.final_head_epochs
        if no_head or not self.body_epochs:
            still = "head" if no_head else "body"
            epochs = f"body_epochs={self.body_epochs} of local.epochs={ctx.local.epochs}"
            ctx.warn(f"fedrep: {epochs}: the {still} is not trained")
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def phases(self, ctx: fl.Context) -> fl.PhaseRule:
        """The head, then the body."""
        return partial(self.head_then_body, ctx.layout.head)

    def head_then_body(
        self, head: Tensor, module: fl.ClientModule, epochs: int
    ) -> Sequence[fl.LocalPhase]:
        """E - E_b epochs of the head, E_b of the body; with `head_only` the head alone."""
        if "head_only" in module.received:
            return (fl.LocalPhase(epochs, head, start=FREEZE),)
        body_epochs = min(self.body_epochs, epochs)
        return (
            fl.LocalPhase(epochs - body_epochs, head, start=FREEZE),
            fl.LocalPhase(body_epochs, ~head, start=UNFREEZE),
        )

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """After the last round heads can be trained once more."""
        if not self.final_head_epochs or ctx.round != ctx.rounds:
            return None
        stage = fl.Stage("train", clients, self.final_head_epochs, name="final-heads")
        extras = {"head_only": torch.ones(len(clients))}
        return fl.Personal(row=state.membership.home[clients], adaptation=stage, extras=extras)
