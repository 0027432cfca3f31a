"""Functions that split sample indices into shares, used by several partitions."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from flbench.core.dataset import Indices
from flbench.errors import UserError

BoolMatrix = npt.NDArray[np.bool_]
Order = Literal["shuffled", "natural", "domains"]


def divide_labels(
    labels: Indices, holders: BoolMatrix, rng: np.random.Generator
) -> tuple[Indices, ...]:
    """Cut the samples of each label into equal shards, one per holder of the label.

    Args:
        labels: label of each sample, shape (m,).
        holders: which client holds which label, shape (clients, labels).
        rng: source of randomness.

    Returns:
        The samples of each client, ascending; shards of a label differ in size by at most one.
    """
    owned: list[list[Indices]] = [[] for _ in holders]
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
                owned[owner].append(shard)
    return tuple(np.sort(np.concatenate(shards)).astype(np.int64) for shards in owned)


def dealt(pools: list[Indices], counts: Indices) -> tuple[Indices, ...]:
    """The samples of each client, ascending; no two clients have the same one.

    Args:
        pools: samples of each label.
        counts: how many of them each client gets, shape (N, C).
    """
    shards = [np.split(pool, k.cumsum())[:-1] for pool, k in zip(pools, counts.T, strict=True)]
    owned = zip(*shards, strict=True)  # from shards per label to shards per client
    return tuple(np.sort(np.concatenate(parts)) for parts in owned)


def split_off(
    labels: Indices, fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Split positions 0..n-1 into two parts, stratified by label.

    The second part gets the floor of each label's quota; the rest is filled by largest remainder,
    with ties broken at random. Both parts get at least one sample.

    Args:
        labels: the samples' labels, shape (n,), n >= 2.
        fraction: share of the second part.
        rng: source of randomness.

    Returns:
        Positions of the first and of the second part, ascending.
    """
    if fraction <= 0:
        return np.arange(len(labels)), np.arange(0)
    total = min(max(round(fraction * len(labels)), 1), len(labels) - 1)
    order = rng.permutation(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    quota = total * counts / len(labels)
    take = np.floor(quota + 1e-9).astype(np.int64)
    tie_break = rng.random(len(classes))
    largest_remainder = np.lexsort((tie_break, -np.round(quota - take, 9)))
    take[largest_remainder[: total - take.sum()]] += 1
    taken = np.concatenate(
        [order[labels[order] == c][:k] for c, k in zip(classes, take, strict=True)]
    )
    mask = np.zeros(len(labels), dtype=bool)
    mask[taken] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)
