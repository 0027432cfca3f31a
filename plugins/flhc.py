"""FL+HC: after some rounds, one hierarchical clustering of the clients' updates.

Briggs, Fan, Andras, "Federated learning with hierarchical clustering of local updates to improve
training on non-IID data", IJCNN 2020, Algorithm 1.

    rounds 1..n   fedavg gives w
    then once     all clients train from w; agglomerative clustering of D_i = w_i - w by their
                  cosine, L1 or L2 distance; groups are cut at the distance T
    later         fedavg in each group, from w

The models that give D are not used further; they are counted in round n + 1. The first cohort then
holds what it starts from. The paper tries all metrics and linkages, and recommends n = 10 and L1.
L1 and L2 depend on network and learning rate, so the default is the cosine distance (1 - cos, 0 to
2). Ward's linkage needs L2. Departure: a newcomer trains once from w and joins the group with the
smallest mean distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

PROBE = "flhc"


@dataclass(frozen=True)
class FLHC:
    """After some rounds, one hierarchical clustering of the clients' updates."""

    paper: ClassVar[str] = "Briggs, Fan, Andras, IJCNN 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {"mnist": {"metric": "l2", "distance": 3.0}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"n": 1}, equals={"fedavg": {"distance": 2.0}}
    )

    n: Annotated[int, Ge(0), "n, rounds of fedavg before the clustering"] = 10
    distance: Annotated[float, Ge(0), "T, distance at which groups are cut"] = 0.5
    metric: Annotated[Literal["cosine", "l1", "l2"], "distance of two updates"] = "cosine"
    linkage: Annotated[
        Literal["average", "complete", "single", "ward"], "distance of two groups"
    ] = "average"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """The server keeps w and all updates if newcomers will join."""
        if self.linkage == "ward" and self.metric != "l2":
            raise fl.Undefined(f"Ward's linkage is defined for metric=l2, not for {self.metric}")
        if ctx.rounds <= self.n:
            ctx.warn(f"flhc: {ctx.rounds} rounds do not exceed n={self.n}: fedavg")
        empty = ctx.initial[:0]
        return fl.Setup(memory={"flhc.start": fl.Memory(empty), "flhc.updates": fl.Memory(empty)})

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage] | None:
        """All clients train once after round n."""
        if ctx.round != self.n + 1:
            return None
        probe = fl.Stage("probe", ctx.everybody, ctx.local.epochs, PROBE)
        return probe, fl.Stage("train", ctx.cohort, ctx.local.epochs)

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """Negated distances of all clients' updates."""
        if upload is None or stage.label != PROBE:
            return None
        updates = (upload.selected() - state.models[0])[:, : ctx.layout.parameters]
        memory = {"flhc.start": state.models[0], "flhc.updates": updates} if ctx.newcomers else {}
        values, ids = -self.distances(updates, updates), upload.ids
        return fl.Scores(values, ids, "clients", ids, memory)

    def distances(self, updates: Tensor, others: Tensor) -> Tensor:
        """Distances of updates, shapes (n, P) and (m, P): (n, m), float64."""
        if self.metric == "cosine":
            return 1 - fl.similarity.cosine(updates, others).cpu()
        if self.metric == "l2":
            return -fl.similarity.neg_distance(updates, others).cpu()
        return torch.cdist(updates.double(), others.double(), p=1).cpu()

    @fl.hookimpl
    def cluster(self, state: fl.State, scores: fl.Scores | None) -> fl.Membership | None:
        """Cut the dendrogram once; every group starts from the one model there is."""
        if scores is None:
            return None
        if len(state.models) > 1:
            raise fl.UserError(f"expected one model to copy, found {len(state.models)}")
        merges = fl.clustering.dendrogram(-scores.values.numpy(), self.linkage)
        home = torch.as_tensor(fl.clustering.cut(merges, self.distance))
        return fl.Membership(home, parent=torch.zeros_like(home.unique()))

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer trains from w and joins the group with the smallest mean distance."""
        if len(state.models) == 1:
            return None
        start, known = state.memory["flhc.start"], state.memory["flhc.updates"]
        own = (ctx.train(start, clients) - start)[:, : ctx.layout.parameters]
        scores, home = -self.distances(own, known), state.membership.home[: ctx.clients]
        return fl.Personal(row=fl.similarity.best_group(scores, home))
