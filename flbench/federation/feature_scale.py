"""The scale of features that are measured: mean and deviation of what clients train on.

Which columns they are says the data set (`Dataset.scaled`). They are scaled when it is divided, by
the training samples of the clients that train: no sample that is tested has a part in it, and none
of a newcomer. The server finds mean and deviation of a column from what each client sends, the
number of its known values, their sum and the sum of their squares; the ledger counts them, and the
mean and deviation that every client receives. Columns that only have gaps (`Dataset.filled`) need
no squares and no deviation.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset, Indices

SUMS, SCALE = "feature sums", "feature scale"
"""Items of the ledger: what goes up, and what comes down."""
SCALARS = {SUMS: (3, 2), SCALE: (2, 1)}
"""Scalars of each column that is scaled, and of each that is filled only."""
ROUNDING = 1e-12
"""A deviation below this share of the largest value comes from rounding."""


def scaled(dataset: Dataset, train: Indices) -> Tensor:
    """The samples, with columns scaled to mean 0 and deviation 1 of some of them, shape (m, d).

    What is missing (NaN) becomes the mean; a column that is constant there is centred only.

    Args:
        dataset: says which columns are scaled or filled (`Dataset.scaled`, `Dataset.filled`).
        train: samples that mean and deviation are of: those that clients train on.
    """
    columns = [*dataset.scaled, *dataset.filled]
    if not columns:
        return dataset.x
    x = dataset.x.clone()
    values = x[:, columns].double().numpy()
    known = np.ma.masked_invalid(values[train])
    mean, deviation = (known.mean(axis=0).filled(0.0), known.std(axis=0).filled(0.0))
    least = ROUNDING * np.abs(known).max(axis=0).filled(0.0)
    found = np.nan_to_num((values - mean) / np.where(deviation <= least, 1.0, deviation))
    only = slice(len(dataset.scaled), None)
    found[:, only] = np.where(np.isnan(values[:, only]), mean[only], values[:, only])
    x[:, columns] = torch.from_numpy(found).float()
    return x


def scalars(item: str, dataset: Dataset) -> int:
    """Scalars that a client sends or receives of an item, `SUMS` or `SCALE`, for all columns."""
    of_scaled, of_filled = SCALARS[item]
    return of_scaled * len(dataset.scaled) + of_filled * len(dataset.filled)
