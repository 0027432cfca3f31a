"""LG-FedAvg: some layers are averaged, the others stay local.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think locally, act globally:
federated learning with local and global representations", arXiv 2001.01523 (2020).

    start [q_i, s], train all layers, upload s_i;  s <- sum n_i s_i / sum n_i;  q_i stays local

Paper, authors' scripts and re-implementations share different layers. Here the last two layers of
networks with three or more layers are shared if they are linear, else the last one; `k` and `share`
change this. A normalisation layer counts with the layer before it. Departures: sample weights by
default (the authors average uniformly); the best model is not chosen by test accuracy.
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


def numbered(layout: fl.ParameterLayout) -> Tensor:
    """Number of each of the layout's layers; normalisation has that of the layer before it."""
    norms = (layout.layers & layout.norm).any(dim=1)
    return (~norms).cumsum(0).clamp(min=1) - 1


def linear_end(layout: fl.ParameterLayout, number: Tensor) -> bool:
    """Whether there are three or more layers, of which the last two are linear."""
    ends = layout.layers[number >= number.max() - 1].any(dim=0)
    slots = [slot for slot in layout.slots if ends[slot.start]]
    return bool(number.max() > 1) and all(len(slot.shape) <= 2 for slot in slots)


@dataclass(frozen=True)
class LgFedAvg:
    """Some layers are averaged, the others stay local."""

    paper: ClassVar[str] = (
        "Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, arXiv 2001.01523"
    )
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    across_networks: ClassVar[bool] = True
    presets: ClassVar[fl.Presets] = {"flis": {"k": 2, "share": "last"}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"warm_rounds": 1}, equals={"fedavg": {"warm_rounds": 9}}
    )

    k: Annotated[Layers, "shared layers; none = 2 of 3 or more if linear, else 1"] = None
    share: Annotated[End, "which end of the network is shared"] = "last"
    weighting: Annotated[fl.Weighting, "of the shared layers' mean"] = "samples"
    warm_rounds: Annotated[int, Ge(0), "rounds of fedavg first"] = 0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client, all equal at first; and who holds its local layers."""
        self.shared(ctx)  # refuses now what has no meaning
        if not self.warm_rounds:
            return fl.one_model_per_client(ctx)
        holds = fl.Memory(torch.zeros(ctx.clients), "client")
        return replace(fl.one_model_per_client(ctx), memory={"lg-fedavg.holds": holds})

    def shared(self, ctx: fl.Context) -> Tensor:
        """Mask of the shared layers, buffers included, shape (W,), bool."""
        if ctx.networks is not None:
            return self.common_head(ctx)
        if ctx.round <= self.warm_rounds:
            return ctx.layout.all_mask
        number = numbered(ctx.layout)
        k = (2 if linear_end(ctx.layout, number) else 1) if self.k is None else self.k
        ends = number > number.max() - k if self.share == "last" else number < k
        return ctx.layout.layers[ends].any(dim=0)

    def common_head(self, ctx: fl.Context) -> Tensor:
        """What clients with different networks can share: their common head, shape (W,), bool."""
        head = ctx.layout.head & ctx.layout.common
        if not head.any():
            raise fl.Undefined("different networks share a head only with `common_head = true`")
        if self.k not in (None, 1) or self.share != "last" or self.warm_rounds:
            raise fl.Undefined("different networks share their common head, and no other layer")
        return head

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
    def weights(self, upload: fl.Upload) -> Tensor:
        """By samples, or uniform."""
        return fl.client_weights(upload, self.weighting)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The shared layers' mean goes into every row."""
        mask, counters = self.shared(ctx), ctx.layout.counters
        rows = fl.partial_mean(state.models, upload, mask, counters)
        if ctx.round <= self.warm_rounds or not self.warm_rounds:
            return fl.Models(rows)
        holds = state.memory["lg-fedavg.holds"].index_fill(0, upload.ids, 1.0)
        return fl.Models(rows, {"lg-fedavg.holds": holds})
