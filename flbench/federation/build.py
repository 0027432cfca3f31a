"""Divide a data set among clients: partition, server samples, newcomers, test sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flbench.core.dataset import Dataset
from flbench.core.seeding import rng
from flbench.federation import test_sets
from flbench.federation.federation import Federation, federate, server_indices
from flbench.plugin.hooks import HookCaller
from flbench.suite import Suite


def divide(suite: Suite, hooks: HookCaller, dataset: Dataset, seed: int) -> Federation:
    """Partition the data set and split every client's share."""
    labels = dataset.labels.numpy()
    domains = None if dataset.domains is None else dataset.domains.numpy()
    pool, source, share = np.arange(0), np.arange(len(labels)), 0.1
    if suite.test_set != "own":
        source, share = test_sets.test_pool(dataset, suite.test_fraction, seed), 0.25
        pool = source
    server = np.arange(0)
    if suite.server_samples:
        draw = rng(seed, "server-samples")
        server = source[server_indices(labels[source], suite.server_samples, draw, share)]
    pool = np.setdiff1d(pool, server)
    left = np.setdiff1d(np.arange(len(labels)), np.concatenate([server, pool]))
    partition = hooks.partition(
        labels[left],
        None if domains is None else domains[left],
        suite.clients,
        rng(seed, "partition"),
    )
    guests = set(
        rng(seed, "newcomers").permutation(suite.clients)[suite.training_clients :].tolist()
    )
    order = sorted(range(suite.clients), key=lambda client: (client in guests, client))
    groups = partition.groups
    owned = replace(
        partition,
        clients=tuple(left[partition.clients[client]] for client in order),
        groups=None if groups is None else np.asarray(groups)[order],
    )
    tests = None
    if suite.test_set == "labels":
        tests = test_sets.by_labels(test_sets.kinds(dataset), pool, owned.clients)
    elif suite.test_set == "proportional":
        wanted = suite.test_samples
        tests = test_sets.proportional(test_sets.kinds(dataset), pool, owned.clients, wanted, seed)
    return federate(
        dataset,
        owned,
        seed,
        test_fraction=suite.test_fraction,
        validation_fraction=suite.validation_fraction,
        server=server,
        newcomers=len(guests),
        tests=tests,
    )
