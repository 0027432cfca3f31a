"""FeSEM: every client belongs to the centre that is nearest to its trained model.

Long, Xie, Shen, Zhou, Wang, Jiang, "Multi-center federated learning: clients clustering for
better personalization", World Wide Web 2023, arXiv 2005.01026.

    E-step   a(i) = argmin_k || w_i - centre_k ||   over trainable scalars, after local training
    M-step   centre_k <- mean of the cohort's w_i with a(i) = k; a centre without any is kept

With K initial networks every client stays nearest to the one it started from, because training
changes it less than the distance between them. So, by default (`init=kmeans_first`), clients train
from the common weights until k-means on their updates gives K centres w_0 + mean update; a client
sampled later trains once from w_0 and joins the nearest centre. `init=random` shows the assignments
that never change. Departures: sample weights (`weighting=uniform` as in the paper); clients that
were never sampled are evaluated with the centre that has most clients.

WeCFL: Ma, Long, Zhou, Jiang, Zhang, "On the convergence of clustered federated learning", arXiv
2202.06187 (2022): both steps weighted by samples, lambda_i = n_i / n, in every round repeated until
no client moves, so that they are a weighted k-means of the cohort's models:

    centre_k <- sum lambda_i w_i / sum lambda_i over a(i) = k

It starts from the centres of the last round; the released code starts it anew, and on the weights
of the last layer only. With one step of each it would be `fesem` with its default weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FeSEM:
    """Every client belongs to the nearest of K centres."""

    paper: ClassVar[str] = "Long, Xie, Shen, Zhou, Wang, Jiang, World Wide Web 2023"
    year: ClassVar[int] = 2023
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {"pfedlia": {"k": 5}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(params={"k": 2})

    k: Annotated[int, Ge(1), "K, number of centres"] = 5
    init: Annotated[Literal["kmeans_first", "random"], "where the centres come from"] = (
        "kmeans_first"
    )
    fit_round: Annotated[
        int,
        Ge(1),
        fl.only_with("init", "kmeans_first"),
        "least round of the k-means, which needs K sampled clients",
    ] = 1
    feature: Annotated[Literal["all", "head"], "scalars that enter the distance"] = "all"
    weighting: Annotated[fl.Weighting, "of the clients in a centre's mean"] = "samples"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """K centres, all w_0 until the k-means; clients are undecided unless K is 1."""
        models = ctx.initial.expand(self.k, -1).clone()
        if self.init == "random":
            for k in range(1, self.k):
                models[k] = ctx.fresh_initial(k)
        undecided = torch.full((ctx.clients,), 0 if self.k == 1 else -1)
        random = self.init == "random" or self.k == 1
        if not random and (self.k > ctx.clients or self.fit_round > ctx.rounds):
            raise fl.Undefined(
                f"k-means of k={self.k} centres in round {self.fit_round} never takes place:"
                f" there are {ctx.clients} clients and {ctx.rounds} rounds"
            )
        memory = {"fesem.fitted": fl.Memory(torch.tensor(0 if random else -1))}
        if not random:
            size = ctx.layout.parameters
            moves = torch.full((ctx.clients, size), torch.nan, device=ctx.initial.device)
            memory["fesem.moves"] = fl.Memory(moves, "run")
        return fl.Setup(models, fl.Membership(undecided), memory)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """The home centre, or w_0 for undecided clients."""
        home = state.membership.home[stage.clients]
        params = state.models[home.clamp(min=0)].clone()
        params[home < 0] = ctx.initial
        if self.init == "random" and (home < 0).any():  # an undecided client draws a centre
            drawn = torch.as_tensor(ctx.rng("fesem", ctx.round).integers(self.k, size=len(home)))
            params[home < 0] = state.models[drawn[home < 0]]
        return fl.Start(params=params[:, None])

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """Negated distance of every trained model to every centre; updates until the k-means."""
        if upload is None or stage.kind != "train":
            return None
        mask = ctx.layout.trainable & (ctx.layout.head if self.feature == "head" else True)
        ids, trained = upload.ids, upload.selected()
        values = self.e_step(trained[:, mask], state.models[:, mask], upload.samples)
        memory = {}
        if int(state.memory["fesem.fitted"]) < 0:
            updates = state.memory["fesem.moves"].clone()
            updates[ids] = (trained - ctx.initial)[:, : ctx.layout.parameters]
            sampled = int((~updates[:, 0].isnan()).sum())
            memory["fesem.moves"] = updates
            if ctx.round >= self.fit_round and sampled >= self.k:
                memory["fesem.fitted"] = torch.tensor(ctx.round)
            elif ctx.round == ctx.rounds:
                found = f"{sampled} clients were sampled, k={self.k} are needed for the k-means"
                ctx.warn(f"{type(self).__name__.lower()}: {found}: all centres are w_0")
        return fl.Scores(values, ids, "models", torch.arange(self.k), memory)

    def e_step(self, trained: Tensor, centres: Tensor, samples: Tensor) -> Tensor:
        """Negated distances of models, (n, d), from the centres, (K, d): shape (n, K)."""
        return fl.similarity.neg_distance(trained, centres).cpu()

    def k_means_weights(self, samples: Tensor) -> Tensor:
        """Weights of clients in a k-means, shape (n,), float64."""
        return torch.ones(len(samples), dtype=torch.float64)

    @fl.hookimpl
    def cluster(
        self, state: fl.State, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """The E-step; once, the k-means."""
        fitted, home = int(state.memory["fesem.fitted"]), state.membership.home.clone()
        if scores is None or fitted < 0:
            return None
        if fitted == ctx.round:
            updates = state.memory["fesem.moves"]
            sampled = (~updates[:, 0].isnan()).nonzero()[:, 0].cpu()
            mask = ctx.layout.head[: updates.shape[1]] if self.feature == "head" else slice(None)
            rows = updates[sampled][:, mask].double().cpu().numpy()
            weights = self.k_means_weights(ctx.samples[sampled]).numpy()
            labels = fl.clustering.k_means(rows, self.k, ctx.rng("fesem-kmeans"), weights)
            home[sampled] = torch.as_tensor(labels)
        else:
            home[scores.row_ids] = scores.values.argmax(dim=1)
        return fl.Membership(home)

    @fl.hookimpl
    def weights(self, upload: fl.Upload) -> Tensor:
        """By samples, or uniform."""
        return fl.client_weights(upload, self.weighting)

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The M-step; in the round of the k-means, first the centres are set."""
        rows, fitted = state.models.clone(), int(state.memory["fesem.fitted"])
        if fitted == ctx.round:
            updates = state.memory["fesem.moves"]
            for k in range(self.k):
                members = updates[membership.home == k]
                if len(members):
                    rows[k, : updates.shape[1]] += members.nanmean(dim=0)
        counters = ctx.layout.counters
        rows = fl.member_mean(rows, upload, membership, counters)
        memory = {}
        if fitted == ctx.round:  # the updates are not needed any more
            memory["fesem.moves"] = state.memory["fesem.moves"][:0]
        return fl.Models(rows, memory)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """The home centre; the largest for undecided clients."""
        home = state.membership.home
        sizes = torch.bincount(home[home >= 0], minlength=self.k)
        return fl.Personal(row=torch.where(home < 0, sizes.argmax(), home)[clients])

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """The centre nearest to a newcomer's trained model."""
        if self.k == 1:
            return None
        mask = ctx.layout.trainable & (ctx.layout.head if self.feature == "head" else True)
        trained = ctx.train(ctx.initial, clients)
        scores = fl.similarity.neg_distance(trained[:, mask], state.models[:, mask])
        return fl.Personal(row=scores.cpu().argmax(dim=1))


@dataclass(frozen=True)
class WeCFL(FeSEM):
    """FeSEM with a k-means in every round, weighted by samples."""

    paper: ClassVar[str] = "Ma, Long, Zhou, Jiang, Zhang, arXiv 2202.06187"
    year: ClassVar[int] = 2022
    presets: ClassVar[fl.Presets] = {}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"k": 2}, equals={"fedavg": {"k": 1}}
    )

    def e_step(self, trained: Tensor, centres: Tensor, samples: Tensor) -> Tensor:
        """Distances from the centres of a k-means, which these are the start of."""
        found = fl.lloyd(centres, trained, self.k_means_weights(samples))
        return super().e_step(trained, found, samples)

    def k_means_weights(self, samples: Tensor) -> Tensor:
        """The same as in the M-step."""
        uniform = self.weighting == "uniform"
        return super().k_means_weights(samples) if uniform else samples.double()
