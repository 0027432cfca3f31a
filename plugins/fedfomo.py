"""FedFomo: every client mixes the models that lower its own validation loss.

Zhang, Sapra, Fidler, Yeung, Alvarez, "Personalized federated learning with first order model
optimization", ICLR 2021.

    v_j = [f_i(theta_i^0; val) - f_i(theta_j; val)] / (||theta_j - theta_i^0|| + 1e-5)
    a_j = max(v_j, 0) / sum max(v, 0);  theta_i <- theta_i^0 + sum_j a_j (theta_j - theta_i^0)
    Q[i, j] += v_j / |sum v|: whom the server offers client i next; with probability eps at random

`variant=paper`: theta^0 is the model at the round's start, the candidates are the cohort's uploads
of this round, the client's own among them. `variant=flbench`: the same at the start of a client's
next participation, with the uploads of the round before and its own latest model as theta^0.
Where nobody helps, theta^0 is kept. Departures: Q starts at self 0.1 and 0 elsewhere, and the
exploration falls by 0.05 a round, both as in the authors' commands; the distance is Euclidean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FedFomo:
    """Every client mixes the models that lower its own validation loss."""

    paper: ClassVar[str] = "Zhang, Sapra, Fidler, Yeung, Alvarez, ICLR 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    presets: ClassVar[fl.Presets] = {"pfedlia": {"variant": "flbench"}}

    variant: Annotated[Literal["paper", "flbench"], "mix after or before training"] = "paper"
    m: Annotated[int, Ge(1), "M, candidates per client; its own model is one of them"] = 5
    eps: Annotated[float, Ge(0), Le(1), "share of candidates drawn at random at first"] = 0.3
    eps_decay: Annotated[float, Ge(0), "by how much that share falls every round"] = 0.05

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model per client; the affinities Q; who uploaded in the last round."""
        q = 0.1 * torch.eye(ctx.clients, dtype=torch.float64)
        none = torch.zeros(ctx.clients, ctx.clients, dtype=torch.float64)
        memory = {
            "fedfomo.q": fl.Memory(q, "client"),
            "fedfomo.mix": fl.Memory(none, "client"),
            "fedfomo.uploaded": fl.Memory(torch.zeros(ctx.clients, dtype=torch.bool)),
        }
        return fl.one_model_per_client(ctx, memory)

    @fl.hookimpl
    def score(
        self,
        state: fl.State,
        stage: fl.Stage,
        phase: fl.Phase,
        upload: fl.Upload | None,
        ctx: fl.Context,
    ) -> fl.Scores | None:
        """v_j of the offered candidates; NaN for whom was not offered."""
        ids = stage.clients
        if phase != ("after" if self.variant == "paper" else "before") or stage.kind != "train":
            return None
        there = ids if upload else state.memory["fedfomo.uploaded"].nonzero()[:, 0]
        if not len(there):
            return None
        models = upload.selected() if upload else state.models[there]
        offered = self.candidates(state.memory["fedfomo.q"][ids][:, there], ids, there, ctx)
        ctx.send("up", ids, "gains", offered.sum(dim=1))  # what Q is made of
        if not upload:
            offered |= ids[:, None] == there  # its own latest model costs nothing and has v = 0
        crossing = (offered & (ids[:, None] != there)).sum(dim=1)
        ctx.send("down", ids, "candidates", crossing * ctx.layout.width)
        values = gains(state.models[ids], models, ids, ctx)
        values[~offered] = torch.nan
        positive = values.nan_to_num().clamp(min=0)
        total = positive.sum(dim=1, keepdim=True)
        mix = torch.zeros_like(state.memory["fedfomo.mix"])
        mix[ids[:, None], there] = positive / torch.where(total > 0, total, 1.0)
        q, sums = state.memory["fedfomo.q"].clone(), values.nansum(dim=1, keepdim=True).abs()
        change = torch.where(sums < 1e-9, 0.0, values.nan_to_num() / sums.clamp(min=1e-9))
        q[ids[:, None], there] += change
        kept = {"fedfomo.q": q, "fedfomo.mix": mix}
        return fl.Scores(values, ids, "clients", there, kept)

    def candidates(self, q: Tensor, ids: Tensor, there: Tensor, ctx: fl.Context) -> Tensor:
        """Whom each client is offered, shape (n, m), bool: itself, Q's best, some at random."""
        others = ids[:, None] != there
        wanted = self.m - 1 if self.variant == "paper" else self.m
        eps = max(0.0, self.eps - self.eps_decay * (ctx.round - 1))
        offered = ~others if self.variant == "paper" else torch.zeros_like(others)
        rng = ctx.rng("fedfomo", ctx.round)
        for place, row in enumerate(q.numpy()):
            left = others[place].nonzero()[:, 0].tolist()
            left.sort(key=lambda j: (-row[j], j))
            for _ in range(min(wanted, len(left))):
                lucky = rng.random() < eps
                offered[place, left.pop(int(rng.integers(len(left))) if lucky else 0)] = True
        return offered

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients hold their models already; in the other variant they start from the mix."""
        everything, nothing = ctx.layout.all_mask, ctx.layout.none_mask
        params = state.models[stage.clients]
        if self.variant == "flbench":
            mix = state.memory["fedfomo.mix"][stage.clients]
            params = fl.weighted_mean(params, state.models, mix, ctx.layout.counters)
        return fl.Start(params=params[:, None], sent_mask=nothing, returned_mask=everything)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """Rows become the mixes, or in the other variant what was trained."""
        ids, mix = upload.ids, state.memory["fedfomo.mix"]
        uploaded = torch.zeros(ctx.clients, dtype=torch.bool).index_fill(0, ids, True)
        rows = state.models.clone()
        if self.variant == "paper":
            rows = fl.weighted_mean(rows, upload.selected(), mix[:, ids], ctx.layout.counters)
        else:
            rows[ids] = upload.selected()
        kept = {"fedfomo.uploaded": uploaded, "fedfomo.mix": torch.zeros_like(mix)}
        return fl.Models(rows, kept)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer takes the model that its validation samples like best."""
        if not ctx.joining:
            return None
        return fl.Personal(row=ctx.evaluate(state.models, clients).argmin(dim=1))


def gains(starts: Tensor, models: Tensor, ids: Tensor, ctx: fl.Context) -> Tensor:
    """v: validation loss saved per distance moved, shape (n, m); 0 for the start itself."""
    before = torch.cat([ctx.evaluate(s[None], i[None]) for s, i in zip(starts, ids, strict=True)])
    size = ctx.layout.parameters
    distance = -fl.similarity.neg_distance(starts[:, :size], models[:, :size]).cpu()
    saved = (before - ctx.evaluate(models, ids)) / (distance + 1e-5)
    return torch.where(distance > 0, saved, 0.0)  # else rounding over 1e-5 would count
