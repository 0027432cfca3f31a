"""KLD groups: clients with similar label distributions train together.

The fixed and the naive dynamic grouping that motivate DC-PFL: Liu, Huang, He, Cao, "Dynamic
clustering for personalized federated learning on heterogeneous edge devices", arXiv 2508.01580
(2025), section II.

    clients send their label counts; symmetric Kullback-Leibler divergence of every pair;
    average linkage, cut at `gamma` nats (or into `groups` groups) after `after` rounds of fedavg;
    then fedavg within each group, from the current model

`after=0` is the fixed grouping of its Fig. 2; `after=50` with two groups the naive dynamic grouping
of Fig. 3. Departures: half a sample is added to every count, so that the divergence is finite for a
label that only one client holds; values of gamma are therefore not the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class KLDGroups:
    """Fixed groups of clients with similar label distributions."""

    paper: ClassVar[str] = "Liu, Huang, He, Cao, arXiv 2508.01580"
    year: ClassVar[int] = 2025
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {"naive-dynamic": {"groups": 2, "after": 50}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"groups": 1}})

    gamma: Annotated[
        float, Ge(0), fl.only_with("groups", None), "divergence, in nats, at which groups are cut"
    ] = 1.0
    groups: Annotated[Annotated[int, Ge(1)] | None, "number of groups; none = by gamma"] = None
    after: Annotated[int, Ge(0), "rounds of fedavg before clients are grouped"] = 0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> None:
        """Warn if there are too few rounds to group the clients."""
        if ctx.rounds <= self.after:
            reason = f"{ctx.rounds} rounds do not exceed after={self.after}"
            ctx.warn(f"kld-groups: {reason}: fedavg, nobody is grouped")

    @fl.hookimpl
    def cluster(self, state: fl.State, phase: fl.Phase, ctx: fl.Context) -> fl.Membership | None:
        """Group the clients once; every group starts from the current model."""
        if ctx.round != self.after + 1 or phase != "before" or len(state.models) > 1:
            return None
        ctx.send("up", ctx.everybody, "label counts", ctx.classes)
        counts = ctx.own_label_counts(ctx.everybody)
        home = torch.zeros(ctx.clients, dtype=torch.int64)
        if ctx.clients > 1:
            merges = fl.clustering.dendrogram(fl.heterogeneity.kld(counts.numpy()))
            height = self.gamma
            if self.groups is not None:
                merges[:, 2] = np.arange(len(merges))  # ranks as heights, which have no ties
                height = ctx.clients - self.groups - 0.5
            home = torch.as_tensor(fl.clustering.cut(merges, height))
        return fl.Membership(home, parent=torch.zeros_like(home.unique()))

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer joins the group with the smallest mean divergence from it."""
        if len(state.models) == 1:
            return None
        both = torch.cat([clients, ctx.everybody])
        divergence = fl.heterogeneity.kld(ctx.own_label_counts(both).numpy())
        divergence = divergence[: len(clients), len(clients) :]
        home = state.membership.home[: ctx.clients]
        return fl.Personal(row=fl.similarity.best_group(torch.as_tensor(-divergence), home))
