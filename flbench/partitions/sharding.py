"""Split sample indices into shares: what the partitions have in common."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from flbench.core.dataset import Indices
from flbench.errors import UserError

BoolMatrix = npt.NDArray[np.bool_]


Order = Literal["shuffled", "natural", "domains"]


def deal(labels: Indices, holders: BoolMatrix, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Cut each label into equal shards, one per holder; shard sizes differ by at most one."""
    dealt: list[list[Indices]] = [[] for _ in holders]
    for column, label in enumerate(np.unique(labels)):
        owners = np.flatnonzero(holders[:, column])
        samples = rng.permutation(np.flatnonzero(labels == label))
        if 0 < len(samples) < len(owners):
            raise UserError(
                f"label {label} has {len(samples)} samples for {len(owners)} clients: expected at"
                " least one each; use fewer clients"
            )
        if len(owners):
            for owner, shard in zip(owners, np.array_split(samples, len(owners)), strict=True):
                dealt[owner].append(shard)
    return tuple(np.sort(np.concatenate(parts)).astype(np.int64) for parts in dealt)


def split_off(
    labels: Indices, fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Split positions 0..n-1 in two, stratified by label.

    Every label gives the floor of its quota; the rest is drawn by largest remainder, ties at
    random, so a label with one sample goes either way. Both parts get at least one sample.

    Args:
        labels: the samples' labels, shape (n,), n >= 2.
        fraction: share of the part taken off.

    Returns:
        Positions kept and positions taken, ascending.
    """
    if fraction <= 0:
        return np.arange(len(labels)), np.arange(0)
    total = min(max(round(fraction * len(labels)), 1), len(labels) - 1)
    order = rng.permutation(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    quota = total * counts / len(labels)
    take = np.floor(quota + 1e-9).astype(np.int64)
    lot = rng.random(len(classes))
    neediest = np.lexsort((lot, -np.round(quota - take, 9)))
    take[neediest[: total - take.sum()]] += 1
    taken = np.concatenate(
        [order[labels[order] == c][:k] for c, k in zip(classes, take, strict=True)]
    )
    mask = np.zeros(len(labels), dtype=bool)
    mask[taken] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)
