"""Data sets derived from another data set: `rotated:NAME`, `label-swap:NAME` and `writers:NAME`.

The samples of the data set are divided among domains, at random with a fixed seed, for the first
two evenly among four. The test part stays the same; the data set's own domains are dropped. NAME
may itself have an argument, as in `rotated:npz:FILE`. What is derived from a part is named after
the part, as `rotated:digit-5[mnist,usps]`.

rotated (feature shift, as in IFCA: A. Ghosh et al., NeurIPS 2020): the images of domain k are
rotated by k times 90 degrees counter-clockwise.

label-swap (concept shift): in domain k pairs of labels whose distance is k are swapped: 0<->1,
2<->3, ... in domain 1; 0<->2, 1<->3, 4<->6, 5<->7, ... in domain 2; 0<->3, 1<->4, 2<->5, 6<->9, ...
in domain 3; labels without a partner stay the same. In domain 0 all labels stay the same.

writers (what natural federations such as FEMNIST of LEAF are like, without their files): each of 50
domains turns, slants and fades its images in a way of its own, and has a number of samples of its
own, so that the largest has some times as many as the smallest.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.errors import UserError
from flbench.federation.loading import load_dataset

DOMAINS = 4
WRITERS = 50

TITLES = {
    "rotated": "{}, rotated",
    "label-swap": "{}, labels swapped",
    "writers": "{} by made-up writers",
}
ABOUT = {
    name: DatasetInfo(
        source="computed from another data set",
        licence="its",
        fetch=f"--dataset {name}:digits",
        derived=True,
    )
    for name in ("rotated", "label-swap", "writers")
}


def rotated(root: Path, argument: str) -> Dataset:
    """Another data set in four domains, rotated by 0, 90, 180 and 270 degrees: rotated:digits."""
    pooled = load_dataset(argument, root)
    if pooled.x.ndim != 4 or pooled.x.shape[2] != pooled.x.shape[3]:
        shape = tuple(pooled.x.shape[1:])
        raise UserError(f"rotated:{argument} expects square images, got samples of shape {shape}")
    domains = random_domains(len(pooled.y))
    x = torch.empty_like(pooled.x)
    for domain in range(DOMAINS):
        x[domains == domain] = torch.rot90(pooled.x[domains == domain], domain, dims=(2, 3))
    return replace(pooled, name=f"rotated:{pooled.name}", x=x, domains=domains)


def label_swap(root: Path, argument: str) -> Dataset:
    """Another data set in four domains whose labels are swapped differently: label-swap:digits."""
    pooled = load_dataset(argument, root)
    if pooled.task != "classes":
        raise UserError(f"label-swap:{argument} expects classes, got {pooled.task}")
    if pooled.y.ndim != 1:
        shape = tuple(pooled.y.shape[1:])
        raise UserError(
            f"label-swap:{argument} expects one label a sample, got labels of shape {shape}"
        )
    if pooled.classes < DOMAINS:
        raise UserError(
            f"label-swap:{argument} expects at least {DOMAINS} labels, got {pooled.classes}"
        )
    domains = random_domains(len(pooled.y))
    tables = torch.stack([swapped(pooled.classes, domain) for domain in range(DOMAINS)])
    y = tables[domains, pooled.y]
    return replace(pooled, name=f"label-swap:{pooled.name}", y=y, domains=domains)


def writers(root: Path, argument: str) -> Dataset:
    """Another data set as 50 writers have written it: writers:digits."""
    pooled = load_dataset(argument, root)
    if pooled.x.ndim != 4:
        shape = tuple(pooled.x.shape[1:])
        raise UserError(f"writers:{argument} expects images, got samples of shape {shape}")
    if len(pooled.y) < 20 * WRITERS:
        raise UserError(
            f"writers:{argument} expects at least {20 * WRITERS} samples, got {len(pooled.y)}"
        )
    generator = np.random.default_rng(0)
    shares = np.exp(generator.normal(0, 0.4, WRITERS))
    drawn = generator.choice(WRITERS, len(pooled.y), p=shares / shares.sum())
    turn, slant = generator.normal(0, 0.25, (2, WRITERS))
    strength = np.exp(generator.normal(0, 0.25, WRITERS))
    rows = [np.cos(turn), slant - np.sin(turn), 0 * turn, np.sin(turn), np.cos(turn), 0 * turn]
    maps = torch.tensor(np.stack(rows, axis=1), dtype=torch.float32).view(WRITERS, 2, 3)
    domains = torch.as_tensor(drawn.astype(np.int64))
    x = torch.empty_like(pooled.x)
    for domain in range(WRITERS):
        own = pooled.x[domains == domain]
        grid = affine_grid(maps[domain].expand(len(own), 2, 3), list(own.shape), False)
        moved = grid_sample(own, grid, padding_mode="border", align_corners=False)
        x[domains == domain] = moved * float(strength[domain])
    return replace(pooled, name=f"writers:{pooled.name}", x=x, domains=domains)


def swapped(classes: int, distance: int) -> Tensor:
    """The new label of each label: pairs at this distance are swapped, the lowest first.

    >>> swapped(5, 1).tolist(), swapped(5, 2).tolist(), swapped(5, 0).tolist()
    ([1, 0, 3, 2, 4], [2, 3, 0, 1, 4], [0, 1, 2, 3, 4])
    """
    table = list(range(classes))
    for label in range(classes - distance):
        partner = label + distance
        if table[label] == label and table[partner] == partner:
            table[label], table[partner] = partner, label
    return torch.tensor(table)


def random_domains(samples: int) -> Tensor:
    """Domain of each sample, shape (m,): evenly divided, at random with a fixed seed."""
    return torch.as_tensor(np.random.default_rng(0).permutation(samples) % DOMAINS)
