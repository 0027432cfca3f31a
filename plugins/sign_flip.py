"""Sign flip: some clients send the opposite of what they learned.

Li, Xu, Chen, Giannakis, Ling, "RSA: Byzantine-robust stochastic aggregation methods for distributed
learning from heterogeneous datasets", AAAI 2019, Section 5 (sign-flipping attack).

    u_i - w <- -scale (u_i - w) for the attackers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

import flbench as fl


@dataclass(frozen=True)
class SignFlip:
    """Some clients send the opposite of what they learned."""

    paper: ClassVar[str] = "Li, Xu, Chen, Giannakis, Ling, AAAI 2019"
    year: ClassVar[int] = 2019
    kind: ClassVar[str] = "client"
    across_networks: ClassVar[bool] = True

    share: Annotated[
        float, Ge(0), Le(1), fl.only_with("attackers", ()), "share of the clients that attack"
    ] = 0.2
    scale: Annotated[float, Ge(0), "length of the false update over that of the true one"] = 1.0
    attackers: Annotated[
        tuple[int, ...], "ids of those who attack, whom a suite may leave unjudged; none = a share"
    ] = ()

    @fl.hookimpl
    def encode(self, ctx: fl.Context) -> Callable[[fl.Message], fl.Message]:
        """Attackers turn their updates around; a share of the clients is drawn once per seed."""
        attackers = fl.attacks.attackers(ctx, self.share, self.attackers)

        def flipped(message: fl.Message) -> fl.Message:
            if message.client not in attackers:
                return message
            return message.sending(-self.scale * message.update)

        return flipped
