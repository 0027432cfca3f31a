"""Metrics of one client's test samples: F1, balanced accuracy, AUROC, calibration, top-k accuracy.

A factory gets the number of classes and its parameters, and returns a `torchmetrics.Metric` that is
updated with logits (b, C) and labels (b,). Many clients hold samples of few classes only; a class
that a client does not have does not enter its mean over classes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor

from flbench.client_metrics.torchmetrics_classes import MOST_ENTRIES
from flbench.core import torchvision_compat as torchvision_compat
from flbench.metrics import BINS, calibration_error

# isort: split
from torchmetrics.metric import Metric  # after torchvision_compat, which it needs here

Average = Literal["macro", "weighted"]
EDGE = 15.0
"""Log-odds beyond which probabilities share a bin; they are below 1e-6 or above 1 - 1e-6."""


def f1(classes: int, average: Literal["macro", "weighted", "micro"] = "macro") -> Metric:
    """F1 score, mean over the classes that the client has or that are predicted for it."""
    from torchmetrics.classification import MulticlassF1Score

    return MulticlassF1Score(classes, average=average)


def top_k(classes: int, k: Annotated[int, Ge(1), Le(10_000)] = 5) -> Metric:
    """Top-k accuracy: share of samples whose label is among the k largest logits."""
    if k > classes:
        raise ValueError(f"k is {k}, there are {classes} classes")
    return TopK(k)


def balanced_accuracy(classes: int) -> Metric:
    """Balanced accuracy: mean over the client's classes of the share found (recall)."""
    return BalancedAccuracy(classes)


def auroc(
    classes: int,
    average: Annotated[Average, "weights of classes: equal, or by their samples"] = "macro",
    bins: Annotated[
        int, Ge(4), Le(100_000), "bins of the log-odds, in which samples count as equal"
    ] = 200,
) -> Metric:
    """Area under the ROC curve, each class against the others; undefined for one class alone."""
    if (entries := 2 * classes * bins) > MOST_ENTRIES:
        raise ValueError(
            f"{entries:,} bins for {classes:,} labels, expected at most {MOST_ENTRIES:,}"
        )
    return AUROC(classes, average, bins)


def ece(
    classes: int, bins: Annotated[int, Ge(1), Le(1000), "equal parts of (0, 1]"] = BINS
) -> Metric:
    """Expected calibration error: mean gap between confidence and accuracy, weighted by bin."""
    return CalibrationError(bins)


class TopK(Metric):
    """Share of samples whose label is among the k largest logits."""

    higher_is_better = True
    found: Tensor
    tested: Tensor

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.add_state("found", torch.zeros((), dtype=torch.int64), "sum")
        self.add_state("tested", torch.zeros((), dtype=torch.int64), "sum")

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add samples."""
        best = logits.topk(self.k, dim=-1).indices
        self.found += (best == y[:, None]).sum()
        self.tested += len(y)

    def compute(self) -> Tensor:
        """The share."""
        return self.found.double() / self.tested


class BalancedAccuracy(Metric):
    """Mean of the recalls of the classes that occur."""

    higher_is_better = True
    found: Tensor
    tested: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.add_state("found", torch.zeros(classes, dtype=torch.int64), "sum")
        self.add_state("tested", torch.zeros(classes, dtype=torch.int64), "sum")

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add samples."""
        right = y[logits.argmax(dim=-1) == y]
        self.found += right.bincount(minlength=len(self.found))
        self.tested += y.bincount(minlength=len(self.tested))

    def compute(self) -> Tensor:
        """The mean."""
        there = self.tested > 0
        return (self.found[there].double() / self.tested[there]).mean()


class AUROC(Metric):
    """Probability that a sample of a class has higher log-odds for it than one of another class.

    Samples are counted per class and bin of the log-odds, so its size does not grow with them. Two
    samples of one bin count as equal: half right. The bins have equal widths in log-odds, because
    most probabilities of a trained network are near 0 or 1.
    """

    higher_is_better = True
    counts: Tensor
    edges: Tensor

    def __init__(self, classes: int, average: Average, bins: int) -> None:
        super().__init__()
        self.average = average
        self.register_buffer("edges", torch.linspace(-EDGE, EDGE, bins - 1), persistent=False)
        # other classes and the class itself, class, bin
        self.add_state("counts", torch.zeros(2, classes, bins, dtype=torch.int64), "sum")

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add samples."""
        _, classes, bins = self.counts.shape
        odds = logits.log_softmax(dim=-1).double()
        odds = odds - torch.log1p(-odds.exp())
        kind = torch.arange(classes, device=y.device)
        of_class = (y[:, None] == kind).long()
        places = (of_class * classes + kind) * bins + torch.bucketize(odds, self.edges.double())
        self.counts += places.flatten().bincount(minlength=2 * classes * bins).reshape(2, -1, bins)

    def compute(self) -> Tensor:
        """Mean over the classes that the samples have, and have others beside."""
        others, own = self.counts.double()
        below = others.cumsum(dim=1) - others / 2
        samples, rest = own.sum(dim=1), others.sum(dim=1)
        there = (samples > 0) & (rest > 0)
        areas = ((own * below).sum(dim=1) / (samples * rest))[there]
        weights = samples[there] if self.average == "weighted" else torch.ones_like(areas)
        mean: Tensor = (areas * weights).sum() / weights.sum()
        return mean


class CalibrationError(Metric):
    """Mean gap between confidence and accuracy, weighted by bin of confidence."""

    higher_is_better = False
    table: Tensor

    def __init__(self, bins: int) -> None:
        super().__init__()
        # per bin: number tested, sum of confidences, number correct
        self.add_state("table", torch.zeros(bins, 3, dtype=torch.float64), "sum")

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add samples."""
        confidence, predicted = logits.softmax(dim=-1).max(dim=-1)
        bins = len(self.table)
        bin_of = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)
        rows = [torch.ones_like(confidence), confidence, predicted == y]
        table = torch.stack([row.double() for row in rows], dim=1)
        self.table += F.one_hot(bin_of, bins).double().T @ table

    def compute(self) -> Tensor:
        """The error."""
        return torch.tensor(calibration_error(self.table.cpu().numpy()))
