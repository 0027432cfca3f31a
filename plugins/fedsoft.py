"""FedSoft: S centres; every client is near all of them, more to those that fit its samples.

Ruan, Joe-Wong, "FedSoft: soft clustered federated learning with proximal local updating", AAAI
2022.

    n_ks   number of samples of client k on which centre s has the least loss of all centres
    u_ks   = n_ks / n_k, or sigma where that is 0             importance, estimated every tau rounds
    client minimises f_k(w) + lam / 2 sum_s u_ks ||w - c_s||^2, from its own last model w_k
    server c_s <- sum_k u_ks n_k w_k / sum_k u_ks n_k

The client's model of the paper is w_k. `start=centres` starts from the mean of the centres by
importance, sum_s u_ks c_s / sum_s u_ks, and evaluates it; with one centre that is fedprox.
Departures: the suite's cohort trains, and its models are weighted; the paper draws a cohort for
every centre by u_ks n_k, and averages it uniformly. Clients estimate u only when they are sampled,
where the paper asks all of them. A client that was never sampled and a newcomer are evaluated with
the mean of the centres by importance. The first centre has the common initial weights, others have
different ones; clients start from the common ones. If all clients of a round fit one centre best,
all centres become the same mean, and stay it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FedSoft:
    """S centres; every client is near all of them, more to those that fit its samples."""

    paper: ClassVar[str] = "Ruan, Joe-Wong, AAAI 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "clustered"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={
            "fedavg": {"s": 1, "lam": 0.0, "start": "centres"},
            "fedprox": {"s": 1, "lam": 0.01, "start": "centres"},
        }
    )

    s: Annotated[int, Ge(1), "S, number of centres"] = 2
    lam: Annotated[float, Ge(0), "lambda, weight of the distances from the centres"] = 0.1
    tau: Annotated[int, Ge(1), "tau, rounds between two estimates of the importance"] = 2
    sigma: Annotated[float, Gt(0), "sigma, importance of a centre that fits no sample"] = 1e-4
    start: Annotated[
        Literal["own", "centres"], "what clients start from and are evaluated with"
    ] = "own"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """S different centres; a model of each client; nobody knows its importance."""
        fresh = [ctx.fresh_initial(index) for index in range(1, self.s)]
        memory = {
            "fedsoft.own": fl.Memory(ctx.repeated(ctx.initial), "client"),
            "fedsoft.u": fl.Memory(torch.full((ctx.clients, self.s), torch.nan), "client"),
        }
        undecided = fl.Membership(torch.full((ctx.clients,), -1))
        return fl.Setup(torch.stack([ctx.initial, *fresh]), undecided, memory)

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, phase: fl.Phase, ctx: fl.Context
    ) -> fl.Scores | None:
        """The importance of every centre to every acting client."""
        if phase == "after":
            return None
        ids, u = stage.clients, state.memory["fedsoft.u"].clone()
        ctx.send_models(ids, state.models)
        due = ids if (ctx.round - 1) % self.tau == 0 else ids[u[ids, 0].isnan()]
        u[due] = self.importance(state.models, due, ctx)
        ctx.send("up", due, "importance", self.s)
        columns = torch.arange(self.s)
        return fl.Scores(u[ids].double(), ids, "models", columns, {"fedsoft.u": u})

    def importance(self, centres: Tensor, clients: Tensor, ctx: fl.Context) -> Tensor:
        """u_ks of some clients, shape (n, S)."""
        shares = torch.zeros(len(clients), self.s)
        for place, client in enumerate(clients.tolist()):
            x, y = ctx.client_data(client)
            nearest = sample_losses(ctx.logits(centres, x), y).argmin(dim=0)
            shares[place] = torch.bincount(nearest.cpu(), minlength=self.s) / len(x)
        return torch.where(shares > 0, shares, self.sigma)

    @fl.hookimpl
    def cluster(self, state: fl.State, scores: fl.Scores | None) -> fl.Membership | None:
        """Clients weigh in every centre; their home is the most important one."""
        if scores is None:
            return None
        home = state.membership.home.clone()
        home[scores.row_ids] = scores.values.argmax(dim=1)
        return fl.Membership(home, weights=state.memory["fedsoft.u"].nan_to_num().T)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients start from their own model; they have got the centres (`send_models`)."""
        ids = stage.clients
        u, params = state.memory["fedsoft.u"][ids], state.memory["fedsoft.own"][ids]
        if self.start == "centres":
            params = mixed(state.models, u, ctx)
        centres = state.models.expand(len(ids), -1, -1)
        return fl.Start(
            params=params[:, None],
            sent_mask=ctx.layout.none_mask,
            returned_mask=ctx.layout.all_mask,
            client_memory={"centres": centres, "u": u.to(centres.device)},
        )

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], Tensor]:
        """Half lam times the squared distances from the centres, by importance."""

        def term(module: fl.ClientModule) -> Tensor:
            w, centres, u = module.flat(), module.received["centres"], module.received["u"]
            squares = (w - centres[:, : len(w)]).square()
            return self.lam / 2 * (u[:, None] * squares).sum()

        return term

    @fl.hookimpl
    def report(self) -> fl.Reporter:
        """Clients keep the model that they trained."""
        return lambda module, x, y: fl.Report(kept={"fedsoft.own": module.row()})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The client's own model, or the mean of the centres by importance."""
        u = state.memory["fedsoft.u"][clients]
        new = u[:, 0].isnan()
        u[new] = self.importance(state.models, clients[new], ctx)
        params = mixed(state.models, u, ctx)
        if self.start == "own":
            params[~new] = state.memory["fedsoft.own"][clients[~new]]
        return fl.Personal(params=params)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The mean of the centres by importance."""
        u = self.importance(state.models, clients, ctx)
        return fl.Personal(params=mixed(state.models, u, ctx))


def sample_losses(logits: Tensor, y: Tensor) -> Tensor:
    """Loss of every model on every sample, of text its mean over tokens: (m, b, ...) -> (m, b)."""
    flat = logits.flatten(0, 1).movedim(-1, 1)
    losses = F.cross_entropy(flat, y.repeat(len(logits), *[1] * (y.dim() - 1)), reduction="none")
    return losses.view(len(logits), len(y), -1).mean(dim=2)


def mixed(centres: Tensor, u: Tensor, ctx: fl.Context) -> Tensor:
    """The mean of the centres, (S, W), by the importance to each client, (n, S): (n, W)."""
    rows = centres[:1].expand(len(u), -1)
    return fl.weighted_mean(rows, centres, u.double(), ctx.layout.counters)
