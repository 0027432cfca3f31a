"""APPLE: each client mixes the core models of all clients, with weights that it learns itself.

Luo, Wu, "Adapt to adaptation: learning personalization for cross-silo federated learning", IJCAI
2022.

    download all core models w_j;  v_i = sum_j p_ij w_j is the personal model of client i
    F_i = f_i(v_i) + l(r) mu/2 ||p_i - p_0||^2,  p_0j = n_j / sum n
    local steps   w_i <- w_i - eta_1 dF_i/dw_i,  p_i <- p_i - eta_2 dF_i/dp_i
    upload w_i;  l(r) = (cos(pi r / L) + 1) / 2 up to round L, then 0

p_i, the directed relationship vector, stays with its client. Only p_ii of the gradient reaches a
client's core model, so with many clients core models move slowly: the method is made for silos. A
client is tested with v_i of the latest core models, which it would download before. eta_1 is the
suite's learning rate; p_i is held as a multiple of sqrt(eta_2 / eta_1), so that the suite's SGD
moves it with eta_2 (its Adam: by up to sqrt(eta_1 eta_2) a step). Departures: all core models are
downloaded (the paper also limits their number); buffers are the client's own. A newcomer has the
weights p_0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.func import functional_call

import flbench as fl


class Relations(fl.ClientModule):
    """The client's core model, and its relationship vector in units of `scale`."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining, p: Tensor, scale: float) -> None:
        super().__init__(net, local)
        self.relation, self.scale = nn.Parameter(p / scale), scale

    @property
    def p(self) -> Tensor:
        """The relationship vector, shape (N,)."""
        return self.scale * self.relation

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """The loss of the personal model; of other clients' core models it moves none."""
        if "cores" not in self.received:  # fine-tuning of a personal model
            return super().training_step(batch, batch_idx)
        x, y = batch
        cores = self.received["cores"]
        mine = cores[:, 0].isnan()
        parts = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        own = torch.cat([part.reshape(-1) for part in parts.values()])
        mixed = (self.p * mine).sum() * own + self.p @ cores.nan_to_num()
        pieces = mixed.split([part.numel() for part in parts.values()])
        weights = {
            name: piece.view(part.shape)
            for (name, part), piece in zip(parts.items(), pieces, strict=True)
        }
        logits = functional_call(self.net, weights, (x,))
        return self.batch_loss(fl.Batch(self, x, y, logits))


@dataclass(frozen=True)
class Apple:
    """Each client mixes the core models of all clients, with weights that it learns itself."""

    paper: ClassVar[str] = "Luo, Wu, IJCAI 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(params={"share": 1.0})

    relation_lr: Annotated[float, Gt(0), "eta_2, of the relationship vectors"] = 0.001
    mu: Annotated[float, Ge(0), "weight of the distance from p_0"] = 0.1
    share: Annotated[float, Gt(0), Le(1), "L, rounds of this term, as a share of all"] = 0.1

    @fl.hookimpl
    def needs(self, ctx: fl.Context) -> fl.Needs:
        """Every client of a round has all core models, and mixes them in every step."""
        n, cohort, local = ctx.clients, len(ctx.cohort), ctx.local
        cores = n * int(self.core(ctx).sum())
        epoch = float(ctx.samples.sum()) / n * cohort / local.batch_size
        return fl.Needs(
            operations=ctx.rounds * epoch * local.epochs * 2 * cores, scalars=(cohort + 1) * cores
        )

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module with a relationship vector, which starts at p_0."""
        scale = sqrt(self.relation_lr / ctx.local.lr)
        return Relations(net, ctx.local, self.first(ctx), scale)

    def first(self, ctx: fl.Context) -> Tensor:
        """p_0, shape (N,)."""
        samples = ctx.samples[: ctx.clients].float()
        return samples / samples.sum()

    def relation(self, ctx: fl.Context) -> Tensor:
        """Mask of the relationship vector, shape (W,), bool."""
        mask = ctx.layout.none_mask
        for slot in ctx.layout.slots:
            mask[slot.start : slot.stop] = slot.name == "relation"
        return mask

    def core(self, ctx: fl.Context) -> Tensor:
        """Mask of what is mixed: the trainable scalars of the network, shape (W,), bool."""
        return ctx.layout.trainable & ~self.relation(ctx)

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client: its core model and its relationship vector."""
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients download the core models of all others, and send theirs."""
        table = state.models[ctx.everybody][:, self.core(ctx)]
        cores = table.expand(len(stage.clients), -1, -1).clone()
        cores[torch.arange(len(cores)), stage.clients] = torch.nan  # its own is not sent
        return fl.Start(
            sent_mask=ctx.layout.none_mask,
            returned_mask=self.core(ctx),
            extras={"cores": cores},
        )

    @fl.hookimpl
    def local_term(self, ctx: fl.Context) -> Callable[[fl.ClientModule], Tensor] | None:
        """l(r) mu/2 times the squared distance from p_0."""
        last = self.share * ctx.rounds
        weight = self.mu * (cos(pi * ctx.round / last) + 1) / 4 if ctx.round <= last else 0.0
        first = self.first(ctx).to(ctx.initial.device)

        def term(module: fl.ClientModule) -> Tensor:
            assert isinstance(module, Relations), "no other method may bring a module"
            return weight * (module.p - first).square().sum()

        return term if weight else None

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload) -> fl.Models:
        """Every client's row becomes its trained model; nothing is averaged."""
        rows = state.models.clone()
        rows[upload.ids] = upload.selected()
        return fl.Models(rows)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The mixtures v_i."""
        return self.mixtures(state.models[clients], state, ctx)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer's mixture has the weights p_0."""
        return self.mixtures(ctx.initial.expand(len(clients), -1), state, ctx)

    def mixtures(self, rows: Tensor, state: fl.State, ctx: fl.Context) -> fl.Personal:
        """Mixtures of all core models by the weights in rows, shape (n, W)."""
        core, relation = self.core(ctx), self.relation(ctx)
        table, rows = state.models[ctx.everybody], rows.clone()
        p = rows[:, relation].double() / ctx.initial[relation].double().sum()  # p_0 sums to 1
        rows[:, core] = (p @ table[:, core].double()).float()
        return fl.Personal(params=rows)
