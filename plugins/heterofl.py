"""HeteroFL: clients train networks of different widths, all parts of one.

Diao, Ding, Tarokh, "HeteroFL: computation and communication efficient federated learning for
heterogeneous clients", ICLR 2021, equations 3 and 4.

    client i:  the first ceil(r_i d) units of every hidden layer
    server:    each scalar's mean over the clients that have it; others keep theirs

Client i has the width `widths[i mod len]`. A unit that a client does not have is zero to it. Linear
and convolutional layers are cut, and normalisation after them. The paper's scaler and masked loss
are left out.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

import flbench as fl

CUT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weight has outputs, then inputs."""


@dataclass(frozen=True)
class HeteroFL:
    """Clients train networks of different widths, all parts of one."""

    paper: ClassVar[str] = "Diao, Ding, Tarokh, ICLR 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "global"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedavg": {"widths": "1"}},
        fails={"relabelled-clients": "a client's id decides its width"},
    )

    widths: Annotated[str, "shares of the units, by client, repeated; 1 = all"] = "1,0.5,0.25"

    @fl.hookimpl(wrapper=True)
    def client_module(self) -> Generator[None, fl.ClientModule, fl.ClientModule]:
        """Refuse widths that are none, and layers that cannot be cut."""
        self.shares()
        module = yield
        for layer in module.modules():
            table = any(weight.dim() > 1 for weight in layer.parameters(recurse=False))
            if table and not isinstance(layer, CUT):
                name = type(layer).__name__
                raise fl.Undefined(f"HeteroFL cuts plain Linear and Conv layers, not {name}")
        return module

    def shares(self) -> list[float]:
        """The widths, as numbers."""
        try:
            found = [float(width) for width in self.widths.split(",")]
        except ValueError:
            found = [math.nan]
        if not all(0 < share <= 1 for share in found):
            raise fl.UserError(
                f"widths: shares above 0 and up to 1 expected, as in 1,0.5, got {self.widths!r}"
            )
        return found

    def masks(self, clients: Tensor, ctx: fl.Context) -> Tensor:
        """The scalars that clients have, shape (n, W), bool."""
        own = torch.stack([self.part(share, ctx) for share in self.shares()])
        return own[clients % len(own)]

    def part(self, share: float, ctx: fl.Context) -> Tensor:
        """The scalars of a network of a part of the width, shape (W,), bool."""
        mask, inputs = ctx.layout.all_mask, None
        for slot in ctx.layout.slots:
            if not slot.shape or slot.kind == "counter":
                continue
            table = mask[slot.start : slot.stop].view(slot.shape)  # a view: it writes the mask
            if not slot.head:
                table[math.ceil(share * slot.shape[0]) :] = False
            if len(slot.shape) > 1:
                if inputs is not None:
                    if slot.shape[1] % inputs:  # it has the inputs of an earlier layer: a shortcut
                        inputs = slot.shape[1]
                    group = slot.shape[1] // inputs  # inputs that one unit before has become
                    table[:, math.ceil(share * inputs) * group :] = False
                inputs = slot.shape[0]
        return mask

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Each client gets its part of the model."""
        masks = self.masks(stage.clients, ctx)
        rows = state.models[state.membership.home[stage.clients].clamp(min=0)]
        params = torch.where(masks.to(rows.device), rows, 0.0)[:, None]
        return fl.Start(params=params, sent_mask=masks, trained_mask=masks)

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """Each scalar's mean over the clients that have it, weighted by samples."""
        masks = self.masks(upload.ids, ctx).to(state.models.device)
        counters = ctx.layout.counters
        rows = fl.member_mean(state.models, upload, membership, counters)
        if masks.all():
            return fl.Models(rows)
        shares = membership.shares(upload.ids, len(state.models)) * upload.samples
        weights = shares.to(state.models.device)[:, :, None] * masks
        total = weights.sum(dim=1)
        mean = (weights * upload.selected().double()).sum(dim=1) / total
        found = torch.where(total > 0, mean.float(), state.models)
        return fl.Models(torch.where(counters.to(rows.device), rows, found))

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """Each client is evaluated with its part; the whole model as `whole`."""
        home = state.membership.home[clients].clamp(min=0)
        masks = self.masks(clients, ctx).to(state.models.device)
        part = torch.where(masks, state.models[home], 0.0)
        return fl.Personal(params=part, others={"whole": fl.Personal(row=home)})
