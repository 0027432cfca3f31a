"""Oracle: FedAvg within the true groups, the upper bound of clustering.

Rokvic, Danassis, Faltings, "Lazy but effective: collaborative personalized federated learning with
heterogeneous data", IJCNN 2025, section IV-C.

    rounds 1..warmup: fedavg; then w_g <- sum_{i in S_t, g_i = g} n_i w_i / sum n_i

The warm-up is our inference, the paper names it for pfedlia only: its two rows agree to two
decimals on CIFAR-10 and Fashion-MNIST, deviations too, as if both had the same warm-up and random
numbers. `warmup=0` has none. Departure: the paper has no oracle row for the noisy setting; here it
uses the main group. Where the data change and the true groups with them, clients go to the row of
their new group; a group that is new starts from the row that most of its clients had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class Oracle:
    """FedAvg within the true groups: an upper bound, never ranked."""

    paper: ClassVar[str] = "Rokvic, Danassis, Faltings, IJCNN 2025"
    year: ClassVar[int] = 2025
    kind: ClassVar[str] = "clustered"

    uses_true_groups: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"warmup": 1}, equals={"fedavg": {"warmup": 9}}
    )

    warmup: Annotated[int, Ge(0), "rounds of fedavg before the groups are used"] = 20

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Read the groups, which must exist; warn if there are too few rounds to use them."""
        groups = len(ctx.true_groups.unique())
        if ctx.rounds <= self.warmup:
            reason = f"{ctx.rounds} rounds do not exceed warmup={self.warmup}"
            ctx.warn(f"oracle: {reason}: fedavg, the {groups} groups stay unused")
        return fl.Setup(memory={"oracle.groups": fl.Memory(torch.tensor([-1]), "model")})

    @fl.hookimpl
    def cluster(self, state: fl.State, phase: fl.Phase, ctx: fl.Context) -> fl.Membership | None:
        """Copy the one model to every true group after the warm-up; later follow these groups."""
        if ctx.round <= self.warmup or phase != "before":
            return None
        groups, home = torch.unique(ctx.true_groups, return_inverse=True)
        before, known = state.membership.home, state.memory["oracle.groups"]
        if torch.equal(groups, known) and torch.equal(home, before):
            return None
        rows = {group: row for row, group in enumerate(known.tolist())}
        parent = torch.zeros(len(groups), dtype=torch.int64)
        if ctx.round > self.warmup + 1:
            for row, group in enumerate(groups.tolist()):
                most = int(before[home == row].mode().values)
                parent[row] = rows.get(group, most)
        elif not bool((state.models == state.models[0]).all()):
            raise fl.UserError(f"expected one model to copy, found {len(state.models)} that differ")
        return fl.Membership(home, parent=parent, memory={"oracle.groups": groups})

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer has the model of its true group."""
        if len(state.models) == 1:
            return None
        known, own = ctx.true_groups[: ctx.clients].unique(), ctx.true_groups[clients]
        if not torch.isin(own, known).all():
            raise fl.Undefined("the true group of a newcomer has no client that trains")
        return fl.Personal(row=torch.searchsorted(known, own))
