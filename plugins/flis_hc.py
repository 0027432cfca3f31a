"""FLIS-HC: disjoint groups, found once by the similarity of the models' predictions.

Morafah, Vahidian, Wang, Lin, "FLIS: clustered federated learning via inference similarity for
non-IID data distribution", FL@NeurIPS 2022, arXiv 2208.09754.

    before round 1 all clients train from w_0 (a probe, counted in round 1) and upload;
    A as in FLIS-DC; hierarchical clustering of 1 - A, cut at 1 - beta; every group starts from w_0;
    then fedavg within each group

The probe's models are not used further. The probe sends w_0 to all clients, so the first cohort
holds what it starts from and downloads nothing in round 1. Departures: average linkage; A is the
released cosine, because the printed norm of the element-wise product is at most 1 / sqrt(M) for M
samples. `mode=released` is what the
released script does: no hierarchy and no groups; every sampled client starts from the mean of the
latest models, old ones too, of the clients whose predictions in the probe had a similarity of at
least 0.96 with its own, and is judged by its own model after its last training. There clients of a
round train one after the other, so that a later one sees the new models of earlier ones; here
models are those of the round before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

PROBE = "flis"
NEAR = 0.96
"""Least similarity of neighbours in the released code."""
PAPER = fl.only_with("mode", "paper")


@dataclass(frozen=True)
class FlisHC:
    """Disjoint groups found once, by inference similarity on the server's samples."""

    paper: ClassVar[str] = "Morafah, Vahidian, Wang, Lin, FL@NeurIPS 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {"flis": {"beta": 0.45}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedavg": {"beta": 0.0}},
        fails={"every-hook-answers": "dispatch and personalise act with mode=released only"},
    )

    beta: Annotated[float, Ge(0), PAPER, "groups are cut where their similarity falls below"] = 0.5
    linkage: Annotated[Literal["average", "complete", "single"], PAPER, "of the clustering"] = (
        "average"
    )
    answers: Annotated[Literal["onehot", "softmax"], "what is compared"] = "onehot"
    mode: Annotated[Literal["paper", "released"], "groups, or fixed neighbourhoods"] = "paper"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """The server must own samples; it stores the probe's predictions if newcomers join."""
        ctx.server_data()
        memory = {"flis-hc.answers": fl.Memory(torch.zeros(0))}
        if self.mode == "released":
            rows = ctx.initial.expand(ctx.clients, -1)
            memory["flis-hc.near"] = fl.Memory(torch.eye(ctx.clients), "client")
            memory["flis-hc.last"] = fl.Memory(rows.clone(), "client")
        return fl.Setup(memory=memory)

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage] | None:
        """All clients train once before the first round."""
        if ctx.round != 1:
            return None
        probe = fl.Stage("probe", ctx.everybody, ctx.local.epochs, name=PROBE)
        return probe, fl.Stage("train", ctx.cohort, ctx.local.epochs)

    def predictions(self, models: Tensor, ctx: fl.Context) -> Tensor:
        """Predictions of models on the server's samples, shape (n, M, C)."""
        x, _ = ctx.server_data()
        return fl.similarity.predictions(ctx.logits(models, x), self.answers)

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """Similarity of the predictions of the probe; in mode `released` neighbours or models."""
        if upload is None or (stage.label != PROBE and self.mode == "paper"):
            return None
        ids, memory = upload.ids, dict[str, Tensor]()
        if stage.label == PROBE:
            predictions = self.predictions(upload.selected(), ctx)
            agreement = fl.similarity.prediction_agreement(predictions).cpu()
            memory = {"flis-hc.answers": predictions} if ctx.newcomers else {}
        if self.mode == "paper":
            return fl.Scores(agreement, ids, "clients", ids, memory)
        if stage.label == PROBE:
            near = (agreement >= NEAR).float()
            memory["flis-hc.near"] = near
        else:
            near, last = state.memory["flis-hc.near"], state.memory["flis-hc.last"].clone()
            last[ids] = upload.selected()
            memory["flis-hc.last"] = last
        return fl.Scores(near, ctx.everybody, "clients", ctx.everybody, memory)

    @fl.hookimpl
    def cluster(
        self, state: fl.State, stage: fl.Stage, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """Cut the dendrogram once; every group starts from the one model there is."""
        if stage.label != PROBE or scores is None or self.mode == "released":
            return None
        if len(state.models) > 1:
            raise fl.UserError(f"expected one model to copy, found {len(state.models)}")
        home = torch.zeros(ctx.clients, dtype=torch.int64)
        if ctx.clients > 1:
            merges = fl.clustering.dendrogram(1 - scores.values.numpy(), self.linkage)
            # 1e-9 for rounding errors of mean similarities; beta = 0 must give one group
            home = torch.as_tensor(fl.clustering.cut(merges, 1 - self.beta + 1e-9))
        ctx.send("up", ctx.everybody, "cluster", 1)
        return fl.Membership(home, parent=torch.zeros_like(home.unique()))

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start | None:
        """In mode `released` a client starts from its neighbours' mean."""
        if self.mode == "paper" or stage.label == PROBE:
            return None
        return fl.Start(self.means(state, stage.clients, ctx)[:, None])

    def means(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> Tensor:
        """The mean of the latest models of each client's neighbours, shape (n, W)."""
        last, near = state.memory["flis-hc.last"], state.memory["flis-hc.near"]
        weights = near[clients] * ctx.samples[: len(last)]  # newcomers are no neighbours
        return fl.weighted_mean(last[clients], last, weights, ctx.layout.counters)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal | None:
        """The group's model, or in mode `released` the client's own."""
        if self.mode == "paper":
            return None
        return fl.Personal(params=state.memory["flis-hc.last"][clients])

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer trains from w_0 and joins the most similar group, or client's neighbours."""
        if len(state.models) == 1 and self.mode == "paper":
            return None
        of_clients = state.memory["flis-hc.answers"]
        of_newcomers = self.predictions(ctx.train(ctx.initial, clients), ctx)
        n = len(of_clients)
        agreement = fl.similarity.prediction_agreement(torch.cat([of_clients, of_newcomers]))
        agreement = agreement[n:, :n].cpu()
        if self.mode == "released":
            most_similar = agreement.argmax(dim=1)
            return fl.Personal(params=self.means(state, most_similar, ctx))
        home = state.membership.home[: ctx.clients]
        return fl.Personal(row=fl.similarity.best_group(agreement, home))
