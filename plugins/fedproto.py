"""FedProto: clients exchange class prototypes instead of models.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: federated prototype learning across heterogeneous
clients", AAAI 2022.

    local loss   CE(head(z), y) + lambda mean_{batch, dim} (z - c_y)^2,  0 while c_y is unknown
    upload       c_{i,y}: mean feature of class y over client i's training samples, and its count
    server       c_y <- mean of c_{i,y} over the clients that sent one; other c_y are kept

z is the input of the head. Every client keeps a model of its own. Evaluated with the head and with
the nearest prototype among the client's classes (`predictor` names the main figure). Departures:
the squared error is the mean over dimensions, not their sum; prototypes are computed after local
training (`protos=running`: from the features during training, as in released code);
`weighting=samples` weights clients by their counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

import flbench as fl

FAR = -1e4
"""Logit of a class without a prototype: finite, so that a loss stays a number."""


class Prototypical(fl.ClientModule):
    """Adds the distance to the received prototypes to the loss, and uploads its own prototypes."""

    seen: Tensor

    def __init__(
        self, net: nn.Module, local: fl.LocalTraining, weight: float, table: Tensor, running: bool
    ) -> None:
        super().__init__(net, local)
        self.weight, self.running, self.shape = weight, running, table.shape
        if running:  # a buffer is part of the row, which every executor handles
            self.register_buffer("seen", torch.zeros(table.shape[0], table.shape[1] + 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """Cross-entropy plus the distance to known prototypes."""
        x, y = batch
        z, logits = self.features(x)
        if self.running:
            seen = self.seen.data  # .data: autograd must not track writes to the row's buffers
            if batch_idx == 0:
                seen.zero_()
            rows = torch.cat([z, torch.ones_like(z[:, :1])], dim=1).detach()
            seen.index_add_(0, y, rows.to(seen))
        loss = self.batch_loss(fl.Batch(self, x, y, logits, z))
        if not self.weight or "known" not in self.received:
            return loss
        target = self.received["known"][y]
        gap = torch.where(target.isnan(), torch.zeros_like(z), z - target.nan_to_num())
        return loss + self.weight * gap.square().mean()

    @torch.no_grad()
    def on_local_end(self, x: Tensor, y: Tensor) -> Mapping[str, Tensor]:
        """Class means of features, shape (C, d), and counts, shape (C,); NaN where none."""
        counts = torch.bincount(y, minlength=self.shape[0]).to(x)
        if self.running:
            sums, counts = self.seen[:, :-1], self.seen[:, -1]
        else:
            self.eval()
            z = self.features(x)[0]
            sums = torch.zeros(self.shape, device=z.device).index_add_(0, y, z)
        counts = torch.where(counts > 0, counts, torch.nan)
        return {"prototypes": sums / counts[:, None], "counts": counts}


def nearest(module: fl.ClientModule, x: Tensor) -> Tensor:
    """Logits: the negated distances to the prototypes of the client's own classes."""
    known = module.received["own"]
    z = module.features(x)[0]
    distances = torch.cdist(z, known.nan_to_num())
    return torch.where(known.isnan().any(dim=1), torch.full_like(distances, FAR), -distances)


@dataclass(frozen=True)
class FedProto:
    """Clients keep their models and exchange class prototypes."""

    paper: ClassVar[str] = "Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, AAAI 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    across_networks: ClassVar[bool] = True
    presets: ClassVar[fl.Presets] = {"pfedlia": {"predictor": "head"}, "cifar10": {"weight": 0.1}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"local-only": {"weight": 0.0}})

    weight: Annotated[float, Ge(0), "weight of the prototype distance"] = 1.0
    protos: Annotated[Literal["end_pass", "running"], "when prototypes are computed"] = "end_pass"
    weighting: Annotated[fl.Weighting, "of the clients in a prototype's mean"] = "uniform"
    predictor: Annotated[Literal["head", "nearest"], "predictor of the main figure"] = "head"

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module that uses prototypes."""
        running = self.protos == "running"
        return Prototypical(net, ctx.local, self.weight, unknown(ctx), running)

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model per client; no prototype is known."""
        return fl.one_model_per_client(ctx, {"fedproto.known": fl.Memory(unknown(ctx), "run")})

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """The server sends only the known prototypes; no parameter is sent."""
        known = state.memory["fedproto.known"].expand(len(stage.clients), -1, -1)
        return fl.Start(sent_mask=ctx.layout.none_mask, extras={"known": known})

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """Each class's mean over the clients that sent one."""
        sent, counts = upload.extras["prototypes"].double(), upload.extras["counts"].double()
        weights = counts if self.weighting == "samples" else counts / counts
        total = weights.nansum(dim=0)[:, None]
        mean = (weights[:, :, None] * sent).nansum(dim=0) / total
        known = state.memory["fedproto.known"]
        known = torch.where(total > 0, mean.to(known), known)
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        return fl.Models(rows, {"fedproto.known": known})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """Each client's own model, with its head and with the nearest prototype."""
        return self.predicting(state.models[clients], state, clients, ctx)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The same of a newcomer's initial model."""
        return self.predicting(ctx.initial_rows(clients), state, clients, ctx)

    def predicting(
        self, rows: Tensor, state: fl.State, clients: Tensor, ctx: fl.Context
    ) -> fl.Personal:
        """Models, shape (n, W), with their heads and with the nearest prototype."""
        known = state.memory["fedproto.known"].expand(len(clients), -1, -1)
        own_classes = (ctx.own_label_counts(clients) > 0)[:, :, None].to(known.device)
        own = torch.where(own_classes, known, torch.nan)
        extras = {"known": known, "own": own}
        by_head = fl.Personal(params=rows, extras=extras)
        by_prototype = fl.Personal(params=rows, extras=extras, predictor=nearest)
        if self.predictor == "head":
            return replace(by_head, others={"nearest": by_prototype})
        return replace(by_prototype, others={"head": by_head})


def unknown(ctx: fl.Context) -> Tensor:
    """A table of unknown prototypes: NaN, shape (C, d)."""
    heads = [slot.shape for slot in ctx.layout.slots if slot.head and len(slot.shape) == 2]
    if not heads:
        raise fl.Undefined("the network has no head, and prototypes are what enters it")
    widths = sorted({shape[1] for shape in heads})
    if len(widths) > 1:
        raise fl.Undefined(f"prototypes need features of one width; the networks have {widths}")
    return torch.full((ctx.classes, widths[0]), torch.nan, device=ctx.initial.device)
