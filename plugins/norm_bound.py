"""Norm bounding: the server shortens updates that are longer than a bound.

Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?", 2019, Section 4 (norm
thresholding of updates).

    u_i - w <- (u_i - w) / max(1, |u_i - w|_2 / M)

The server knows the model that a client started from, so it shortens what arrives, after all that
clients make of it, wherever the method is named: then any mean or defence follows. A large M is
the method without it. Not included is the paper's further defence, Gaussian noise (see dp-fedavg).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt

import flbench as fl


@dataclass(frozen=True)
class NormBound:
    """The server shortens updates that are longer than a bound."""

    paper: ClassVar[str] = "Sun, Kairouz, Suresh, McMahan, arXiv 1911.07963"
    year: ClassVar[int] = 2019
    kind: ClassVar[str] = "server"
    across_networks: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"bound": 1e9}})

    bound: Annotated[float, Gt(0), "M, the largest norm of an update"] = 1.0

    @fl.hookimpl(tryfirst=True)  # the functions of `encode` are applied in the reverse order
    def encode(self) -> Callable[[fl.Message], fl.Message]:
        """Shorten what is too long; the rest arrives as it was sent."""

        def bounded(message: fl.Message) -> fl.Message:
            update = message.update
            norm = float(update.double().norm())
            return message if norm <= self.bound else message.sending(update * (self.bound / norm))

        return bounded
