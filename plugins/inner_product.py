"""Inner product manipulation: attackers send the mean of what the others learned, turned around.

Xie, Koyejo, Gupta, "Fall of empires: breaking Byzantine-tolerant SGD by inner product
manipulation", UAI 2019, Section 4.

    u_i - w <- -epsilon mean over the honest j of (u_j - w)

Attackers know what all clients of the stage would send (`upload` of the hook `encode`). With a
small epsilon they lie near the others, which deceives Krum and medians; an epsilon above the number
of honest clients over that of attackers turns a mean around. Where clients have several models,
the honest ones are those with the attacker's model, or all, if it has a model alone. A stage of
attackers only stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

import flbench as fl


@dataclass(frozen=True)
class InnerProduct:
    """Attackers send the mean of what the others learned, turned around."""

    paper: ClassVar[str] = "Xie, Koyejo, Gupta, UAI 2019"
    year: ClassVar[int] = 2019
    kind: ClassVar[str] = "client"
    across_networks: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"share": 0.0}})

    share: Annotated[
        float, Ge(0), Le(1), fl.only_with("attackers", ()), "share of the clients that attack"
    ] = 0.2
    epsilon: Annotated[float, Ge(0), "epsilon, length of the false update over the mean's"] = 0.5
    attackers: Annotated[
        tuple[int, ...], "ids of those who attack, whom a suite may leave unjudged; none = a share"
    ] = ()

    @fl.hookimpl
    def encode(
        self, state: fl.State, upload: fl.Upload, ctx: fl.Context
    ) -> Callable[[fl.Message], fl.Message]:
        """Attackers send -epsilon times the mean update of those who do not attack."""
        attackers = fl.attacks.attackers(ctx, self.share, self.attackers)
        honest = ~fl.attacks.flags(ctx, upload.ids, attackers)
        home, trained = state.membership.home, upload.selected()

        def turned(message: fl.Message) -> fl.Message:
            if message.client not in attackers or not honest.any():
                return message
            near = honest & (home[upload.ids] == home[message.client])
            others = trained[(near if near.any() else honest).to(trained.device)]
            mean = others.double().mean(dim=0).float() - message.start
            return message.sending(-self.epsilon * mean)

        return turned
