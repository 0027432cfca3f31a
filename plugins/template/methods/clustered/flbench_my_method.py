"""my-method: clients whose updates have similar directions share a model.

My paper.

    in the first round all clients train once; average linkage of the cosines of their updates,
    cut at `alike`; then FedAvg within each group
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le

import flbench as fl


@dataclass(frozen=True)
class MyMethod:
    """Clients whose updates have similar directions share a model."""

    paper: ClassVar[str] = "My paper"
    year: ClassVar[int] = 2026
    kind: ClassVar[str] = "clustered"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"alike": -1.0}})

    alike: Annotated[float, Ge(-1), Le(1), "mean cosine from which two groups are one"] = 0.2

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        """In the first round all clients train once, to be compared."""
        probe = [fl.Stage("probe", ctx.everybody, ctx.local.epochs)] if ctx.round == 1 else []
        return [*probe, fl.Stage("train", ctx.cohort, ctx.local.epochs)]

    @fl.hookimpl
    def score(self, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context) -> fl.Scores | None:
        """Cosines of the probe's updates."""
        if stage.kind != "probe" or upload is None:
            return None
        moves = (upload.selected() - ctx.initial)[:, : ctx.layout.parameters]
        return fl.Scores(fl.similarity.cosine(moves).cpu(), upload.ids, "clients", upload.ids)

    @fl.hookimpl
    def cluster(self, scores: fl.Scores | None) -> fl.Membership | None:
        """Merge the most similar groups first, as long as they are similar."""
        if scores is None or len(scores.values) < 2:
            return None
        merges = fl.clustering.dendrogram(1 - scores.values.numpy())
        home = torch.as_tensor(fl.clustering.cut(merges, 1 - self.alike))
        return fl.Membership(home, parent=torch.zeros_like(home.unique()))
