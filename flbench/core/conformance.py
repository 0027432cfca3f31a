"""Conformance: what the author of a method declares for the conformance kit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Conformance:
    """How the conformance kit runs a method: the class constant `conformance` of the method.

    Attributes:
        params: parameters with which every special step of the method happens within a few rounds
            of a very small federation.
        rounds: number of rounds that these steps need; at least 2.
        suite: fields of the small federation's suite to replace, as in `--set`:
            `{"local.momentum": 0.0}`.
        equals: other method -> parameters with which this method is equal to that one: models bit
            for bit, evaluated figures up to rounding.
        within: other method of `equals` -> how far the models may be apart, relative to the
            distance that they moved, and losses, in nats: for what sums in another order or in
            fixed point. A method that is not named must be equal bit for bit.
        fails: check -> reason why it is known to fail. The reason is shown; if the check passes,
            that is an error.

    Example:
        >>> Conformance(equals={"fedavg": {"mu": 0.0}}).rounds
        4
    """

    params: Mapping[str, object] = field(default_factory=dict)
    rounds: int = 4
    suite: Mapping[str, object] = field(default_factory=dict)
    equals: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    within: Mapping[str, float] = field(default_factory=dict)
    fails: Mapping[str, str] = field(default_factory=dict)
