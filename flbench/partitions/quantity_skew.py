"""The quantity-skew partition: clients differ in how many samples they hold, not in which."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from flbench.core.dataset import Indices, Partition
from flbench.partitions.dirichlet import (
    DRAWN,
    TRIES,
    fill_up,
    of_owners,
    refuse_too_few,
    say_filled_up,
)
from flbench.partitions.shares import cut, log_shares, normalised


def quantity_skew(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    beta: Annotated[float, Gt(0), Le(1e6)] = 0.5,
    min_samples: Annotated[int, Ge(1)] = 10,
) -> Partition:
    """Quantity skew: sizes by shares from Dir(beta, ..., beta), labels as in all (NIID-Bench).

    Li, Diao, Chen, He, "Federated learning on non-IID data silos: an experimental study", ICDE
    2022, IV-C: samples are dealt at random, client j gets a share q_j of them, q ~ Dir_N(beta). As
    there, shares are drawn again until each client has `min_samples`, but at most 1000 times; then
    those of the draw that lacks the fewest are taken, and clients with too few get random samples
    of the largest clients, which is logged. All clients are in one true group. No classes are
    needed.

    Args:
        beta: concentration; the smaller, the more sizes differ.
        min_samples: least number of samples of a client.
    """
    refuse_too_few(len(labels), clients, min_samples)
    best, fewest_missing = np.zeros(clients, dtype=np.int64), len(labels) + 1
    tries = min(max(DRAWN // clients, 1), TRIES)
    for _ in range(tries):
        sizes = cut(normalised(log_shares(beta, (clients,), rng)), len(labels), rng)
        missing = int(np.maximum(min_samples - sizes, 0).sum())
        if missing < fewest_missing:
            best, fewest_missing = sizes, missing
        if not missing:
            break
    owner = np.empty(len(labels), dtype=np.int64)
    owner[rng.permutation(len(labels))] = np.repeat(np.arange(clients), best)
    if fewest_missing:
        fill_up(owner, clients, min_samples, rng)
        say_filled_up("quantity-skew", tries, clients, min_samples, fewest_missing)
    return Partition(of_owners(owner, clients), np.zeros(clients, dtype=np.int64))
