"""HeteroFL: clients train networks of different widths, all parts of one.

Diao, Ding, Tarokh, "HeteroFL: computation and communication efficient federated learning for
heterogeneous clients", ICLR 2021, equations 3 and 4.

    client i:  the first ceil(r_i d) units of every hidden layer
    server:    each scalar's mean over the clients that have it; others keep theirs

Client i has the width `widths[i mod len]`. A unit that a client does not have is zero to it. The
paper's scaler and masked loss are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

import flbench as fl


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

    def masks(self, clients: Tensor, ctx: fl.Context) -> Tensor:
        """The scalars that clients have, shape (n, W), bool."""
        shares = [float(width) for width in self.widths.split(",")]
        own = torch.stack([self.part(share, ctx) for share in shares])
        return own[clients % len(shares)]

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
        if masks.all():
            return fl.Models(fl.member_mean(state.models, upload, membership, ctx.layout.counters))
        shares = membership.shares(upload.ids, len(state.models)) * upload.samples
        weights = shares.to(state.models.device)[:, :, None] * masks
        total = weights.sum(dim=1)
        mean = (weights * upload.selected().double()).sum(dim=1) / total
        return fl.Models(torch.where(total > 0, mean.float(), state.models))

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """Each client is evaluated with its part; the whole model as `whole`."""
        home = state.membership.home[clients].clamp(min=0)
        masks = self.masks(clients, ctx).to(state.models.device)
        part = torch.where(masks, state.models[home], 0.0)
        return fl.Personal(params=part, others={"whole": fl.Personal(row=home)})
