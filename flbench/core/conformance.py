"""Conformance: what a method's author declares to the conformance kit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Conformance:
    """What the conformance kit should know of a method: its class constant `conformance`.

    Attributes:
        params: parameters with which everything special about the method happens within a few
            rounds of a very small federation.
        rounds: number of rounds that this takes; at least 2.
        suite: fields of the small federation's suite that the method needs with another value.
        equals: other method -> parameters with which this method equals it: models bit for bit,
            evaluated numbers to rounding.
        fails: check -> why it is known to fail; shown, and an error once it passes.

    Example:
        >>> Conformance(equals={"fedavg": {"mu": 0.0}}).rounds
        4
    """

    params: Mapping[str, object] = field(default_factory=dict)
    rounds: int = 4
    suite: Mapping[str, object] = field(default_factory=dict)
    equals: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    fails: Mapping[str, str] = field(default_factory=dict)
