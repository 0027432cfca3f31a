"""A data set before anybody owns it, and a partition of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """A pooled data set; nobody's data yet.

    Attributes:
        name: the name it is asked for by.
        x: samples, shape (m, ...), float32 (or int64 tokens).
        y: labels, shape (m,), int64 in 0..classes-1.
        classes: number of labels.
        domains: domain of each sample, shape (m,), int64, or None.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: int
    domains: Tensor | None = None


@dataclass(frozen=True)
class Partition:
    """Which sample belongs to which client.

    Attributes:
        clients: for each of the N clients its sample indices, int64.
        groups: true group of each client, shape (N,), int64, or None where there is none.
    """

    clients: tuple[Indices, ...]
    groups: Indices | None = None
