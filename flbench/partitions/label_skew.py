"""Partitions that skew the clients' labels, without true groups: `label-skew` and `dirichlet`.

Same signature as in `flbench.partitions.label_groups`; no sample is two clients'.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from flbench.core.dataset import Indices, Partition
from flbench.partitions.sharding import deal


def label_skew(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    share: Annotated[float, Gt(0), Le(1)] = 0.2,
) -> Partition:
    """Label skew: every client holds a share of all labels (FLIS, NIID-Bench "#C=k").

    Client i holds label i mod C and others drawn uniformly; each label is dealt in equal shards
    to its holders, without overlap. With fewer clients than labels some samples are nobody's.

    Args:
        share: share of the C labels a client holds; at least one label.

    Raises:
        UserError: a label has fewer samples than holders.
    """
    count = len(np.unique(labels))
    held = max(int(share * count + 0.5), 1)
    lots = rng.random((clients, count))
    lots[np.arange(clients), np.arange(clients) % count] = -1
    chosen = np.argpartition(lots, held - 1, axis=1)[:, :held]
    holders = np.zeros((clients, count), dtype=bool)
    np.put_along_axis(holders, chosen, True, axis=1)
    return Partition(deal(labels, holders, rng))
