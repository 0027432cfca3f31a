"""Dataset, what is known about it, and a partition of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flbench.tasks import TaskName

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """All samples of a data set, before they are divided among clients.

    Attributes:
        name: the name, as in `--dataset`.
        x: samples, shape (m, ...), float32 (or int64 tokens).
        y: by task: `classes`, labels, shape (m,), int64 in 0..classes-1, for text the next tokens,
            shape (m, T); `numbers`, shape (m,) or (m, k), float32 and finite, in any unit;
            `labels`, 1 for each label that a sample has, else 0, shape (m, C), int64 or bool.
        classes: outputs of a network: number of classes, of numbers (k) or of labels (C); for text
            the size of the vocabulary.
        domains: domain of each sample, shape (m,), int64, or None. A data set without domains
            may give another coarse grouping here (CIFAR-100: the superclass).
        test: mask of the original test samples, shape (m,), bool, or None where the original has
            no test part.
        label_names, domain_names: what the numbers in `y` (of other tasks, its columns) and
            `domains` stand for; () = not said.
        features: the features of a table, each with its kind; () = not said.
        notes: what was left out or changed when it was read, and why; one sentence each.
        keeps_test: whether clients are tested on the test part, whole, also where a suite's
            `test_set` is 'own'; not set by data sets whose published splits mix it back in.
        gap: samples that are left out between training, validation and test, which are divided by
            time then; the samples of each domain are in order. None = they have no order.
        scaled: columns of `x`, shape (m, d), that are scaled to mean 0 and deviation 1 of the
            training samples, when these are known; NaN = missing, which becomes the mean.
        filled: columns of `x` in which NaN becomes that mean, and nothing is scaled.
        domain_groups: true group of each domain, shape (D,), int64, such as the treatment of a
            plot: that of the clients that hold one domain; None = not known.
        group_names: what the numbers in `domain_groups` stand for.
        task: what is predicted: one class of several, numbers, or any number of labels.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: int
    domains: Tensor | None = None
    test: Tensor | None = None
    label_names: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    keeps_test: bool = False
    gap: int | None = None
    scaled: tuple[int, ...] = ()
    filled: tuple[int, ...] = ()
    domain_groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    task: TaskName = "classes"

    @property
    def labels(self) -> Tensor:
        """Strata of partitions and splits, shape (m,): classes, or where there are none domains."""
        if self.y.ndim == 1 and self.task == "classes":
            return self.y
        return torch.zeros(len(self.y)).long() if self.domains is None else self.domains


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set; a loader's module gives them in a constant named ABOUT.

    Attributes:
        source: the authors and where the data set is described.
        licence: its licence, or the terms under which it is shared.
        files: paths of the files under the data root; empty = embedded or generated.
        samples: number of samples of the complete data set; 0 = depends on the files.
        fetch: the command that gets the files, or where to find them.
        derived: its argument is the name of another data set, not of files.
    """

    source: str
    licence: str
    files: tuple[str, ...] = ()
    samples: int = 0
    fetch: str = ""
    derived: bool = False


@dataclass(frozen=True)
class Partition:
    """The samples of each client.

    Attributes:
        clients: N arrays, the sample indices of each client, shape (n_i,), int64.
        groups: true group of each client, shape (N,), int64, or None without true groups.
    """

    clients: tuple[Indices, ...]
    groups: Indices | None = None
