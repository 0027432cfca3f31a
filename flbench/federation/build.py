"""Build a federation from a data set: server samples, partition, newcomers, test sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flbench.core.dataset import Dataset
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

    # The server's samples come from the test pool if there is one, else from all samples.
    test_pool, server_source, server_share = np.arange(0), np.arange(len(labels)), 0.1
    if suite.test_set != "own":
        test_pool = shared_test_sets.test_pool(dataset, suite.test_fraction, seed, suite.test_sizes)
        server_source, server_share = test_pool, 0.25
    server = np.arange(0)
    if suite.server_samples:
        generator = rng(seed, "server-samples")
        source_labels = labels[server_source]
        positions = server_indices(source_labels, suite.server_samples, generator, server_share)
        server = server_source[positions]
    test_pool = np.setdiff1d(test_pool, server)

    rest = np.setdiff1d(np.arange(len(labels)), np.concatenate([server, test_pool]))
    rest_domains = None if domains is None else domains[rest]
    partition = hooks.partition(labels[rest], rest_domains, suite.clients, rng(seed, "partition"))
    shuffled = rng(seed, "newcomers").permutation(suite.clients)
    newcomers = set(shuffled[suite.training_clients :].tolist())
    order = sorted(range(suite.clients), key=lambda client: (client in newcomers, client))
    groups = partition.groups
    ordered = replace(
        partition,
        clients=tuple(rest[partition.clients[client]] for client in order),
        groups=None if groups is None else np.asarray(groups)[order],
    )

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
        newcomers=len(newcomers),
        tests=tests,
        gather=gather,
    )
