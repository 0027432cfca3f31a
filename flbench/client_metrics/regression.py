"""Metrics of one client's test samples where numbers are predicted: errors and R².

A factory gets the number of outputs k and returns a `torchmetrics.Metric` that is updated with
outputs and targets in deviations of all training targets, shape (b, k), or (b,) if k is 1. Of
several numbers, errors are over all of them and R² is the mean of each number's.

All of them follow from sums over samples, shape (..., 5, k): samples, squared errors, absolute
errors, targets, squared targets. So those of many clients are computed at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flbench.client_metrics.tasks import judges
from flbench.core import torchvision_compat as torchvision_compat

# isort: split
from torchmetrics.metric import Metric  # after torchvision_compat, which it needs here


def terms(outputs: Tensor, y: Tensor) -> Tensor:
    """What each of b samples adds to the sums, shape (b, 5, k), float64."""
    y = y.double().view(len(y), -1)
    error = outputs.double().view(y.shape) - y
    return torch.stack([torch.ones_like(y), error.square(), error.abs(), y, y.square()], dim=1)


def root_mean_square(sums: Tensor) -> Tensor:
    """Root of the mean squared error, shape (...)."""
    return (sums[..., 1, :].sum(dim=-1) / sums[..., 0, :].sum(dim=-1)).sqrt()


def mean_absolute(sums: Tensor) -> Tensor:
    """Mean of the absolute errors, shape (...)."""
    return sums[..., 2, :].sum(dim=-1) / sums[..., 0, :].sum(dim=-1)


def explained(sums: Tensor) -> Tensor:
    """1 - squared errors over the squares of targets about their mean, shape (...).

    The mean over the numbers whose targets are not all equal; NaN if those of all are.
    """
    count, squared, _, total, squares = sums.unbind(dim=-2)
    spread = squares - total.square() / count
    varies = spread > 1e-12 * squares
    each = torch.where(varies, 1 - squared / spread, 0)
    return each.sum(dim=-1) / varies.sum(dim=-1)


def of_clients(number: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The function that gives a number of sums for many clients at once."""

    def at_once(outputs: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        table = terms(outputs, y)
        sums = torch.segment_reduce(table, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)
        return number(sums)

    return at_once


@judges("numbers", of_clients(root_mean_square))
def rmse(outputs: int) -> Metric:
    """Root mean square error, in deviations of all training targets."""
    return Errors(outputs, root_mean_square)


@judges("numbers", of_clients(root_mean_square))
def common_rmse(outputs: int) -> Metric:
    """The same of the model that serves a client on the test samples of all clients."""
    return CommonErrors(outputs, root_mean_square)


@judges("numbers", of_clients(mean_absolute))
def mae(outputs: int) -> Metric:
    """Mean absolute error, in deviations of all training targets."""
    return Errors(outputs, mean_absolute)


@judges("numbers", of_clients(explained))
def r2(outputs: int) -> Metric:
    """R²: 1 - squared error over that of the client's own mean; undefined if its targets agree."""
    return Explained(outputs, explained)


class Errors(Metric):
    """Sums of errors and of targets, and the number that follows from them.

    Args:
        outputs: numbers of a sample, k.
        number: of sums, shape (5, k).
    """

    higher_is_better = False
    sums: Tensor

    def __init__(self, outputs: int, number: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.number = number
        self.add_state("sums", torch.zeros(5, outputs, dtype=torch.float64), "sum")

    def update(self, outputs: Tensor, y: Tensor) -> None:
        """Add samples."""
        self.sums += terms(outputs, y).sum(dim=0)

    def compute(self) -> Tensor:
        """The number."""
        return self.number(self.sums)


class CommonErrors(Errors):
    """The same, where each test sample of the federation counts once."""

    on_common_samples = True


class Explained(Errors):
    """Errors of which the number is high where they are low."""

    higher_is_better = True
