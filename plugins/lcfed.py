"""LCFed: own models near those of a cluster; all clusters share the embedding.

Zhang, Chen, Lin, Chen, Zhao, "LCFed: an efficient clustered federated learning framework for
heterogeneous data", ICASSP 2025, arXiv 2501.01850. A network is an embedding phi (all but the head)
and a decision part (the head).

    client i   minimises f_i(w) + mu/2 ||w - Omega_k||^2 + lambda/2 ||phi - Phi||^2
               with k its cluster: argmax_k cos(z(w_i), z(Omega_k)) after its last upload
    server     z(w) = M^T w, with M (P x D) the principal directions of trained models
               Omega_k <- mean of its members' w_i, Phi <- mean of all phi_i, by samples

Only the paper's abstract and summaries of it could be read: these equations are not compared with
its own. Left open here: what w_i starts from, the models that M is made of, the first clusters,
values, and which model is tested. Decided: w_i starts from the client's own last model, which is
tested; Omega_k is tested as `centre`. When K clients, and two, have trained, M is made of their
models, once, and k-means of their z / ||z|| gives the first clusters. M is that of models around
their mean, so D is less than their number; z is M^T w of the whole model. A client without a
cluster has no mu term, and round 1 no lambda term. The server computes z, so that neither M nor z
is sent. mu = 2, lambda = 1 and D = 50 are the defaults of public code that is not the authors'. A
client that was never sampled has w_0, as in local-only. A newcomer trains once from w_0, joins a
cluster by its z, and is tested with Omega_k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

import flbench as fl

OWN, MET, PHI, M = "lcfed.own", "lcfed.met", "lcfed.phi", "lcfed.m"


@dataclass(frozen=True)
class LCFed:
    """Own models near those of a cluster; all clusters share the embedding."""

    paper: ClassVar[str] = "Zhang, Chen, Lin, Chen, Zhao, ICASSP 2025"
    year: ClassVar[int] = 2025
    kind: ClassVar[str] = "clustered"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"k": 2}, equals={"local-only": {"mu": 0.0, "lam": 0.0}}
    )

    k: Annotated[int, Ge(1), "K, number of clusters"] = 5
    mu: Annotated[float, Ge(0), "mu, weight of the distance from the cluster's model"] = 2.0
    lam: Annotated[float, Ge(0), "lambda, weight of the distance from the mean embedding"] = 1.0
    d: Annotated[int, Ge(1), "D, dimensions of the low-rank models"] = 50

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Everybody has w_0; there are no clusters, no M and no Phi."""
        if self.k > ctx.clients:
            raise fl.Undefined(f"{ctx.clients} clients cannot be in k={self.k} clusters")
        size, nan = ctx.layout.parameters, torch.full_like(ctx.initial, torch.nan)
        memory = {
            OWN: fl.Memory(ctx.repeated(ctx.initial), "client"),
            MET: fl.Memory(nan.repeat(ctx.clients, 1)),  # models, until there are clusters
            PHI: fl.Memory(nan[:size]),
            M: fl.Memory(nan[:size, None][:, :0]),
        }
        undecided = fl.Membership(torch.full((ctx.clients,), -1))
        return fl.Setup(membership=undecided, memory=memory)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients start from their own model; they get Omega_k and Phi, or NaN where none is."""
        ids, home = stage.clients, state.membership.home[stage.clients]
        centres = state.models[home.clamp(min=0), : ctx.layout.parameters].clone()
        centres[home < 0] = torch.nan
        return fl.Start(
            params=state.memory[OWN][ids][:, None],
            sent_mask=ctx.layout.none_mask,
            returned_mask=ctx.layout.all_mask,
            extras={"centre": centres, "phi": state.memory[PHI].expand(len(ids), -1)},
        )

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], Tensor]:
        """Half mu and half lambda times the squared distances from Omega_k and Phi."""

        def term(module: fl.ClientModule) -> Tensor:
            w, received = module.flat(), module.received
            near = squared_distance(w, received["centre"])
            return self.mu / 2 * near + self.lam / 2 * squared_distance(w, received["phi"])

        return term

    @fl.hookimpl
    def report(self) -> fl.Reporter:
        """Clients keep the model that they trained."""
        return lambda module, x, y: fl.Report(kept={OWN: module.row()})

    @fl.hookimpl
    def score(self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None) -> fl.Scores | None:
        """Cosines of every upload and every cluster; until there are clusters, NaN."""
        if upload is None or not stage.aggregates:
            return None
        ids, met, columns = upload.ids, state.memory[MET], torch.arange(len(state.models))
        if not len(met):
            values = cosines(upload.selected(), state.models, state.memory[M])
            return fl.Scores(values, ids, "models", columns)
        met = met.clone()
        met[ids] = upload.selected()
        values = torch.full((len(ids), len(columns)), torch.nan, dtype=torch.float64)
        return fl.Scores(values, ids, "models", columns, {MET: met})

    @fl.hookimpl
    def cluster(
        self, state: fl.State, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """The most similar cluster; once, M and the first clusters."""
        if scores is None:
            return None
        home, met = state.membership.home.clone(), state.memory[MET]
        if not len(met):
            home[scores.row_ids] = scores.values.argmax(dim=1)
            return fl.Membership(home)
        known = (~met[:, 0].isnan()).nonzero()[:, 0].cpu()
        if len(known) < max(self.k, 2):  # one model has no directions around its mean
            return None
        models, size = met[known], ctx.layout.parameters
        m = principal_directions(models[:, :size], self.d)
        z = F.normalize((models[:, :size] @ m).double()).cpu().numpy()
        labels = torch.as_tensor(fl.clustering.k_means(z, self.k, ctx.rng("lcfed-kmeans")))
        home[known] = labels
        parent, shares = torch.zeros_like(labels.unique()), F.one_hot(labels).T * ctx.samples[known]
        counters = ctx.layout.counters
        centres = fl.weighted_mean(state.models[parent], models, shares.double(), counters)
        return fl.Membership(home, parent=parent, models=centres, memory={M: m, MET: met[:0]})

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The clusters' models, and the embedding of the mean of all uploads."""
        counters, size = ctx.layout.counters, ctx.layout.parameters
        rows = fl.member_mean(state.models, upload, membership, counters)
        trained, shares = upload.selected()[:, :size], upload.client_weights[None]
        phi = fl.weighted_mean(state.memory[PHI][None], trained, shares)[0]
        phi[ctx.layout.head[:size]] = torch.nan  # no part of the embedding
        return fl.Models(rows, {PHI: phi})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """The client's own model; its cluster's is tested as `centre`."""
        home = state.membership.home
        sizes = torch.bincount(home[home >= 0], minlength=1)
        row = torch.where(home < 0, sizes.argmax(), home)[clients]
        own = state.memory[OWN][clients]
        return fl.Personal(params=own, others={"centre": fl.Personal(row=row)})

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer trains once and joins a cluster."""
        values = cosines(ctx.train(ctx.initial, clients), state.models, state.memory[M])
        return fl.Personal(row=values.argmax(dim=1))


def squared_distance(w: Tensor, target: Tensor) -> Tensor:
    """||w - target||^2 over the scalars that the target has, which are not NaN."""
    return torch.where(target.isnan(), 0.0, w - target).square().sum()


def principal_directions(models: Tensor, d: int) -> Tensor:
    """The first principal directions of models, (n, P), as columns: (P, min(d, n - 1))."""
    centred = models.double() - models.double().mean(dim=0)
    directions: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh
    return directions[: min(d, len(models) - 1)].T.float().contiguous()


def cosines(models: Tensor, centres: Tensor, m: Tensor) -> Tensor:
    """Cosines of low-rank models, (n, W) and (K, W), m of shape (P, D): shape (n, K), float64."""
    z = [rows[:, : len(m)] @ m for rows in (models, centres)]
    return fl.similarity.cosine(*z).cpu()
