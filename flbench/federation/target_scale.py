"""The scale of numbers that are predicted: mean and deviation of all training targets.

Clients learn numbers in deviations from the mean, so that a learning rate means the same in every
unit; errors are reported in deviations too. The server finds both from what each client sends: the
sum and the sum of squares of its training targets (`SCALARS` of each number). The ledger counts
them, and the mean and deviation that every client receives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset, Indices
from flbench.errors import UserError
from flbench.metrics import Floats

SUMS, SCALE = "target sums", "target scale"
"""Items of the ledger: what goes up, and what comes down."""
SCALARS = 2
"""Scalars of each number that is predicted, each way."""


@dataclass(frozen=True)
class TargetScale:
    """Mean and deviation (ddof = 0) of all training targets, shape (k,) each, float64."""

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, dataset: Dataset, rows: Indices) -> TargetScale:
        """The scale of the targets of some samples.

        Raises:
            UserError: all of them have the same.
        """
        y = as_table(dataset)[torch.as_tensor(rows)].double().numpy()
        mean, deviation = y.mean(axis=0), y.std(axis=0)
        constant = np.flatnonzero(deviation <= 1e-12 * np.abs(y).max(axis=0))
        if len(constant):
            name = dataset.label_names[constant[0]] if dataset.label_names else str(constant[0])
            raise UserError(
                f"{dataset.name}: target '{name}' is {mean[constant[0]]:g} for all training samples"
                " of the clients: expected two values or more"
            )
        return cls(mean, deviation)

    def applied(self, y: Tensor) -> Tensor:
        """Numbers, shape (m, k), in deviations from the mean, float32."""
        mean, deviation = torch.from_numpy(self.mean), torch.from_numpy(self.deviation)
        return ((y.double() - mean) / deviation).float()


def as_table(dataset: Dataset) -> Tensor:
    """The numbers of a data set, shape (m, k)."""
    return dataset.y[:, None] if dataset.y.ndim == 1 else dataset.y


def prepared(dataset: Dataset, rows: Indices) -> tuple[Dataset, TargetScale | None]:
    """A data set with targets as a run has them (`core.targets`), and the scale of numbers.

    Args:
        dataset: all samples.
        rows: on which clients train, from which the scale comes.
    """
    if dataset.task == "classes":
        return dataset, None
    if dataset.task == "labels":
        return replace(dataset, y=dataset.y.to(torch.int8)), None
    scale = TargetScale.of(dataset, rows)
    return replace(dataset, y=scale.applied(as_table(dataset))), scale
