"""Metrics of one client's test samples that have any number of labels: mean average precision, F1.

A factory gets the number of labels C and returns a `torchmetrics.Metric` that is updated with
probabilities and labels, shape (b, C), 0 or 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flbench.client_metrics.tasks import judges
from flbench.core import torchvision_compat as torchvision_compat

# isort: split
from torchmetrics.metric import Metric  # after torchvision_compat, which it needs here


def precisions_of_clients(p: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
    """Mean average precision of each client, shape (n,); arguments as `client_metrics.tasks`."""
    sizes = lengths.tolist()
    pairs = zip(p.split(sizes), y.split(sizes), strict=True)
    return torch.stack([mean_of_labels(average_precisions(*pair)) for pair in pairs])


def f1_of_clients(p: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
    """F1 of all labels together of each client, shape (n,); arguments as `client_metrics.tasks`."""
    predicted = (p > 0.5).long()
    rows = torch.stack([(predicted * y).sum(dim=1), (predicted + y).sum(dim=1)], dim=1).double()
    sums = torch.segment_reduce(rows, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)
    found = (2 * sums[:, 0] / sums[:, 1]).nan_to_num(0.0)  # as torchmetrics says of none at all
    return torch.where(lengths > 0, found, torch.nan)


@judges("labels", precisions_of_clients)
def mean_average_precision(labels: int) -> Metric:
    """Mean average precision over the labels that a sample of the client has."""
    return MeanAveragePrecision()


@judges("labels", precisions_of_clients)
def common_map(labels: int) -> Metric:
    """The same of the model that serves a client on the test samples of all clients."""
    return CommonAveragePrecision()


@judges("labels", f1_of_clients)
def micro_f1(labels: int) -> Metric:
    """F1 score of all labels together, where those above a probability of 1 / 2 are predicted."""
    from torchmetrics.classification import MultilabelF1Score

    return MultilabelF1Score(labels, average="micro", validate_args=False)


class MeanAveragePrecision(Metric):
    """Mean over labels of the precision at each sample that has it, in the order of probability.

    Samples of equal probability have the precision of all of them. It keeps the probabilities and
    labels of one client's samples until it is reset: ranks are exact, and need all of them.
    """

    higher_is_better = True
    probabilities: list[Tensor]
    labels: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("probabilities", [], "cat")
        self.add_state("labels", [], "cat")

    def update(self, probabilities: Tensor, y: Tensor) -> None:
        """Add samples."""
        self.probabilities.append(probabilities)
        self.labels.append(y)

    def compute(self) -> Tensor:
        """The mean over the labels that a sample has; NaN if no sample has one."""
        found = average_precisions(torch.cat(self.probabilities), torch.cat(self.labels))
        return mean_of_labels(found)


def mean_of_labels(precisions: Tensor) -> Tensor:
    """Mean over the labels that a sample has, a scalar; NaN if no sample has one."""
    return precisions[~precisions.isnan()].mean()


class CommonAveragePrecision(MeanAveragePrecision):
    """Mean average precision, where each test sample of the federation counts once."""

    on_common_samples = True


def average_precisions(scores: Tensor, y: Tensor) -> Tensor:
    """Average precision of each label, shape (C,), float64; NaN = no sample has it.

    Args:
        scores: a higher one says that a sample has a label, shape (m, C).
        y: whether it has, shape (m, C).

    Example:
        >>> average_precisions(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [1]]))
        tensor([0.8333], dtype=torch.float64)
    """
    if not len(y):
        return scores.new_full(y.shape[1:], torch.nan, dtype=torch.float64)
    ordered, order = scores.sort(dim=0, descending=True)
    hits = y.gather(0, order).double()
    last = torch.ones_like(hits, dtype=torch.bool)
    last[:-1] = ordered[:-1] != ordered[1:]
    rank = torch.arange(1, len(y) + 1, device=y.device)[:, None].expand_as(hits)
    ends = torch.where(last, rank, len(y)).flip(0).cummin(dim=0).values.flip(0)
    precision = hits.cumsum(dim=0).gather(0, ends - 1) / ends
    return (hits * precision).sum(dim=0) / hits.sum(dim=0)
