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
    return Errors(outputs, "rmse")


@judges("numbers")
def common_rmse(outputs: int) -> Metric:
    """The same of the model that serves a client on the test samples of all clients."""
    return CommonErrors(outputs, "rmse")


@judges("numbers")
def mae(outputs: int) -> Metric:
    """Mean absolute error, in deviations of all training targets."""
    return Errors(outputs, "mae")


@judges("numbers")
def r2(outputs: int) -> Metric:
    """R²: 1 - squared error over that of the client's own mean; undefined if its targets agree."""
    return Errors(outputs, "r2")


class Errors(Metric):
    """Sums of errors and of targets, from which one number follows.

    Args:
        outputs: numbers of a sample, k.
        what: which number: rmse, mae or r2.
    """

    sums: Tensor

    def __init__(self, outputs: int, what: str) -> None:
        super().__init__()
        self.what = what
        self.higher_is_better = what == "r2"
        # per number: samples, squared errors, absolute errors, targets, squared targets
        self.add_state("sums", torch.zeros(5, outputs, dtype=torch.float64), "sum")

    def update(self, outputs: Tensor, y: Tensor) -> None:
        """Add samples."""
        y = y.double().view(len(y), -1)
        error = outputs.double().view(y.shape) - y
        rows = torch.ones_like(y), error.square(), error.abs(), y, y.square()
        self.sums += torch.stack([row.sum(dim=0) for row in rows])

    def compute(self) -> Tensor:
        """The number."""
        count, squared, absolute, total, squares = self.sums
        if self.what == "rmse":
            return (squared.sum() / count.sum()).sqrt()
        if self.what == "mae":
            return absolute.sum() / count.sum()
        spread = squares - total.square() / count
        constant = spread <= 1e-12 * squares
        each = torch.where(constant, torch.nan, 1 - squared / spread)
        return each[~constant].mean()


class CommonErrors(Errors):
    """The same, where each test sample of the federation counts once."""

    on_common_samples = True
