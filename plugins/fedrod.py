"""FedRoD: a generic model for balanced data, and a personal head on top of it.

Chen, Chao, "On bridging generic and personalized federated learning for image classification",
ICLR 2022.

    z = theta(x);  G = phi(z);  Q = psi_i(z)
    generic loss   CE(G + gamma log m_i, y)            trains theta and phi; m_i = class counts
    personal loss  CE(stop(G) + psi_i(stop(z)), y)     trains psi_i
    server         sample-weighted mean of (theta, phi); psi_i stays at client i

Client i predicts with G + Q; `accuracy_generic` is the accuracy of G alone. Both losses use one
forward pass and one step. Departures: psi_i starts at zero, so that an untrained client predicts
like the generic model (`psi=copy` starts from the head); no hypernetwork.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

import flbench as fl


class TwoHeads(fl.ClientModule):
    """A network with a second head that only the personal loss trains."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining, psi: nn.Linear) -> None:
        super().__init__(net, local)
        self.psi = psi

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """Balanced generic loss plus personal loss."""
        x, y = batch
        z, generic = self.features(x)
        personal = generic.detach() + self.psi(z.detach())
        if "prior" in self.received:
            generic = generic + self.received["prior"]
        return self.batch_loss(fl.Batch(self, x, y, generic, z)) + F.cross_entropy(personal, y)

    def predict(self, x: Tensor) -> Tensor:
        """The sum of both heads' logits."""
        z, generic = self.features(x)
        summed: Tensor = generic + self.psi(z)
        return summed


@dataclass(frozen=True)
class FedRoD:
    """A generic model trained for balanced data, and a personal head beside its own."""

    paper: ClassVar[str] = "Chen, Chao, ICLR 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "personalised"

    gamma: Annotated[float, Ge(0), "weight of the class prior in the balanced loss; 0 = none"] = 1.0
    psi: Annotated[Literal["zeros", "copy"], "where the personal heads start"] = "zeros"

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module with two heads."""
        if ctx.layout.head_name is None:
            raise fl.Undefined("the network has no head to set a personal one beside")
        head = fl.ClientModule(net, ctx.local).get_submodule(ctx.layout.head_name)
        assert isinstance(head, nn.Linear)
        psi = nn.Linear(head.in_features, head.out_features, bias=head.bias is not None)
        for target, source in zip(psi.parameters(), head.parameters(), strict=True):
            copied = source.detach().clone()
            target.data = copied if self.psi == "copy" else torch.zeros_like(target)
        return TwoHeads(net, ctx.local, psi)

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Every client remembers its personal head."""
        psi = ctx.repeated(ctx.initial[psi_mask(ctx)])
        return fl.Setup(memory={"fedrod.psi": fl.Memory(psi, "client")})

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Send the generic model; clients have their own personal head and class counts."""
        mask, ids = psi_mask(ctx), stage.clients
        rows = state.models[state.membership.home[ids]].clone()
        rows[:, mask] = state.memory["fedrod.psi"][ids]
        return fl.Start(params=rows[:, None], sent_mask=~mask, client_memory=self.prior(ids, ctx))

    def prior(self, ids: Tensor, ctx: fl.Context) -> dict[str, Tensor]:
        """Gamma log m_i, shape (n, C); -inf for classes that a client does not have."""
        counts = ctx.own_label_counts(ids).to(ctx.initial)
        return {"prior": self.gamma * counts.log()} if self.gamma else {}

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """Average the generic models; store the personal heads."""
        mask, psi = psi_mask(ctx), state.memory["fedrod.psi"].clone()
        psi[upload.ids] = upload.selected()[:, mask]
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        rows[:, mask] = state.models[:, mask]
        return fl.Models(rows, {"fedrod.psi": psi})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """Generic model and personal head."""
        rows = state.models[state.membership.home[clients]].clone()
        rows[:, psi_mask(ctx)] = state.memory["fedrod.psi"][clients]
        return self.predicting(rows, state, clients, ctx)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """Generic model and initial head."""
        rows = state.models[state.membership.home[clients]]
        return self.predicting(rows, state, clients, ctx)

    def predicting(
        self, rows: Tensor, state: fl.State, clients: Tensor, ctx: fl.Context
    ) -> fl.Personal:
        """Models, shape (n, W), with both heads; their generic models are tested as `generic`."""
        home = state.membership.home[clients]
        generic = fl.Personal(row=home, predictor=fl.ClientModule.forward)
        prior = self.prior(clients, ctx)
        return fl.Personal(params=rows, extras=prior, others={"generic": generic})


def psi_mask(ctx: fl.Context) -> Tensor:
    """Mask of the personal head's scalars, shape (W,), bool."""
    mask = ctx.layout.none_mask
    for slot in ctx.layout.slots:
        mask[slot.start : slot.stop] = slot.name.startswith("psi.")
    return mask
