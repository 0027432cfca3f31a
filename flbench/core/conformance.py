"""Conformance: what a method's author tells the conformance kit about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Conformance:
    """What the conformance kit should know of a method: its class constant `conformance`.

    Attributes:
        params: parameters with which everything special about the method happens within a few
            rounds of a very small federation.
        rounds: rounds that takes; at least 2.
        suite: fields of the small federation's suite that it needs otherwise, `--set` style.
        equals: other method -> parameters with which this one is that one: its models bit for bit,
            what is evaluated to rounding.
        fails: law -> why it is known not to hold; shown, and an error once it holds.

    Example:
        >>> Conformance(equals={"fedavg": {"mu": 0.0}}).rounds
        4
    """

    params: Mapping[str, object] = field(default_factory=dict)
    rounds: int = 4
    suite: Mapping[str, object] = field(default_factory=dict)
    equals: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    fails: Mapping[str, str] = field(default_factory=dict)
