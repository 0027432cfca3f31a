"""FedGroup: clients grouped by the directions of their first updates, in a few dimensions.

Duan, Liu, Ji, Liu, Liang, Chen, Tan, "FedGroup: efficient clustered federated learning via
decomposed data-driven measure", arXiv 2010.06870 (2020-2021).

    group cold start (before round 1): alpha m random clients train from w_0 ("pre-training"):
        D (n, P) their updates;  V (m, P) the first m right singular vectors of D
        E_ia = cos(D_i, V_a);  EDC_ij = ||E_i - E_j|| / sqrt(m);  k-means++ of the rows of E
        model w_g and update d_g of a group: the means of its members' models and updates
    client cold start: a client that is met later trains once from w and joins the group of the
        largest cos(D_i, d_g)
    then fedavg in each group; d_g = the last change of w_g; at the end of every round
        w_g <- w_g + eta_g sum_{l != g} w_l / ||w_l||,  then w <- mean of the groups' models

The default eta_g = 0 keeps the groups apart. A pre-training is a stage of its own. The means of the
group cold start and w are uniform, as in the released code; those of a round are weighted by
samples. In that code a pre-training is 50 steps, all clients are met before round 1, and the new
w_g is divided by the sum of its weights. Departure: a client that has not been met is evaluated
with w. A newcomer has a client cold start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

import flbench as fl

GROUPS, CLIENTS = "group-cold-start", "client-cold-start"


@dataclass(frozen=True)
class FedGroup:
    """Clients grouped by the directions of their first updates, in a few dimensions."""

    paper: ClassVar[str] = "Duan, Liu, Ji, Liu, Liang, Chen, Tan, arXiv 2010.06870"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "clustered"
    effort: ClassVar[tuple[str, ...]] = ("pre_epochs",)
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"m": 2, "alpha": 2}, equals={"fedavg": {"m": 1, "pre_epochs": 0}}
    )

    m: Annotated[int, Ge(1), "m, number of groups"] = 5
    alpha: Annotated[int, Ge(1), "alpha; alpha m clients are pre-trained first"] = 20
    pre_epochs: Annotated[int, Ge(0), "local epochs of a pre-training"] = 1
    eta_g: Annotated[float, Ge(0), "eta_g, inter-group learning rate; 0 = none"] = 0.0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model, w_0; nobody has a group."""
        empty = ctx.initial[:0]
        memory = {
            "fedgroup.w": fl.Memory(ctx.initial),
            "fedgroup.updates": fl.Memory(ctx.initial[None, : ctx.layout.parameters] * 0, "model"),
            # models and cosines of the group cold start, until the groups are made
            "fedgroup.models": fl.Memory(empty),
            "fedgroup.cosines": fl.Memory(empty),
        }
        return fl.Setup(membership=fl.Membership(torch.full((ctx.clients,), -1)), memory=memory)

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> Sequence[fl.Stage]:
        """Cold starts where they are due; then the cohort trains."""
        home, first = state.membership.home, torch.tensor([], dtype=torch.int64)
        if (home < 0).all():
            draws = [ctx.rng("fedgroup", client=client).random() for client in range(ctx.clients)]
            first = torch.tensor(draws).argsort()[: self.alpha * self.m].sort().values
        later = ctx.cohort[(home[ctx.cohort] < 0) & ~torch.isin(ctx.cohort, first)]
        stages = [
            fl.Stage("probe", first, self.pre_epochs, GROUPS),
            fl.Stage("probe", later, self.pre_epochs, CLIENTS),
            fl.Stage("train", ctx.cohort, ctx.local.epochs),
        ]
        return [stage for stage in stages if len(stage.clients)]

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start | None:
        """A cold start is from w."""
        if stage.label not in (GROUPS, CLIENTS):
            return None
        return fl.Start(params=state.memory["fedgroup.w"].expand(len(stage.clients), 1, -1))

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """The negated EDC; in a client cold start cosines with the groups' updates."""
        if upload is None or stage.label not in (GROUPS, CLIENTS):
            return None
        ids, models, size = upload.ids, upload.selected(), ctx.layout.parameters
        updates = (models - state.memory["fedgroup.w"])[:, :size]
        if stage.label == CLIENTS:
            values = fl.similarity.cosine(updates, state.memory["fedgroup.updates"]).cpu()
            return fl.Scores(values, ids, "models", torch.arange(len(state.models)))
        cosines = decomposed_cosines(updates, self.m)
        values = fl.similarity.neg_distance(cosines, cosines) / self.m**0.5
        memory = {"fedgroup.models": models, "fedgroup.cosines": cosines}
        return fl.Scores(values, ids, "clients", ids, memory)

    @fl.hookimpl
    def cluster(
        self, state: fl.State, stage: fl.Stage, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """Make the groups once; later, each client that is met joins one."""
        if scores is None:
            return None
        home, ids = state.membership.home.clone(), scores.row_ids
        if stage.label == CLIENTS:
            home[ids] = scores.values.argmax(dim=1)
            return fl.Membership(home)
        cosines, k = state.memory["fedgroup.cosines"].numpy(), min(self.m, len(ids))
        labels = torch.as_tensor(fl.clustering.k_means(cosines, k, ctx.rng("fedgroup-kmeans")))
        home[ids] = labels
        parent, members = torch.zeros_like(labels.unique()), F.one_hot(labels).T.double()
        trained, w = state.memory["fedgroup.models"], state.memory["fedgroup.w"]
        models = fl.weighted_mean(state.models[parent], trained, members, ctx.layout.counters)
        empty = trained[:0]
        memory = {
            "fedgroup.updates": (models - w)[:, : ctx.layout.parameters],
            "fedgroup.models": empty,
            "fedgroup.cosines": empty,
        }
        return fl.Membership(home, parent=parent, models=models, memory=memory)

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The mean in each group, then the step towards the other groups."""
        old, size, counters = state.models, ctx.layout.parameters, ctx.layout.counters
        rows = fl.member_mean(old, upload, membership, counters)
        if self.eta_g:
            rows[:, :size] += self.eta_g * others(rows[:, :size])
        moved = (rows != old).any(dim=1, keepdim=True)
        updates = torch.where(moved, (rows - old)[:, :size], state.memory["fedgroup.updates"])
        w = fl.weighted_mean(rows[:1], rows, torch.ones(1, len(rows)).double(), counters)[0]
        return fl.Models(rows, {"fedgroup.updates": updates, "fedgroup.w": w})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """The group's model, or w for a client that was not met."""
        home = state.membership.home[clients]
        params = state.models[home.clamp(min=0)].clone()
        params[home < 0] = state.memory["fedgroup.w"]
        return fl.Personal(params=params)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer has a cold start."""
        w, size = state.memory["fedgroup.w"], ctx.layout.parameters
        updates = (ctx.train(w, clients, self.pre_epochs) - w)[:, :size]
        cosines = fl.similarity.cosine(updates, state.memory["fedgroup.updates"]).cpu()
        return fl.Personal(row=cosines.argmax(dim=1))


def decomposed_cosines(updates: Tensor, m: int) -> Tensor:
    """E: cosines of updates, (n, P), and their first right singular vectors: (n, min(m, n))."""
    directions = torch.linalg.svd(updates.double(), full_matrices=False).Vh[:m]
    return fl.similarity.cosine(updates, directions).cpu()


def others(models: Tensor) -> Tensor:
    """The sum over the other groups of w_l / ||w_l||, shape (m, P)."""
    directions: Tensor = models / models.norm(dim=1, keepdim=True)
    return directions.sum(dim=0) - directions
