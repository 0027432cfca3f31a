"""LG-FedAvg: some layers are averaged, the others stay local.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think locally, act globally:
federated learning with local and global representations", arXiv 2001.01523 (2020).

    start [q_i, s], train all layers, upload s_i;  s <- sum n_i s_i / sum n_i;  q_i stays local

Paper, authors' scripts and re-implementations share different layers. Here the last two layers of
networks with three or more layers are shared, else the last one; `k` and `share` change this.
Departures: sample weights by default (the authors average uniformly); the best model is not chosen
by test accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

End = Literal["last", "first"]
Layers = Annotated[int, Ge(0)] | None


@dataclass(frozen=True)
class LgFedAvg:
    """Some layers are averaged, the others stay local."""

    paper: ClassVar[str] = (
        "Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, arXiv 2001.01523"
    )
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    presets: ClassVar[fl.Presets] = {"flis": {"k": 2, "share": "last"}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"warm_rounds": 1}, equals={"fedavg": {"warm_rounds": 9}}
    )

    k: Annotated[Layers, "shared layers; none = 2 of 3 or more, else 1"] = None
    share: Annotated[End, "which end of the network is shared"] = "last"
    weighting: Annotated[fl.Weighting, "of the shared layers' mean"] = "samples"
    warm_rounds: Annotated[int, Ge(0), "rounds of fedavg first"] = 0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client, all equal at first; and who holds its local layers."""
        if not self.warm_rounds:
            return fl.one_model_per_client(ctx)
        holds = fl.Memory(torch.zeros(ctx.clients), "client")
        return replace(fl.one_model_per_client(ctx), memory={"lg-fedavg.holds": holds})

    def shared(self, ctx: fl.Context) -> Tensor:
        """Mask of the shared layers, buffers included, shape (W,), bool."""
        if ctx.round <= self.warm_rounds:
            return ctx.layout.all_mask
        layers = ctx.layout.layers
        count = len(layers)
        k = (2 if count > 2 else 1) if self.k is None else min(self.k, count)
        return (layers[count - k :] if self.share == "last" else layers[:k]).any(dim=0)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Only the shared layers are sent, in both directions.

        After the warm rounds a client receives its first local layers once: FedAvg's.
        """
        shared = self.shared(ctx)
        if not self.warm_rounds:
            return fl.Start(sent_mask=shared)
        holds = state.memory["lg-fedavg.holds"][stage.clients, None] > 0
        return fl.Start(sent_mask=shared | ~holds, returned_mask=shared)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The shared layers' mean goes into every row."""
        mask, counters = self.shared(ctx), ctx.layout.counters
        rows = fl.partial_mean(state.models, upload, mask, counters, self.weighting)
        if ctx.round <= self.warm_rounds or not self.warm_rounds:
            return fl.Models(rows)
        holds = state.memory["lg-fedavg.holds"].index_fill(0, upload.ids, 1.0)
        return fl.Models(rows, {"lg-fedavg.holds": holds})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer has the shared layers; its other layers are the initial ones."""
        if not ctx.joining:
            return None
        return fl.initial_for_newcomers(state, clients, ctx, self.shared(ctx))
