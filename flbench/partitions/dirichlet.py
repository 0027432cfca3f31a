"""The Dirichlet partition: label shares of a client are drawn from a Dirichlet distribution."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError


def dirichlet(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    alpha: Annotated[float, Gt(0), Le(1e6)] = 0.1,
    min_samples: Annotated[int, Ge(1)] = 10,
) -> Partition:
    """Dirichlet: each label is split by shares from Dir(alpha, ..., alpha) (FLIS, NIID-Bench).

    Labels are split one after the other; a client that already has an equal share of all samples
    gets nothing of the next label. The draw is repeated until every client has `min_samples`, at
    most 1000 times and less often for many clients; then the draw that lacked least is kept and
    random samples of the largest clients are given to those that lack some.

    Args:
        alpha: the smaller, the fewer clients share a label.
        min_samples: what every client gets at least.

    Raises:
        UserError: there are fewer than clients * min_samples samples.
    """
    if len(labels) < clients * min_samples:
        raise UserError(
            f"{len(labels)} samples cannot give {clients} clients {min_samples} each; use fewer"
            " clients or set min_samples"
        )
    classes, sizes = np.unique(labels, return_counts=True)
    tries = min(max(10_000_000 // (clients * len(classes)), 1), 1000)
    best, least = np.zeros((0, clients), dtype=np.int64), len(labels) + 1
    for _ in range(tries):
        counts = _shared_out(sizes, clients, alpha, rng)
        lacking = int(np.maximum(min_samples - counts.sum(axis=0), 0).sum())
        if lacking < least:
            best, least = counts, lacking
        if not least:
            break
    owner = np.empty(len(labels), dtype=np.int64)
    for label, row in zip(classes, best, strict=True):
        owner[rng.permutation(np.flatnonzero(labels == label))] = np.repeat(np.arange(clients), row)
    if least:
        _top_up(owner, clients, min_samples, rng)
    ends = np.bincount(owner, minlength=clients).cumsum()[:-1]
    return Partition(tuple(np.split(np.argsort(owner, kind="stable"), ends)))


def _shared_out(sizes: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """One draw: samples per label and client, shape (labels, clients)."""
    fair, total = sizes.sum() / clients, np.zeros(clients, dtype=np.int64)
    counts = np.empty((len(sizes), clients), dtype=np.int64)
    for row, size in enumerate(sizes):
        open_ = total < fair
        shares = np.where(open_, rng.dirichlet(np.full(clients, alpha)), 0)
        if not (shares.sum() > 0 and np.isfinite(shares).all()):
            # All the weight fell on clients that are full: the label goes to one that is not.
            shares = np.eye(1, clients, rng.choice(np.flatnonzero(open_)))[0]
        edges = shares.cumsum()
        # One offset for all cuts: a client gets its share rounded up or down, on average exactly.
        cuts = np.floor(edges / edges[-1] * size + rng.random()).astype(np.int64)
        counts[row] = np.diff(cuts, prepend=0)
        total += counts[row]
    return counts


def _top_up(owner: Indices, clients: int, least: int, rng: np.random.Generator) -> None:
    """Give random samples of the largest clients to those that have fewer than `least`."""
    sizes = np.bincount(owner, minlength=clients)
    need = np.maximum(least - sizes, 0)
    low, high = least, int(sizes.max())  # clients above a level give what is above it
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if _above(sizes, level).sum() >= need.sum() else (low, level - 1)
    gives = _above(sizes, low)
    spared = rng.permutation(np.flatnonzero(gives))[: gives.sum() - need.sum()]
    gives[spared] -= 1
    order = np.lexsort((rng.random(len(owner)), owner))  # by owner, at random within
    place = np.arange(len(owner)) - (sizes.cumsum() - sizes)[owner[order]]
    moved = rng.permutation(order[place < gives[owner[order]]])
    owner[moved] = np.repeat(np.arange(clients), need)


def _above(sizes: Indices, level: int) -> Indices:
    return np.maximum(sizes - level, 0)
