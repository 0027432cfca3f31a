"""FLIS-HC: disjoint groups, found once by how alike models answer.

Morafah, Vahidian, Wang, Lin, "FLIS: clustered federated learning via inference similarity for
non-IID data distribution", FL@NeurIPS 2022, arXiv 2208.09754.

    before round 1 everybody trains from w_0 (a probe, counted in round 1) and uploads;
    A as in FLIS-DC; hierarchical clustering of 1 - A, cut at 1 - beta; every group starts from w_0;
    then fedavg within each group

The probe's models are thrown away. Departures: average linkage; the released script does not
cluster hierarchically at all (only its built-in acceptance at 0.96 acts), the paper is followed.
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


@dataclass(frozen=True)
class FlisHC:
    """Disjoint groups found once, by inference similarity on the server's samples."""

    paper: ClassVar[str] = "Morafah, Vahidian, Wang, Lin, FL@NeurIPS 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "clustered"

    beta: Annotated[float, Ge(0), "groups are cut where their similarity falls below"] = 0.5
    linkage: Annotated[Literal["average", "complete", "single"], "of the clustering"] = "average"
    answers: Annotated[Literal["onehot", "softmax"], "what is compared"] = "onehot"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """The server must own samples; it keeps the probe's answers where newcomers will come."""
        ctx.server_data()
        return fl.Setup(memory={"flis-hc.answers": fl.Memory(torch.zeros(0))})

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage] | None:
        """Everybody trains once before the first round."""
        if ctx.round != 1:
            return None
        probe = fl.Stage("probe", ctx.everybody, ctx.local.epochs, name=PROBE)
        return probe, fl.Stage("train", ctx.cohort, ctx.local.epochs)

    def ask(self, models: Tensor, ctx: fl.Context) -> Tensor:
        """What models say about the server's samples, shape (n, M, C)."""
        return fl.scoring.answers(ctx.logits(models, ctx.server_data()[0]), self.answers)

    @fl.hookimpl
    def score(self, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context) -> fl.Scores | None:
        """Agreement of the probe's models."""
        if stage.label != PROBE or upload is None:
            return None
        said = self.ask(upload.kept(), ctx)
        kept = {"flis-hc.answers": said} if ctx.newcomers else {}
        alike, ids = fl.scoring.agreement(said).cpu(), upload.ids
        return fl.Scores(alike, ids, "clients", ids, kept)

    @fl.hookimpl
    def cluster(
        self, state: fl.State, stage: fl.Stage, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """Cut the dendrogram once; every group starts from the one model there is."""
        if stage.label != PROBE or scores is None:
            return None
        if len(state.models) > 1:
            raise fl.UserError(f"expected one model to copy, found {len(state.models)}")
        home = torch.zeros(ctx.clients, dtype=torch.int64)
        if ctx.clients > 1:
            merges = fl.clustering.dendrogram(1 - scores.values.numpy(), self.linkage)
            # a mean of similarities is exact to 1e-16 only; beta = 0 must merge everybody
            home = torch.as_tensor(fl.clustering.cut(merges, 1 - self.beta + 1e-9))
        ctx.send("up", ctx.everybody, "cluster", 1)
        return fl.Membership(home, parent=torch.zeros_like(home.unique()))

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """The group's model; a newcomer trains from w_0 and joins whom it agrees with most."""
        if not ctx.joining or len(state.models) == 1:
            return None
        before = state.memory["flis-hc.answers"]
        said = torch.cat([before, self.ask(ctx.train(ctx.initial, clients), ctx)])
        alike = fl.scoring.agreement(said)[len(before) :, : len(before)].cpu()
        home = state.membership.home[: ctx.clients]
        return fl.Personal(row=fl.scoring.best_group(alike, home))
