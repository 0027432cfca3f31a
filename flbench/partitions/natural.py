"""The natural partition: every client is one domain of the data set, such as a writer."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError


def natural(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    least: Annotated[int, Ge(2)] = 8,
) -> Partition:
    """Natural: every client holds all samples of one domain, such as a writer or a hospital.

    Of more domains than clients, some are drawn; their samples alone take part. True groups are
    those that the data set knows of its domains.

    Args:
        least: smallest number of samples of a domain that may be drawn.
    """
    if domains is None:
        raise UserError(
            "partition 'natural' needs samples that say whose they are: csv:FILE?client=COLUMN,"
            " hub:NAME?client=COLUMN, leaf:FOLDER, or Dataset(..., domains=...)"
        )
    sizes = np.bincount(domains)
    enough = np.flatnonzero(sizes >= least)
    if not len(enough):
        raise UserError(
            f"partition 'natural': the largest domain has {sizes.max()} samples: lower"
            f" partition.least, which is {least}, or choose another data set"
        )
    if clients > len(enough):
        raise UserError(
            f"partition 'natural': expected at most {len(enough)} clients, the domains with"
            f" {least} samples or more; got {clients}: use --set suite.clients={len(enough)}"
        )
    chosen = np.sort(rng.permutation(enough)[:clients])
    order = np.argsort(domains, kind="stable")
    ends = np.cumsum(sizes)
    owned = tuple(np.sort(order[ends[one] - sizes[one] : ends[one]]) for one in chosen)
    return Partition(owned)
