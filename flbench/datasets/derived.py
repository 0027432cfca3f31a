"""Doors to another data set, changed: `rotated:NAME` and `label-swap:NAME`.

The samples of the data set are dealt to four domains, evenly and at random with a fixed seed;
which samples are its test part stays; domains of its own are forgotten. NAME may be a door too,
as in `rotated:npz:FILE`.

rotated (feature shift, as in IFCA: A. Ghosh et al., NeurIPS 2020): the images of domain k are
turned by k times 90 degrees counter-clockwise.

label-swap (concept shift): in domain k labels trade places in pairs k apart: 0<->1, 2<->3, ... in
domain 1; 0<->2, 1<->3, 4<->6, 5<->7, ... in domain 2; 0<->3, 1<->4, 2<->5, 6<->9, ... in
domain 3; labels without a partner stay. In domain 0 all stay.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.errors import UserError
from flbench.federation.loading import load_dataset

DOMAINS = 4


ABOUT = {
    "rotated": DatasetInfo(
        source="computed from another data set", licence="its", fetch="--dataset rotated:digits"
    ),
    "label-swap": DatasetInfo(
        source="computed from another data set", licence="its", fetch="--dataset label-swap:digits"
    ),
}


def rotated(root: Path, argument: str) -> Dataset:
    """Another data set in four domains, turned by 0, 90, 180 and 270 degrees: rotated:digits.

    Raises:
        UserError: its samples are no square images.
    """
    pooled = load_dataset(argument, root)
    if pooled.x.ndim != 4 or pooled.x.shape[2] != pooled.x.shape[3]:
        shape = tuple(pooled.x.shape[1:])
        raise UserError(f"rotated:{argument} expects square images, got samples of shape {shape}")
    domains = dealt(len(pooled.y))
    x = torch.empty_like(pooled.x)
    for domain in range(DOMAINS):
        x[domains == domain] = torch.rot90(pooled.x[domains == domain], domain, dims=(2, 3))
    return replace(pooled, name=f"rotated:{argument}", x=x, domains=domains)


def label_swap(root: Path, argument: str) -> Dataset:
    """Another data set in four domains that disagree about labels: label-swap:digits.

    Raises:
        UserError: it has fewer than four labels.
    """
    pooled = load_dataset(argument, root)
    if pooled.classes < DOMAINS:
        raise UserError(
            f"label-swap:{argument} expects at least {DOMAINS} labels, got {pooled.classes}"
        )
    domains = dealt(len(pooled.y))
    tables = torch.stack([swapped(pooled.classes, domain) for domain in range(DOMAINS)])
    y = tables[domains, pooled.y]
    return replace(pooled, name=f"label-swap:{argument}", y=y, domains=domains)


def swapped(classes: int, apart: int) -> Tensor:
    """The label that each label becomes; those `apart` trade places, the lowest first.

    >>> swapped(5, 1).tolist(), swapped(5, 2).tolist(), swapped(5, 0).tolist()
    ([1, 0, 3, 2, 4], [2, 3, 0, 1, 4], [0, 1, 2, 3, 4])
    """
    table = list(range(classes))
    for label in range(classes - apart):
        if table[label] == label and table[label + apart] == label + apart:
            table[label], table[label + apart] = label + apart, label
    return torch.tensor(table)


def dealt(samples: int) -> Tensor:
    """Domain of each sample, evenly and at random, the same each time."""
    return torch.as_tensor(np.random.default_rng(0).permutation(samples) % DOMAINS)
