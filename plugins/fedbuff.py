"""FedBuff: the server collects K updates in a buffer, and then makes one step.

Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022,
Algorithm 1, without secure aggregation.

    b <- b + (x_i - given_i) / sqrt(1 + s);   after K uploads:  x <- x + eta b / K,  b <- 0

s, the staleness, is the number of steps since client i was called. A round is as many uploads as
the suite calls clients. Departures: every client trains all the time; the paper calls another
client in place of one that arrives. Buffers (BatchNorm) become the mean of those of the K uploads,
counters their maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt

import flbench as fl


@dataclass(frozen=True)
class FedBuff:
    """The server collects K updates in a buffer, and then makes one step."""

    paper: ClassVar[str] = "Nguyen et al., AISTATS 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "global"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"size": 2}, suite={"clock": {"seconds_per_step": [1.0, 1.3, 1.7, 2.9, 4.1, 5.3]}}
    )

    size: Annotated[int, Ge(1), "K, uploads for a step of the server"] = 10
    rate: Annotated[float, Gt(0), "eta, step length of the server"] = 1.0

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Every client is called with the initial model; the buffer is empty, after its length."""
        buffer = torch.zeros(1 + ctx.layout.width, dtype=torch.float64, device=ctx.initial.device)
        memory = fl.asynchrony.memories(ctx, "fedbuff")
        return fl.Setup(memory={**memory, "fedbuff.buffer": fl.Memory(buffer)})

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> list[fl.Stage]:
        """The next uploads, one in a stage."""
        return fl.asynchrony.stages(state, ctx, "fedbuff")

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        """The model that was there when the client was called."""
        return fl.asynchrony.start(state, stage, "fedbuff")

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """Put the update into the buffer; if that is full, make a step. Call the client again."""
        staleness = int(fl.asynchrony.staleness(state, upload, "fedbuff"))
        trained, size = upload.selected()[0], ctx.layout.parameters
        moved = trained - state.memory["fedbuff.given"][upload.ids[0]]
        buffer = state.memory["fedbuff.buffer"].clone()
        buffer[0] += 1
        total, counters = buffer[1:], ctx.layout.counters  # a view: it writes the buffer
        highest = torch.maximum(total[counters], trained[counters].double())
        total[:size] += moved[:size].double() / (1 + staleness) ** 0.5
        total[size:] += trained[size:]
        total[counters] = highest
        rows, full = state.models, int(buffer[0]) == self.size
        if full:
            rows = rows.clone()
            rows[:, :size] += (self.rate / self.size * total[:size]).float()
            total[~counters] /= self.size
            rows[:, size:] = total[size:].float()
            buffer.zero_()
        memory = fl.asynchrony.call_again(state, upload, rows[0], "fedbuff", updated=full)
        return fl.Models(rows, {**memory, "fedbuff.buffer": buffer})
