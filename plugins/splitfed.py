"""SplitFed: the server trains the last layers, clients the first ones.

Thapa, Mahawaga Arachchige, Camtepe, Sun, "SplitFed: when federated learning meets split learning",
AAAI 2022.

    each step     client k sends the activations A of its batch and the labels; the server computes
                  the loss, updates its part w_S and sends dA back; the client updates its part w_k
    end of round  w_C <- sum n_k w_k / n
    V1            a copy of w_S for each client, all trained in parallel;  w_S <- sum n_k w_Sk / n
    V2            one w_S, which goes on from client to client, in a random order

So V1 has the models of FedAvg; other bytes are sent. V2 as in the authors' scripts: a client makes
all its steps of the round before the next one begins (the paper has the server take turns at every
step), and momentum begins anew with each client. Departure from these scripts: clients are weighted
by samples, as the paper says. The labels are sent, and neither part is protected by noise.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

import flbench as fl

START, SAMPLES, ROUND = "splitfed-v2.start", "splitfed-v2.samples", "splitfed-v2.round"


def server_part(layout: fl.ParameterLayout, cut: float | str) -> Tensor:
    """Mask of the layers that live at the server, buffers included, shape (W,), bool.

    Args:
        layout: of the row.
        cut: share of the network's layers that clients keep, at least one and not all; or the name
            of the first layer, or part, that lives at the server.
    """
    layers = dict.fromkeys(slot.layer for slot in layout.slots if slot.kind == "parameter")
    names = [name.removeprefix("net.") for name in layers if name.startswith("net.")]
    if len(names) < 2:
        raise fl.Undefined("SplitFed divides the layers of a network, and this one has one")
    if isinstance(cut, str):
        found = [at for at, name in enumerate(names) if f"{name}.".startswith(f"{cut}.")]
        if not found or found[0] == 0:
            raise fl.UserError(
                f"cut: expected a layer after the first, of {', '.join(names)}, got '{cut}'"
            )
        first = found[0]
    elif not 0 < cut < 1:
        raise fl.UserError(f"cut: expected a share above 0 and below 1, or a layer, got {cut:g}")
    else:
        first = min(max(1, round(cut * len(names))), len(names) - 1)
    flags = torch.tensor([name.removeprefix("net.") in names[first:] for name in layers])
    return layout.of_layers(flags[None])[0]


@dataclass(frozen=True)
class SplitFed:
    """What both versions have in common."""

    paper: ClassVar[str] = "Thapa, Mahawaga Arachchige, Camtepe, Sun, AAAI 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "global"

    cut: Annotated[
        float | str, "share of layers that clients keep; or the server's first layer"
    ] = 0.5


@dataclass(frozen=True)
class SplitFedV1(SplitFed):
    """The server trains the last layers, a copy for each client, and averages them as well."""

    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {}})

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> None:
        """Refuse networks that cannot be divided."""
        server_part(ctx.layout, self.cut)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """The last layers live at the server."""
        return fl.Start(server_mask=server_part(ctx.layout, self.cut))


@dataclass(frozen=True)
class SplitFedV2(SplitFed):
    """The server trains the last layers, one copy with client after client."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Per model: the clients' part at the start of a round, and who finished in which round."""
        server_part(ctx.layout, self.cut)
        none = fl.Memory(torch.zeros(1, dtype=torch.float64), "model")
        start = fl.Memory(ctx.initial[None].clone(), "model")
        return fl.Setup(memory={START: start, SAMPLES: none, ROUND: none})

    @fl.hookimpl(wrapper=True)
    def plan(self, ctx: fl.Context) -> Generator[None, Sequence[fl.Stage], Sequence[fl.Stage]]:
        """One client after the other, in a random order that follows the clients."""
        stages = yield
        return [turn for stage in stages for turn in self.turns(stage, ctx)]

    def turns(self, stage: fl.Stage, ctx: fl.Context) -> Sequence[fl.Stage]:
        """A stage for each client, if they are aggregated."""
        if not stage.aggregates:
            return [stage]
        address = "splitfed-v2", ctx.round, stage.label
        keys = [ctx.rng(*address, client=one).random() for one in stage.clients.tolist()]
        order = torch.tensor(keys).argsort()
        return [stage.select(at) for at in order.split(1)]

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients start from their part as the round began, the server goes on with its own."""
        mask, home = server_part(ctx.layout, self.cut), state.membership.home[stage.clients]
        if bool((home < 0).any()):
            return fl.Start(server_mask=mask)  # another method says what they start from
        begun = (state.memory[ROUND][home] == ctx.round)[:, None]
        models, first = state.models[home], state.memory[START][home]
        params = torch.where((begun & ~mask).to(models.device), first.to(models.device), models)
        return fl.Start(params=params[:, None], server_mask=mask)

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The clients' part is the mean of those that finished; the server's is the last one."""
        if membership.weights is not None:
            raise fl.Undefined("SplitFedV2 needs disjoint groups: a model goes on by itself")
        layout, mask = ctx.layout, server_part(ctx.layout, self.cut)
        rows = fl.member_mean(state.models, upload, membership, layout.counters)
        memory = {name: state.memory[name].clone() for name in (START, SAMPLES, ROUND)}
        home = membership.home[upload.ids]
        for row in home.unique().tolist():
            count = float(upload.client_weights[home == row].sum())
            before, mean = state.models[row], rows[row]
            if float(memory[ROUND][row]) != ctx.round:
                memory[START][row], memory[SAMPLES][row] = before, 0.0
                memory[ROUND][row] = float(ctx.round)
                before = mean
            total = float(memory[SAMPLES][row]) + count
            memory[SAMPLES][row] = total
            of_clients = torch.lerp(before, mean, count / total if total else 0.0)
            counts = torch.maximum(before, mean)
            of_clients = torch.where(layout.counters.to(mean.device), counts, of_clients)
            rows[row] = torch.where(mask.to(mean.device), mean, of_clients)
        return fl.Models(rows, memory)
