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

from flbench.core import torchvision_compat as torchvision_compat
from flbench.metrics import BINS, calibration_error

# isort: split
from torchmetrics.metric import Metric  # after torchvision_compat, which it needs here

Average = Literal["macro", "weighted"]


def f1(classes: int, average: Literal["macro", "weighted", "micro"] = "macro") -> Metric:
    """F1 score, mean over the classes that the client has or that are predicted for it."""
    from torchmetrics.classification import MulticlassF1Score

    return MulticlassF1Score(classes, average=average)


def top_k(classes: int, k: Annotated[int, Ge(1), Le(10_000)] = 5) -> Metric:
    """Top-k accuracy: share of samples whose label is among the k largest logits."""
    if k > classes:
        raise ValueError(f"k is {k}, there are {classes} classes")
    return TopK(k)


def common_accuracy(classes: int) -> Metric:
    """Accuracy of the model that serves a client on the test samples of all clients."""
    return CommonAccuracy()


def balanced_accuracy(classes: int) -> Metric:
    """Balanced accuracy: mean over the client's classes of the share found (recall)."""
    return BalancedAccuracy(classes)


def auroc(
    classes: int,
    average: Annotated[Average, "weights of classes: equal, or by their samples"] = "macro",
) -> Metric:
    """Area under the ROC curve, each class against the others; undefined for one class alone."""
    return AUROC(average)


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


class CommonAccuracy(Metric):
    """Share of right predictions; each test sample of the federation counts once.

    What is called global test accuracy where each client has a model of its own. A token without a
    label (-100) does not count.
    """

    higher_is_better = True
    on_common_samples = True
    found: Tensor
    tested: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("found", torch.zeros((), dtype=torch.int64), "sum")
        self.add_state("tested", torch.zeros((), dtype=torch.int64), "sum")

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add samples."""
        self.found += (logits.argmax(dim=-1) == y).sum()
        self.tested += (y != -100).sum()

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

    Two samples of equal log-odds are half right. It keeps the log-odds and labels of one client's
    samples, (m, C) and (m,), until it is reset: ranks are exact, and need all of them.
    """

    higher_is_better = True
    odds: list[Tensor]
    labels: list[Tensor]

    def __init__(self, average: Average) -> None:
        super().__init__()
        self.average = average
        self.add_state("odds", [], "cat")
        self.add_state("labels", [], "cat")

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add samples."""
        self.odds.append(log_odds(logits))
        self.labels.append(y)

    def compute(self) -> Tensor:
        """Mean over the classes that the samples have, and have others beside."""
        odds, labels = torch.cat(self.odds), torch.cat(self.labels)
        kinds, counts = labels.unique(return_counts=True)
        if len(kinds) == 1:
            return odds.new_full((), torch.nan)
        areas = torch.stack([area(odds[:, kind], labels == kind) for kind in kinds.tolist()])
        weights = counts.double() if self.average == "weighted" else torch.ones_like(areas)
        mean: Tensor = (areas * weights).sum() / weights.sum()
        return mean


def log_odds(logits: Tensor) -> Tensor:
    """Log p_c - log(1 - p_c) of every class, shape (b, C), float64; NaN counts as lowest.

    1 - p_c is the sum of the others' probabilities, so that probabilities near 1 stay different.
    """
    log_p = logits.double().log_softmax(dim=-1)
    best = log_p.argmax(dim=-1, keepdim=True)
    others = log_p.scatter(1, best, -torch.inf).logsumexp(dim=-1, keepdim=True)
    rest = torch.log1p(-log_p.exp()).scatter(1, best, others)  # only the best is above 1 / 2
    return (log_p - rest).nan_to_num(-torch.inf, torch.inf, -torch.inf)


def area(scores: Tensor, own: Tensor) -> Tensor:
    """Share of pairs of an own and another sample in order, ties half; scores and own: (m,)."""
    ours, others = scores[own], scores[~own].sort().values
    below, not_above = (torch.searchsorted(others, ours, right=right) for right in (False, True))
    return (below + not_above).sum().double() / (2 * len(ours) * len(others))


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
