"""kindred: clients whose updates have similar directions share a model."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le

import flbench as fl


@dataclass(frozen=True)
class Kindred:
    """Clients whose updates have similar directions share a model."""

    paper: ClassVar[str] = "the tutorial of flbench"
    kind: ClassVar[str] = "clustered"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedavg": {"alike": -1.0, "mu": 0.0}}
    )

    alike: Annotated[float, Ge(-1), Le(1), "mean cosine from which two groups are one"] = 0.2
    mu: Annotated[float, Ge(0), "weight of the distance from the group's model"] = 0.01

    @fl.hookimpl
    def plan(self, ctx):
        """In the first round all clients train once for the comparison."""
        probe = [fl.Stage("probe", ctx.everybody, ctx.local.epochs)] if ctx.round == 1 else []
        return [*probe, fl.Stage("train", ctx.cohort, ctx.local.epochs)]

    @fl.hookimpl
    def score(self, stage, upload, ctx):
        """Cosines of the probe's updates."""
        if stage.kind != "probe" or upload is None:
            return None
        moves = (upload.selected() - ctx.initial)[:, : ctx.layout.parameters]
        return fl.Scores(fl.similarity.cosine(moves).cpu(), upload.ids, "clients", upload.ids)

    @fl.hookimpl
    def cluster(self, scores):
        """Merge the most similar clients first, as long as they are similar."""
        if scores is None or len(scores.values) < 2:
            return None
        merges = fl.clustering.dendrogram(1 - scores.values.numpy())
        home = torch.as_tensor(fl.clustering.cut(merges, 1 - self.alike))
        return fl.Membership(home, parent=torch.zeros_like(home.unique()))

    @fl.hookimpl
    def local_term(self):
        """Half mu times the squared distance from the model of the group."""

        def pull(module):
            here = module.flat()
            return self.mu / 2 * (here - module.start[: len(here)]).square().sum()

        return pull
