"""A data set before anybody owns it, and a partition of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """A pooled data set; nobody's data yet.

    Attributes:
        name: the name it is asked for by.
        x: samples, shape (m, ...), float32 (or int64 tokens).
        y: labels, shape (m,), int64 in 0..classes-1; of text the next tokens, shape (m, T).
        classes: number of labels; of text the size of the vocabulary.
        domains: domain of each sample, shape (m,), int64, or None. A data set without domains
            may name another coarse grouping here (CIFAR-100: the superclass).
        test: which samples are the original's test part, shape (m,), bool, or None where the
            original has none.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: int
    domains: Tensor | None = None
    test: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """What samples are dealt and split by, shape (m,): the label; of text the domain."""
        if self.y.ndim == 1:
            return self.y
        return torch.zeros(len(self.y)).long() if self.domains is None else self.domains


@dataclass(frozen=True)
class DatasetInfo:
    """What a loader's module says of its data set, in a constant named ABOUT.

    Attributes:
        source: who made it and where it is described.
        licence: its licence, or the terms it is shared under.
        files: where the files lie under the data root; none = embedded or generated.
        samples: how many samples the whole has; 0 = depends on the files.
        fetch: what to type, or where to look, to get the files.
    """

    source: str
    licence: str
    files: tuple[str, ...] = ()
    samples: int = 0
    fetch: str = ""


@dataclass(frozen=True)
class Partition:
    """Which sample belongs to which client.

    Attributes:
        clients: N arrays, the sample indices of each client, shape (n_i,), int64.
        groups: true group of each client, shape (N,), int64, or None where there is none.
    """

    clients: tuple[Indices, ...]
    groups: Indices | None = None
