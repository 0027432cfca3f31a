"""ClusterFL: every client keeps its model and is pulled towards the centre of its cluster.

Ouyang, Xie, Zhou, Huang, Xing, "ClusterFL: a similarity-aware federated learning system for human
activity recognition", MobiSys 2021.

    min  sum_i f_i(w_i) + alpha ||W||_F^2 - beta ||F^T W||_F^2,   F_ik = 1 / sqrt(|G_k|) for members
    local gradient of client i:  grad f_i(u) + 2 alpha u - 2 beta (F F^T W)_i

F F^T W holds each client's cluster mean; it is fixed during a round, in which all clients train.
Every `refresh` rounds F is computed again: by k-means on the models' trainable scalars, or, with
`clusterer=affinity`, from the divergences of the models' softened predictions on the server's
samples: rows centred, their inner products (those of all principal components) clipped at 0,
columns summing to 1. Departures: this direct form of the objective, not ADMM; no straggler is
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class ClusterFL:
    """Every client keeps its model and is pulled towards the centre of its cluster."""

    paper: ClassVar[str] = "Ouyang, Xie, Zhou, Huang, Xing, MobiSys 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {"dc-pfl": {}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(params={"k": 2, "refresh": 2})

    k: Annotated[int, Ge(1), fl.only_with("clusterer", "kmeans"), "K, number of clusters"] = 3
    alpha: Annotated[float, Ge(0), "weight of ||W||^2; at least beta keeps it convex"] = 1e-3
    beta: Annotated[float, Ge(0), "weight of the pull to the cluster's centre"] = 5e-4
    refresh: Annotated[int, Ge(1), "rounds between two clusterings"] = 3
    clusterer: Annotated[Literal["kmeans", "affinity"], "on weights, or on predictions"] = "kmeans"
    temperature: Annotated[
        float, Gt(0), fl.only_with("clusterer", "affinity"), "of the softmax of predictions"
    ] = 6.0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model per client; all clients are in one cluster until the first clustering."""
        if self.beta > self.alpha:
            ctx.warn(f"clusterfl: beta={self.beta} above alpha={self.alpha} is not convex")
        if self.clusterer == "affinity":
            ctx.server_data()
        n = ctx.clients
        indicator = torch.zeros(n, n if self.clusterer == "affinity" else self.k)
        indicator[:, 0] = n**-0.5
        return fl.one_model_per_client(ctx, {"clusterfl.f": fl.Memory(indicator, "client")})

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        """All clients train in every round."""
        return (fl.Stage("train", ctx.everybody, ctx.local.epochs),)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients start from their own models; the server sends only the centre."""
        f = state.memory["clusterfl.f"].to(state.models)
        centre = (f @ (f.T @ state.models[:, : ctx.layout.parameters]))[stage.clients]
        return fl.Start(
            sent_mask=ctx.layout.none_mask,
            returned_mask=ctx.layout.all_mask,
            extras={"centre": centre},
        )

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], Tensor]:
        """Alpha ||u||^2 - 2 beta <u, centre>."""

        def term(module: fl.ClientModule) -> Tensor:
            u, centre = module.flat(), module.received["centre"]
            return self.alpha * u.square().sum() - 2 * self.beta * (u @ centre)

        return term

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """Every `refresh` rounds: negated distances of the trained models or their predictions."""
        if upload is None or stage.kind != "train" or ctx.round % self.refresh:
            return None
        models, ids = state.models.clone(), ctx.everybody
        models[upload.ids] = upload.selected()
        if self.clusterer == "affinity":
            x, _ = ctx.server_data()
            values = -divergence(ctx.logits(models, x) / self.temperature)
            f = soft_indicator(values)
        else:
            rows = models[:, ctx.layout.trainable]
            values = fl.similarity.neg_distance(rows, rows)
            k, rng = min(self.k, len(rows)), ctx.rng("clusterfl", ctx.round)
            labels = fl.clustering.k_means(rows.double().cpu().numpy(), k, rng)
            f = hard_indicator(torch.as_tensor(labels), self.k)
        return fl.Scores(values.cpu(), ids, "clients", ids, {"clusterfl.f": f.float().cpu()})

    @fl.hookimpl
    def cluster(
        self, state: fl.State, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """Clients keep their rows; the weights show who is in one cluster."""
        if scores is None:
            return None
        f = state.memory["clusterfl.f"]
        return fl.Membership(ctx.everybody, ((f @ f.T) > 0).float())

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload) -> fl.Models:
        """Every client's row becomes its trained model."""
        rows = state.models.clone()
        rows[upload.ids] = upload.selected()
        return fl.Models(rows)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer trains once and takes the nearest cluster's mean."""
        size, f = ctx.layout.parameters, state.memory["clusterfl.f"].to(state.models)
        centres = f @ (f.T @ state.models)
        if self.clusterer == "affinity":  # whose rows of F F^T do not sum to 1
            sums = f @ f.sum(dim=0)[:, None]
            centres = torch.where(sums > 0, centres / sums, state.models)
        trained = ctx.train(ctx.initial, clients)
        nearest = fl.similarity.neg_distance(trained[:, :size], centres[:, :size]).argmax(dim=1)
        return fl.Personal(params=centres[nearest])


def hard_indicator(labels: Tensor, k: int) -> Tensor:
    """F with F_ik = 1 / sqrt(|G_k|) for the members of G_k, shape (n, k); F^T F = I."""
    members = F.one_hot(labels, k).double()
    return members / members.sum(dim=0).clamp(min=1).sqrt()


def divergence(logits: Tensor) -> Tensor:
    """KL(p_i || p_j), the mean over samples, shape (n, n), float64; logits (n, M, C).

    Of text, logits have shape (n, M, T, C), and each token is a sample.
    """
    logits = logits.flatten(1, -2)
    log_p = F.log_softmax(logits.double(), dim=2).flatten(1)
    p, samples = log_p.exp(), logits.shape[1]
    return ((p * log_p).sum(dim=1, keepdim=True) - p @ log_p.T) / samples


def soft_indicator(values: Tensor) -> Tensor:
    """F from a score matrix: centred rows' inner products, >= 0, columns summing to 1, (n, n)."""
    centred = values - values.mean(dim=0)
    products = (centred @ centred.T).clamp(min=0)
    return products / products.sum(dim=0).clamp(min=1e-12)
