"""Compare the evaluated numbers of two runs to rounding.

Evaluation in another pass, with other samples in the batch or in another order, may change the
last bits: some matrix libraries choose their kernel by the shape of the batch. Trained models are
compared bit for bit instead, because a client's training batches do not depend on other clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flbench.results.difference import relative_distance
from flbench.run.history import Evaluation, History

ROUNDING = 1e-5
"""Allowed difference of mean losses in nats; above one nat, relative to the larger loss."""


def different_numbers(one: History, other: History) -> list[str]:
    """Names of the evaluated numbers of two runs that differ by more than rounding.

    Losses may differ by `ROUNDING`. In each round, one sample of the federation may be classified
    differently, because its logits may be equal. Groups are not compared, because their labels may
    differ.
    """
    first, second = one.last, other.last
    assert first is not None and second is not None, "the last round is evaluated"
    one_sample = 1 / (len(first.tested) * min(first.tested))
    limits = {"accuracy": one_sample + ROUNDING, "loss": ROUNDING}  # curves are rounded
    names = [
        name
        for name, limit in limits.items()
        if _largest_distance(one.curves[name], other.curves[name]) > limit
    ]
    for name in ("correct", "validation_correct"):
        pairs = zip(getattr(first, name), getattr(second, name), strict=True)
        if sum(abs(a - b) for a, b in pairs) > 1:
            names.append(f"clients' {name}")
    if _largest_distance(mean_losses(first), mean_losses(second)) > ROUNDING:
        names.append("clients' loss")
    return names


def mean_losses(evaluation: Evaluation) -> list[float]:
    """Mean loss of each client, in nats."""
    pairs = zip(evaluation.loss, evaluation.tested, strict=True)
    return [loss / tested for loss, tested in pairs]


def _largest_distance(one: Sequence[float | None], other: Iterable[float | None]) -> float:
    pairs = zip(one, other, strict=True)
    return max((relative_distance(a, b) for a, b in pairs), default=0.0)
