"""The iid partition: every client gets a random share of all samples."""

from __future__ import annotations

import numpy as np

from flbench.core.dataset import Indices, Partition


def iid(
    labels: Indices, domains: Indices | None, clients: int, rng: np.random.Generator
) -> Partition:
    """IID: random shares whose sizes differ by at most one; all clients are in one group."""
    shares = np.array_split(rng.permutation(len(labels)), clients)
    return Partition(tuple(np.sort(share) for share in shares), np.zeros(clients, dtype=np.int64))
