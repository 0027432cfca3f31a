"""The extended Dirichlet partition: each client has a number of labels, divided unevenly."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError
from flbench.partitions.label_skew import label_holders
from flbench.partitions.sharding import dealt
from flbench.partitions.shares import cut, log_shares, normalised


def extended_dirichlet(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    classes: Annotated[int, Ge(1)] = 2,
    alpha: Annotated[float, Gt(0), Le(1e6)] = 1.0,
    least: Annotated[int, Ge(0)] = 1,
) -> Partition:
    """Extended Dirichlet: each client has C labels, each label is split by Dir(alpha) (Li and Lyu).

    Li, Lyu, "Convergence analysis of sequential federated learning on heterogeneous data", NeurIPS
    2023 (arXiv 2311.03154), appendix: labels are given to clients first, C to each; then each label
    is divided among the clients that have it, by shares from Dir(alpha, ..., alpha). Client i has
    label i mod K of the K labels and others drawn uniformly, so that with K clients or more all
    labels are used.

    Departure: a client surely gets `least` samples of each of its labels, and shares divide the
    others; the paper draws again until no client has too few.

    Args:
        classes: C, the labels of a client.
        alpha: concentration; the smaller, the more one client has of a label.
        least: samples of each of its labels that a client surely gets. With 1 it has exactly C
            labels, with 0 at most C.
    """
    kinds, supply = np.unique(labels, return_counts=True)
    if classes > len(kinds):
        raise UserError(
            f"partition 'extended-dirichlet': classes={classes}: expected at most {len(kinds)}, the"
            " labels of the data set"
        )
    holders = label_holders(clients, len(kinds), classes, rng)
    counts = least * holders.astype(np.int64)
    for place, (kind, have) in enumerate(zip(kinds.tolist(), supply.tolist(), strict=True)):
        owners = np.flatnonzero(holders[:, place])
        if have < least * len(owners):
            raise UserError(
                f"partition 'extended-dirichlet': label {kind} has {have} samples for"
                f" {len(owners)} clients: expected {least} for each; use fewer clients, classes or"
                " a smaller least"
            )
        if len(owners):
            shares = normalised(log_shares(alpha, (len(owners),), rng))
            counts[owners, place] += cut(shares, have - least * len(owners), rng)
    without = np.flatnonzero(counts.sum(axis=1) == 0)
    if len(without):
        raise UserError(
            f"partition 'extended-dirichlet': {len(without)} of {clients} clients got no sample:"
            " use least=1, fewer clients or a larger alpha"
        )
    pools = [rng.permutation(np.flatnonzero(labels == kind)) for kind in kinds]
    return Partition(dealt(pools, counts))
