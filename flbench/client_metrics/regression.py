"""Metrics of one client's test samples where numbers are predicted: errors and R².

A factory gets the number of outputs k and returns a `torchmetrics.Metric` that is updated with
outputs and targets in deviations of all training targets, shape (b, k), or (b,) if k is 1. Of
several numbers, errors are over all of them and R² is the mean of each number's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flbench.client_metrics.tasks import judges
from flbench.core import torchvision_compat as torchvision_compat

# isort: split
from torchmetrics.metric import Metric  # after torchvision_compat, which it needs here


@judges("numbers")
def rmse(outputs: int) -> Metric:
    """Root mean square error, in deviations of all training targets."""
    return RootMeanSquare(outputs)


@judges("numbers")
def common_rmse(outputs: int) -> Metric:
    """The same of the model that serves a client on the test samples of all clients."""
    return CommonRootMeanSquare(outputs)


@judges("numbers")
def mae(outputs: int) -> Metric:
    """Mean absolute error, in deviations of all training targets."""
    return MeanAbsolute(outputs)


@judges("numbers")
def r2(outputs: int) -> Metric:
    """R²: 1 - squared error over that of the client's own mean; undefined if its targets agree."""
    return Explained(outputs)


class Errors(Metric):
    """Sums of errors and of targets, from which one number follows; `outputs` is k."""

    higher_is_better = False
    sums: Tensor

    def __init__(self, outputs: int) -> None:
        super().__init__()
        # per number: samples, squared errors, absolute errors, targets, squared targets
        self.add_state("sums", torch.zeros(5, outputs, dtype=torch.float64), "sum")

    def update(self, outputs: Tensor, y: Tensor) -> None:
        """Add samples."""
        y = y.double().view(len(y), -1)
        error = outputs.double().view(y.shape) - y
        rows = torch.ones_like(y), error.square(), error.abs(), y, y.square()
        self.sums += torch.stack([row.sum(dim=0) for row in rows])


class RootMeanSquare(Errors):
    """Root of the mean squared error."""

    def compute(self) -> Tensor:
        """The error."""
        return (self.sums[1].sum() / self.sums[0].sum()).sqrt()


class CommonRootMeanSquare(RootMeanSquare):
    """Root of the mean squared error, where each test sample of the federation counts once."""

    on_common_samples = True


class MeanAbsolute(Errors):
    """Mean of the absolute errors."""

    def compute(self) -> Tensor:
        """The error."""
        return self.sums[2].sum() / self.sums[0].sum()


class Explained(Errors):
    """Share of the squares of targets about their mean that errors do not have."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """The mean over the numbers whose targets are not all equal; NaN if those of all are."""
        count, squared, _, total, squares = self.sums
        spread = squares - total.square() / count
        varies = spread > 1e-12 * squares
        return (1 - squared / spread)[varies].mean()
