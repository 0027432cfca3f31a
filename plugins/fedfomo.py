"""FedFomo: every client mixes the models that lower its own validation loss.

Zhang, Sapra, Fidler, Yeung, Alvarez, "Personalized federated learning with first order model
optimization", ICLR 2021.

    v_j = [f_i(theta_i^0; val) - f_i(theta_j; val)] / (||theta_j - theta_i^0|| + 1e-5)
    a_j = max(v_j, 0) / sum max(v, 0);  theta_i <- theta_i^0 + sum_j a_j (theta_j - theta_i^0)
    Q[i, j] += v_j / |sum v|: the server sends client i the candidates with the largest Q[i, j]
    next; each is replaced by a random one with probability eps

`variant=paper`: theta^0 is the model at the start of the round; the candidates are the cohort's
uploads of this round, the client's own included. `variant=flbench`: the same at the start of a
client's next participation, with the uploads of the previous round and its own latest model as
theta^0. If no candidate lowers the loss, theta^0 is kept. Departures: Q starts at 0.1 for the
client itself and 0 elsewhere, and eps falls by 0.05 per round, both as in the authors' commands;
the distance is Euclidean.
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
    eps_decay: Annotated[float, Ge(0), "decrease of that share per round"] = 0.05
    paper_leak: Annotated[bool, fl.LATER, "mix by the loss on the test split"] = False

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model per client; the affinities Q, the weights a, the clients of the last round."""
        q = 0.1 * torch.eye(ctx.clients, dtype=torch.float64)
        no_weights = torch.zeros(ctx.clients, ctx.clients, dtype=torch.float64)
        memory = {
            "fedfomo.q": fl.Memory(q, "client"),
            "fedfomo.mix": fl.Memory(no_weights, "client"),
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
        """v_j of the candidates that each client gets; NaN for all other models."""
        ids = stage.clients
        mixing_phase = "after" if self.variant == "paper" else "before"
        if phase != mixing_phase or stage.kind != "train":
            return None
        sources = ids if upload else state.memory["fedfomo.uploaded"].nonzero()[:, 0]
        if not len(sources):
            return None
        models = upload.selected() if upload else state.models[sources]
        q = state.memory["fedfomo.q"].clone()
        candidates = self.candidates(q[ids][:, sources], ids, sources, ctx)
        ctx.send("up", ids, "gains", candidates.sum(dim=1))  # from which the server computes Q
        is_own = ids[:, None] == sources
        if not upload:
            candidates |= is_own  # its own latest model: not sent, and v = 0
        downloads = (candidates & ~is_own).sum(dim=1)
        ctx.send("down", ids, "candidates", downloads * ctx.layout.width)

        values = gains(state.models[ids], models, ids, ctx)
        values[~candidates] = torch.nan
        positive = values.nan_to_num().clamp(min=0)
        total = positive.sum(dim=1, keepdim=True)
        mix = torch.zeros_like(state.memory["fedfomo.mix"])
        mix[ids[:, None], sources] = positive / torch.where(total > 0, total, 1.0)

        sums = values.nansum(dim=1, keepdim=True).abs()
        change = torch.where(sums < 1e-9, 0.0, values.nan_to_num() / sums.clamp(min=1e-9))
        q[ids[:, None], sources] += change
        return fl.Scores(values, ids, "clients", sources, {"fedfomo.q": q, "fedfomo.mix": mix})

    def candidates(self, q: Tensor, ids: Tensor, sources: Tensor, ctx: fl.Context) -> Tensor:
        """Candidates of each client, shape (n, m), bool: itself, the best by Q, random ones.

        Args:
            q: affinities, shape (n, m).
            ids: the clients, shape (n,).
            sources: the clients whose models there are, shape (m,).
            ctx: the run's context.
        """
        others = ids[:, None] != sources
        count = self.m - 1 if self.variant == "paper" else self.m
        eps = max(0.0, self.eps - self.eps_decay * (ctx.round - 1))
        candidates = ~others if self.variant == "paper" else torch.zeros_like(others)
        rng = ctx.rng("fedfomo", ctx.round)
        for client, affinity in enumerate(q.numpy()):
            ranked = others[client].nonzero()[:, 0].tolist()
            ranked.sort(key=lambda j: (-affinity[j], j))
            for _ in range(min(count, len(ranked))):
                explore = rng.random() < eps
                rank = int(rng.integers(len(ranked))) if explore else 0
                candidates[client, ranked.pop(rank)] = True
        return candidates

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients have their models already; with `variant=flbench` they start from the mix."""
        params = state.models[stage.clients]
        if self.variant == "flbench":
            mix = state.memory["fedfomo.mix"][stage.clients]
            params = fl.weighted_mean(params, state.models, mix, ctx.layout.counters)
        return fl.Start(
            params=params[:, None],
            sent_mask=ctx.layout.none_mask,
            returned_mask=ctx.layout.all_mask,
        )

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """Rows become the mixes, or with `variant=flbench` the trained models."""
        ids, mix = upload.ids, state.memory["fedfomo.mix"]
        uploaded = torch.zeros(ctx.clients, dtype=torch.bool).index_fill(0, ids, True)
        rows = state.models.clone()
        if self.variant == "paper":
            rows = fl.weighted_mean(rows, upload.selected(), mix[:, ids], ctx.layout.counters)
        else:
            rows[ids] = upload.selected()
        memory = {"fedfomo.uploaded": uploaded, "fedfomo.mix": torch.zeros_like(mix)}
        return fl.Models(rows, memory)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer takes the model with the least loss on its validation samples."""
        return fl.Personal(row=ctx.evaluate(state.models, clients).argmin(dim=1))


def gains(starts: Tensor, models: Tensor, ids: Tensor, ctx: fl.Context) -> Tensor:
    """v: decrease of the validation loss per distance, shape (n, m); 0 for the start itself.

    Args:
        starts: theta^0 of each client, shape (n, W).
        models: the candidates, shape (m, W).
        ids: the clients, shape (n,).
        ctx: the run's context.
    """
    before = torch.cat([ctx.evaluate(s[None], i[None]) for s, i in zip(starts, ids, strict=True)])
    size = ctx.layout.parameters
    distance = -fl.similarity.neg_distance(starts[:, :size], models[:, :size]).cpu()
    values = (before - ctx.evaluate(models, ids)) / (distance + 1e-5)
    return torch.where(distance > 0, values, 0.0)  # not a rounding error divided by 1e-5
