"""The label-skew partition: every client holds a few of all labels, without true groups."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from flbench.core.dataset import Indices, Partition
from flbench.partitions.sharding import BoolMatrix, divide_labels


def label_skew(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    share: Annotated[float, Gt(0), Le(1)] = 0.2,
) -> Partition:
    """Label skew: every client holds a share of all labels (FLIS, NIID-Bench "#C=k").

    Client i holds label i mod C and others drawn uniformly; the samples of a label are divided
    evenly among its holders, without overlap. Samples of a label that no client holds are not used,
    which happens only with fewer clients than labels.

    Args:
        share: share of the C labels that a client holds; at least one label.
    """
    count = len(np.unique(labels))
    holders = label_holders(clients, count, max(int(share * count + 0.5), 1), rng)
    return Partition(divide_labels(labels, holders, rng))


def label_holders(clients: int, count: int, held: int, rng: np.random.Generator) -> BoolMatrix:
    """Which client holds which of `count` labels, shape (clients, labels); each holds `held`.

    Client i holds label i mod `count` and others drawn uniformly.
    """
    keys = rng.random((clients, count))  # a client holds the labels with the smallest keys
    keys[np.arange(clients), np.arange(clients) % count] = -1
    chosen = np.argpartition(keys, held - 1, axis=1)[:, :held]
    holders = np.zeros((clients, count), dtype=bool)
    np.put_along_axis(holders, chosen, True, axis=1)
    return holders
