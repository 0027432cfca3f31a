"""What is evaluated, compared to rounding.

A model that is evaluated in another pass, beside other samples or in another order, may give other
last bits: some matrix libraries pick their kernel by the shape of the pass. What is trained is
compared to the bit, because a client's batches are the same in any company.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flbench.run.history import Evaluation, History
from flbench.submission.comparison import apart

ROUNDING = 1e-5
"""How far mean losses may be apart in nats; above one nat, relative to the larger one."""


def unlike(one: History, other: History) -> list[str]:
    """Names of evaluated figures of two runs that differ by more than rounding.

    Losses may differ by `ROUNDING`. In each round one sample of the federation may be classified
    otherwise, where its logits tie. Groups are not compared: their labels may differ.
    """
    mine, its = one.last, other.last
    assert mine is not None and its is not None, "the last round is evaluated"
    sample = 1 / (len(mine.judged) * min(mine.judged))
    limits = {"accuracy": sample + ROUNDING, "loss": ROUNDING}  # curves are rounded
    odd = [
        name for name, limit in limits.items() if _far(one.curves[name], other.curves[name]) > limit
    ]
    for name in ("correct", "validation_correct"):
        pairs = zip(getattr(mine, name), getattr(its, name), strict=True)
        if sum(abs(a - b) for a, b in pairs) > 1:
            odd.append(f"clients' {name}")
    return odd + (["clients' loss"] if _far(_means(mine), _means(its)) > ROUNDING else [])


def _means(evaluation: Evaluation) -> list[float]:
    """Mean loss of each client, in nats."""
    pairs = zip(evaluation.loss, evaluation.judged, strict=True)
    return [loss / judged for loss, judged in pairs]


def _far(one: Sequence[float | None], other: Iterable[float | None]) -> float:
    """The largest distance of two lists."""
    return max((apart(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
