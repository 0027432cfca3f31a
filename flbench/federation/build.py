"""Build a federation from a data set: server samples, partition, newcomers, test sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flbench.core.dataset import Dataset, Indices, Partition
from flbench.core.seeding import rng
from flbench.federation import shared_test_sets
from flbench.federation.federation import (
    Federation,
    Gather,
    SplitRule,
    federate,
    gathered,
    server_indices,
)
from flbench.plugin.hooks import HookCaller
from flbench.suite import Suite


def divide(
    suite: Suite, hooks: HookCaller, dataset: Dataset, seed: int, gather: Gather = gathered
) -> Federation:
    """Divide a data set among server, test pool and clients.

    `federation.federate` then splits each client's samples into training, validation and test.

    Newcomers become the last clients, so that training clients have ids 0..N-1.

    Args:
        gather: copies samples from the data set to a pool.
    """
    labels = dataset.labels.numpy()
    domains = None if dataset.domains is None else dataset.domains.numpy()
    server, test_pool = set_aside(suite, dataset, seed)
    rest = np.setdiff1d(np.arange(len(labels)), np.concatenate([server, test_pool]))
    rest_domains = None if domains is None else domains[rest]
    partition = hooks.partition(labels[rest], rest_domains, suite.clients, rng(seed, "partition"))
    ordered = newcomers_last(suite, partition, rest, seed)
    tests, kinds = None, shared_test_sets.kinds(dataset)
    if suite.test_set == "labels":
        tests = shared_test_sets.by_labels(kinds, test_pool, ordered.clients)
    elif suite.test_set == "proportional":
        tests = shared_test_sets.proportional(
            kinds, test_pool, ordered.clients, suite.test_samples, seed
        )
    return federate(
        dataset,
        ordered,
        SplitRule(seed, suite.test_fraction, suite.validation_fraction),
        server=server,
        newcomers=suite.clients - suite.training_clients,
        tests=tests,
        gather=gather,
    )


def set_aside(suite: Suite, dataset: Dataset, seed: int) -> tuple[Indices, Indices]:
    """Samples of the server, and of the pool of test samples; none where the suite has none.

    Those of the server come from the test pool if there is one, else from all samples.
    """
    labels = dataset.labels.numpy()
    test_pool, source, share = np.arange(0), np.arange(len(labels)), 0.1
    if suite.test_set != "own":
        test_pool = shared_test_sets.test_pool(dataset, suite.test_fraction, seed, suite.test_sizes)
        source, share = test_pool, 0.25
    server = np.arange(0)
    if suite.server_samples:
        generator = rng(seed, "server-samples")
        server = source[server_indices(labels[source], suite.server_samples, generator, share)]
    return server, np.setdiff1d(test_pool, server)


def newcomers_last(suite: Suite, partition: Partition, pool: Indices, seed: int) -> Partition:
    """A partition of a pool as one of the data set, with those clients last that join late."""
    shuffled = rng(seed, "newcomers").permutation(suite.clients)
    newcomers = set(shuffled[suite.training_clients :].tolist())
    order = sorted(range(suite.clients), key=lambda client: (client in newcomers, client))
    return replace(
        partition,
        clients=tuple(pool[partition.clients[client]] for client in order),
        groups=None if partition.groups is None else np.asarray(partition.groups)[order],
    )
