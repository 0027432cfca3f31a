"""Oracle: FedAvg within the true groups, the upper bound of clustering.

Rokvic, Danassis, Faltings, "Lazy but effective: collaborative personalized federated learning with
heterogeneous data", IJCNN 2025, section IV-C.

    rounds 1..warmup: fedavg; then w_g <- sum_{i in S_t, g_i = g} n_i w_i / sum n_i

Departure: the paper has no oracle row for the noisy setting; here it knows the main group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

from flbench import Context, Membership, Phase, Setup, State, UserError, hookimpl


@dataclass(frozen=True)
class Oracle:
    """FedAvg within the true groups: an upper bound, never ranked."""

    uses_true_groups: ClassVar[bool] = True

    warmup: Annotated[int, Ge(0), "rounds of fedavg before the groups are told"] = 20

    @hookimpl
    def setup(self, ctx: Context) -> Setup | None:
        """Say so when the groups never come into play."""
        if ctx.rounds <= self.warmup:
            ctx.warn(f"oracle: {ctx.rounds} rounds do not exceed warmup={self.warmup}: fedavg")
        return None

    @hookimpl
    def cluster(self, state: State, phase: Phase, ctx: Context) -> Membership | None:
        """Copy the one model to every true group after the warm-up."""
        if ctx.round != self.warmup + 1 or phase != "before":
            return None
        home = torch.unique(ctx.true_groups, return_inverse=True)[1]
        if not bool((state.models == state.models[0]).all()):
            if torch.equal(state.membership.home, home):
                return None  # a later stage of the same round
            raise UserError(f"expected one model to copy, found {len(state.models)} that differ")
        return Membership(home=home, parent=torch.zeros(int(home.max()) + 1, dtype=torch.int64))
