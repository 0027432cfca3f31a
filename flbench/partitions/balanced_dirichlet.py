"""The balanced Dirichlet partition: clients of one size, each with label shares of its own."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from flbench.core.dataset import Indices, Partition
from flbench.metrics import Floats
from flbench.partitions.dirichlet import refuse_too_few
from flbench.partitions.sharding import dealt
from flbench.partitions.shares import log_shares, normalised


def balanced_dirichlet(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    alpha: Annotated[float, Gt(0), Le(1e6)] = 0.3,
) -> Partition:
    """Balanced Dirichlet: clients of equal size, label shares of each from Dir(alpha) (FedDyn).

    Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, "Federated learning based on dynamic
    regularization", ICLR 2021, and FedLab's client-wise Dirichlet: each client draws its shares of
    the labels, and then the label of each of its samples by these shares. Every sample is dealt,
    sizes differ by at most one. A client that draws a label of which none is left draws again among
    the labels that are left; whose draws come first is random.

    Departure: the draws of all clients are made together, not one sample after the other.

    Args:
        alpha: concentration; the smaller, the fewer labels a client holds.
    """
    refuse_too_few(len(labels), clients, 1)
    classes, supply = np.unique(labels, return_counts=True)
    sizes = np.full(clients, len(labels) // clients)
    sizes[rng.permutation(clients)[: len(labels) % clients]] += 1
    counts = drawn_counts(log_shares(alpha, (clients, len(classes)), rng), sizes, supply, rng)
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in classes]
    return Partition(dealt(pools, counts))


def drawn_counts(
    logs: Floats, sizes: Indices, supply: Indices, rng: np.random.Generator
) -> Indices:
    """Draw the labels of each client's samples from what there is of each, shape (N, C).

    Each pass uses up a label or is the last one.

    Args:
        logs: logarithms of each client's shares, shape (N, C).
        sizes: samples of each client, shape (N,), of the same sum as `supply`.
        supply: samples of each label, shape (C,).
    """
    counts = np.zeros(logs.shape, dtype=np.int64)
    owed, left = sizes.copy(), supply.copy()
    while owed.any():
        there = np.flatnonzero(left)
        drawn = rng.multinomial(owed, normalised(logs[:, there]))
        for place, label in enumerate(there):
            if drawn[:, place].sum() > left[label]:  # any of those who drew it may have it
                wanted = drawn[:, place]
                drawn[:, place] = rng.multivariate_hypergeometric(wanted, left[label])
        counts[:, there] += drawn
        owed -= drawn.sum(axis=1)
        left[there] -= drawn.sum(axis=0)
    return counts
