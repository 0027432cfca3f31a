"""AFL: the model is trained for the mixture of clients for which it is worst.

Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019, Algorithm 1 (Stochastic-AFL).

    min_w max_lambda sum_i lambda_i F_i(w),   lambda in the simplex of the N clients
    w      <- sum_{i in S} lambda_i w_i / sum_{i in S} lambda_i
    lambda <- Pi(lambda + gamma g),   g_i = (N / n) F_i(w) for the n clients of S, else 0

F_i is the loss of the model that client i starts from, on its training samples; Pi is the
projection on the simplex, and lambda stays at the server. S is the round's cohort, which the suite
draws uniformly: g is the paper's stochastic gradient for lambda. Departures: the gradient of w is
not drawn with the probabilities lambda, but weighted by lambda within the cohort; clients make
local steps instead of one. lambda starts at the clients' shares of all samples, and is kept as the
number of samples that a client counts for. The lambda of a client that is not in the cohort changes
by the projection only. If all of a cohort have lambda 0, the model is kept. Several rows of the
bank: one simplex over the members of each.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

Stages = Sequence[fl.Stage]
COUNTS = "afl.counts"


@dataclass(frozen=True)
class AFL:
    """The model is trained for the mixture of clients for which it is worst."""

    paper: ClassVar[str] = "Mohri, Sivek, Suresh, ICML 2019"
    year: ClassVar[int] = 2019
    kind: ClassVar[str] = "server"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"gamma": 0.0}})

    gamma: Annotated[float, Ge(0), "gamma_lambda, step of the weights; 0 = FedAvg"] = 0.001

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """At first a client counts for its samples."""
        return fl.Setup(memory={COUNTS: fl.Memory(ctx.samples.double())})

    @fl.hookimpl(wrapper=True)
    def plan(self) -> Generator[None, Stages, Stages]:
        """Clients measure the loss of the model that they start from, and send it."""
        stages = yield
        return [replace(stage, losses=stage.losses or stage.aggregates) for stage in stages]

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The mean by lambda, then a step of lambda along the losses."""
        if membership.weights is not None:
            raise fl.Undefined("AFL needs disjoint groups: a client has one weight")
        ctx.send("up", upload.ids, "loss", 1)
        counts, ids = state.memory[COUNTS].clone(), upload.ids
        shares = membership.shares(ids, len(state.models)) * counts[ids]
        rows = fl.weighted_mean(state.models, upload.selected(), shares, ctx.layout.counters)
        loss = upload.loss_start[torch.arange(len(ids)), upload.chosen].to(counts)
        for row in membership.home[ids].unique():
            members = membership.home == row
            acting, total = members[ids], ctx.samples[members].sum()
            slope = torch.zeros_like(counts)
            slope[ids[acting]] = loss[acting] * members.sum() / acting.sum()
            moved = counts[members] + self.gamma * total * slope[members]
            counts[members] = onto_simplex(moved, total)
        return fl.Models(rows, {COUNTS: counts})


def onto_simplex(point: Tensor, total: float | Tensor = 1) -> Tensor:
    """The nearest point with entries >= 0 of a given sum: shape (n,) -> (n,).

    Example:
        >>> onto_simplex(torch.tensor([0.5, 1.0, -1.0]))
        tensor([0.2500, 0.7500, 0.0000])
    """
    ordered = point.sort(descending=True).values
    excess = (ordered.cumsum(dim=0) - total) / torch.arange(1, len(point) + 1)
    return (point - excess[(ordered > excess).sum() - 1]).clamp(min=0)
