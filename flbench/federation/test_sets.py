"""Test sets that clients share: who is tested on what, where a suite reserves a common test pool.

Samples are told apart by label, and by domain where there are domains: two samples of one label
and one domain are of one *kind*.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flbench.core.dataset import Dataset, Indices
from flbench.core.seeding import rng
from flbench.errors import UserError
from flbench.partitions.sharding import split_off


def kinds(dataset: Dataset) -> Indices:
    """The kind of each sample, shape (m,): its label and its domain as one number."""
    labels: Indices = dataset.labels.numpy()
    if dataset.domains is None:
        return labels
    domains: Indices = dataset.domains.numpy()
    return labels + (int(labels.max()) + 1) * domains


def test_pool(dataset: Dataset, fraction: float, seed: int) -> Indices:
    """Samples nobody trains on: the original's test part, else a share of each kind.

    Args:
        fraction: that share, where the original has no test part.

    Returns:
        Indices into the data set, ascending.
    """
    if dataset.test is not None:
        return np.flatnonzero(dataset.test.numpy())
    return split_off(kinds(dataset), fraction, rng(seed, "test-pool"))[1]


def by_labels(kind: Indices, pool: Indices, clients: Sequence[Indices]) -> list[Indices]:
    """Every client is tested on all samples of the pool of the kinds it trains on (FLIS).

    Test sets overlap, and their label proportions are the pool's, not the client's.

    Args:
        kind: kind of each sample of the data set, shape (m,).
        pool: indices of the test pool.
        clients: training samples of each client.

    Raises:
        UserError: the pool has nothing for some client.
    """
    of_kind = {int(one): pool[kind[pool] == one] for one in np.unique(kind[pool])}
    empty = np.arange(0)
    found = []
    for client, rows in enumerate(clients):
        parts = [of_kind.get(int(one), empty) for one in np.unique(kind[rows])]
        found.append(_some(np.sort(np.concatenate([empty, *parts])).astype(np.int64), client))
    return found


def proportional(
    kind: Indices, pool: Indices, clients: Sequence[Indices], samples: int, seed: int
) -> list[Indices]:
    """Every client is tested on `samples` of the pool, in its own label proportions (DC-PFL).

    Rounded by largest remainder; drawn without replacement for a client, independently for each;
    a kind of which the pool has fewer gives all it has.

    Raises:
        UserError: the pool has nothing for some client.
    """
    found = []
    for client, rows in enumerate(clients):
        generator = rng(seed, "test-set", client)
        held, counts = np.unique(kind[rows], return_counts=True)
        quota = samples * counts / counts.sum()
        take = np.floor(quota + 1e-9).astype(np.int64)
        neediest = np.argsort(-(quota - take), kind="stable")
        take[neediest[: samples - int(take.sum())]] += 1
        parts = [
            generator.permutation(pool[kind[pool] == one])[:wanted]
            for one, wanted in zip(held, take, strict=True)
        ]
        found.append(_some(np.sort(np.concatenate(parts)), client))
    return found


def _some(rows: Indices, client: int) -> Indices:
    if len(rows):
        return rows
    raise UserError(
        f"the test pool has no sample of client {client}'s labels: use another test_set or data set"
    )
