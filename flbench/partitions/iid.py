"""The iid partition: every client gets a random share of all samples."""

from __future__ import annotations

import numpy as np

from flbench.core.dataset import Indices, Partition


def iid(
    labels: Indices, domains: Indices | None, clients: int, rng: np.random.Generator
) -> Partition:
    """Shuffle and deal: sizes differ by at most one; everybody is in the one group."""
    dealt = np.array_split(rng.permutation(len(labels)), clients)
    return Partition(tuple(np.sort(part) for part in dealt), np.zeros(clients, dtype=np.int64))
