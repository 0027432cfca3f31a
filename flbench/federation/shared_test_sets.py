"""Test sets drawn from a common test pool, which no client trains on.

Two samples are of one *kind* if they have the same label and, in a data set with domains, the same
domain. Below, `kind` holds the kind of each sample of the data set, shape (m,), `pool` the indices
of the test pool, and `clients` the samples of each client.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flbench.core.dataset import Dataset, Indices
from flbench.core.seeding import rng
from flbench.errors import UserError
from flbench.partitions.sharding import split_off


def kinds(dataset: Dataset) -> Indices:
    """The kind of each sample, shape (m,), int64: its label and its domain as one number."""
    labels: Indices = dataset.labels.numpy()
    if dataset.domains is None:
        return labels
    domains: Indices = dataset.domains.numpy()
    return labels + (int(labels.max()) + 1) * domains


def test_pool(dataset: Dataset, fraction: float, seed: int, sizes: Sequence[int]) -> Indices:
    """The common test pool, ascending: the original test part, else a fraction of each kind.

    Args:
        sizes: samples of each domain instead, stratified by label; empty = the fraction.

    Raises:
        UserError: the data set has a test part, other domains or too few samples for these sizes.
    """
    if sizes:
        return _of_domains(dataset, sizes, seed)
    if dataset.test is not None:
        return np.flatnonzero(dataset.test.numpy())
    return split_off(kinds(dataset), fraction, rng(seed, "test-pool"))[1]


def _of_domains(dataset: Dataset, sizes: Sequence[int], seed: int) -> Indices:
    """So many samples of each domain, ascending."""
    if dataset.test is not None:
        raise UserError(f"test_sizes: none expected, as {dataset.name} has a test part")
    labels = dataset.labels.numpy()
    domains = np.zeros_like(labels) if dataset.domains is None else dataset.domains.numpy()
    there = np.bincount(domains)
    if len(there) != len(sizes):
        raise UserError(
            f"test_sizes: {len(there)} numbers expected, one for each domain of {dataset.name},"
            f" got {len(sizes)}"
        )
    parts = []
    for domain, (size, samples) in enumerate(zip(sizes, there.tolist(), strict=True)):
        if size >= samples:
            raise UserError(
                f"test_sizes: less than {samples} expected for domain {domain} of {dataset.name},"
                f" got {size}"
            )
        rows = np.flatnonzero(domains == domain)
        generator = rng(seed, "test-pool", domain)
        parts.append(rows[split_off(labels[rows], size / samples, generator)[1]])
    return np.sort(np.concatenate(parts))


def by_labels(kind: Indices, pool: Indices, clients: Sequence[Indices]) -> list[Indices]:
    """The test set of a client: all samples of the pool of the kinds that it holds (FLIS).

    Test sets overlap, and their label proportions are those of the pool, not of the client.

    Raises:
        UserError: the pool has no sample for some client.
    """
    pool_of_kind = {int(k): pool[kind[pool] == k] for k in np.unique(kind[pool])}
    empty = np.arange(0)
    tests = []
    for client, rows in enumerate(clients):
        parts = [pool_of_kind.get(int(k), empty) for k in np.unique(kind[rows])]
        test = np.sort(np.concatenate([empty, *parts])).astype(np.int64)
        tests.append(_not_empty(test, client))
    return tests


def whole(
    kind: Indices, domain: Indices, pool: Indices, clients: Sequence[Indices]
) -> list[Indices]:
    """As `by_labels`, and samples of kinds that nobody trains on go to all clients of their domain.

    So no sample of a person's test part is left out, but those of domains that do not take part.

    Raises:
        UserError: the pool has no sample for some client.
    """
    is_new = ~np.isin(kind[pool], kind[np.concatenate(clients)])
    tests = []
    for client, rows in enumerate(clients):
        own = np.isin(kind[pool], kind[rows]), np.isin(domain[pool], domain[rows])
        tests.append(_not_empty(pool[np.where(is_new, own[1], own[0])], client))
    return tests


def proportional(
    kind: Indices, pool: Indices, clients: Sequence[Indices], samples: int, seed: int
) -> list[Indices]:
    """The test set of a client: `samples` of the pool, in the client's label proportions (DC-PFL).

    Counts are rounded by largest remainder. Samples of one client are drawn without replacement,
    those of different clients independently. If the pool has too few samples of a kind, all of
    them are taken.

    Raises:
        UserError: the pool has no sample for some client.
    """
    tests = []
    for client, rows in enumerate(clients):
        generator = rng(seed, "test-set", client)
        held, counts = np.unique(kind[rows], return_counts=True)
        quota = samples * counts / counts.sum()
        take = np.floor(quota + 1e-9).astype(np.int64)
        largest_remainder = np.argsort(-(quota - take), kind="stable")
        take[largest_remainder[: samples - int(take.sum())]] += 1
        parts = [
            generator.permutation(pool[kind[pool] == k])[:count]
            for k, count in zip(held, take, strict=True)
        ]
        tests.append(_not_empty(np.sort(np.concatenate(parts)), client))
    return tests


def _not_empty(rows: Indices, client: int) -> Indices:
    if len(rows):
        return rows
    raise UserError(
        f"the test pool has no sample of client {client}'s labels: use another test_set or data set"
    )
