"""Own majority: every client predicts from its own labels alone, whatever the sample is.

    p_i(y) = (n_iy + 1 / C) / (n_i + 1), for every x

The least that a model has to beat on natural clients, whose labels often say more than their
features: no model is trained and nothing is sent. n_iy counts the client's training samples of
label y; of text, its tokens. No paper: the share of labels with one sample's weight on equal shares
(a Dirichlet prior of total weight 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class OwnMajority:
    """Every client predicts its own most frequent label; a reference, nothing is trained."""

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
        """The logarithms of a client's shares of labels, for every sample."""
        counts = ctx.own_label_counts(clients).double()
        shares = (counts + 1 / ctx.classes) / (counts.sum(dim=1, keepdim=True) + 1)
        is_text = ctx.client_data(int(clients[0]))[1].ndim > 1
        return fl.Personal(
            row=clients.new_zeros(len(clients)),
            extras={"majority.shares": shares.log().float()},
            predictor=partial(predicted, is_text=is_text),
        )

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The same of newcomers."""
        return self.personalise(state, clients, ctx)


def predicted(module: fl.ClientModule, x: Tensor, is_text: bool) -> Tensor:
    """The client's logarithms of shares for samples x: shape (b, C), of text (b, T, C)."""
    shares = module.received["majority.shares"]
    return shares.expand(*(x.shape if is_text else x.shape[:1]), -1)
