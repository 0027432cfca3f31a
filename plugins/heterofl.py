"""HeteroFL: clients train networks of different widths, all parts of one.

Diao, Ding, Tarokh, "HeteroFL: computation and communication efficient federated learning for
heterogeneous clients", ICLR 2021, equations 3 and 4, sections 3.2 and 3.3.

    client i:  the first ceil(r_i d) units of every hidden layer
    scaler:    in training, what leaves a hidden layer is divided by r_i, before normalisation
    mask:      the logits of labels that a client does not have are 0, in its training and its tests
    server:    each scalar's mean over the clients that have it; others keep theirs

Client i has the width `widths[i mod len]`. A unit that a client does not have is zero to it. Linear
and convolutional layers are cut, and normalisation after them. `whole`, the complete model, is
tested without a mask. A newcomer has neither scaler nor mask.

Departure: statistics of BatchNorm are averaged (the paper's are those of all data, after training).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

import flbench as fl

WIDTH, LABELS = "heterofl.width", "heterofl.labels"
CUT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weight has outputs, then inputs."""


@dataclass(frozen=True)
class HeteroFL:
    """Clients train networks of different widths, all parts of one."""

    paper: ClassVar[str] = "Diao, Ding, Tarokh, ICLR 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "global"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedavg": {"widths": "1", "masked": False}},
        fails={"relabelled-clients": "a client's id decides its width"},
    )

    widths: Annotated[str, "shares of the units, by client, repeated; 1 = all"] = "1,0.5,0.25"
    scaled: Annotated[bool, "divide what leaves hidden layers by the width"] = True
    masked: Annotated[bool, "logits of labels that a client does not have are 0"] = True

    @fl.hookimpl(wrapper=True)
    def client_module(self) -> Generator[None, fl.ClientModule, fl.ClientModule]:
        """Refuse widths that are none, and layers that cannot be cut; add scaler and mask."""
        self.shares()
        module = yield
        for layer in module.modules():
            table = any(weight.dim() > 1 for weight in layer.parameters(recurse=False))
            if table and not isinstance(layer, CUT):
                name = type(layer).__name__
                raise fl.Undefined(f"HeteroFL cuts plain Linear and Conv layers, not {name}")
        self.adjust(module)
        return module

    def adjust(self, module: fl.ClientModule) -> None:
        """Let what leaves the layers of a module be scaled and masked, as `received` says."""

        def scaler(layer: nn.Module, inputs: object, output: Tensor) -> Tensor:
            width = module.received.get(WIDTH) if layer.training else None
            return output if width is None else output / width

        def mask(layer: nn.Module, inputs: object, output: Tensor) -> Tensor:
            own = module.received.get(LABELS)
            return output if own is None else torch.where(own, output, 0.0)

        layers = [layer for layer in module.modules() if isinstance(layer, CUT)]
        head = next((one for one in reversed(layers) if isinstance(one, nn.Linear)), None)
        for layer in layers:
            layer.register_forward_hook(mask if layer is head else scaler)

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
        known = self.widths_of(stage.clients, ctx) if self.scaled else {}
        known |= self.labels_of(stage.clients, ctx)
        return fl.Start(params=params, sent_mask=masks, trained_mask=masks, client_memory=known)

    def widths_of(self, clients: Tensor, ctx: fl.Context) -> dict[str, Tensor]:
        """The clients' shares of the units, shape (n,)."""
        shares = torch.tensor(self.shares(), device=ctx.initial.device)
        return {WIDTH: shares[clients.to(shares.device) % len(shares)]}

    def labels_of(self, clients: Tensor, ctx: fl.Context) -> dict[str, Tensor]:
        """The labels that the clients have, shape (n, C), bool; nothing if nothing is masked."""
        own = (ctx.own_label_counts(clients) > 0).to(ctx.initial.device)
        return {LABELS: own} if self.masked else {}

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
        shares = membership.shares(upload.ids, len(state.models)) * upload.client_weights
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
        extras, others = self.labels_of(clients, ctx), {"whole": fl.Personal(row=home)}
        return fl.Personal(params=part, extras=extras, others=others)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The newcomer's part, too; all of its labels count."""
        return replace(self.personalise(state, clients, ctx), extras={})
