"""Own majority: every client predicts from its own targets alone, whatever the sample is.

    classes   p_i(y) = (n_iy + 1 / C) / (n_i + 1)
    numbers   the mean of the client's training targets
    labels    p_i(label) = (n_i,label + 1 / 2) / (n_i + 1)

The least that a model has to beat on natural clients, whose targets often say more than their
features: no model is trained and nothing is sent. n_iy counts the client's training samples of
label y; of text, its tokens. A reference of flbench (2026), of no paper: shares with one sample's
weight on equal shares (a Dirichlet prior of total weight 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class OwnMajority:
    """Every client predicts its most frequent label, or mean; a reference, nothing is trained."""

    paper: ClassVar[str] = "a reference of flbench"
    year: ClassVar[int] = 2026
    kind: ClassVar[str] = "personalised"
    baseline: ClassVar[bool] = True
    across_networks: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance()

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        """A stage in which nobody trains, as a round has one."""
        return (fl.Stage("probe", ctx.cohort, 0),)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """Nothing is sent."""
        return fl.Start(sent_mask=ctx.layout.none_mask, returned_mask=ctx.layout.none_mask)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """What a client predicts of every sample."""
        is_text = ctx.task == "classes" and ctx.client_data(int(clients[0]))[1].ndim > 1
        return fl.Personal(
            row=torch.zeros_like(clients),
            extras={"majority.output": outputs(clients, ctx)},
            predictor=partial(predicted, is_text=is_text),
        )

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The same of newcomers."""
        return self.personalise(state, clients, ctx)


def outputs(clients: Tensor, ctx: fl.Context) -> Tensor:
    """The output of each of some clients for every sample, shape (n, C), as a network gives it."""
    if ctx.task == "classes":
        counts = ctx.own_label_counts(clients).double()
        shares = (counts + 1 / counts.shape[1]) / (counts.sum(dim=1, keepdim=True) + 1)
        return shares.log().float()
    targets = [ctx.client_data(client)[1].float() for client in clients.tolist()]
    if ctx.task == "numbers":
        return torch.stack([y.mean(dim=0) for y in targets])
    return torch.stack([((y.sum(dim=0) + 0.5) / (len(y) + 1)).logit() for y in targets])


def predicted(module: fl.ClientModule, x: Tensor, is_text: bool) -> Tensor:
    """The client's output for samples x: shape (b, C), of text (b, T, C)."""
    output = module.received["majority.output"]
    return output.expand(*(x.shape if is_text else x.shape[:1]), -1)
