"""The by-domain partition: every client holds samples of one domain."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError
from flbench.partitions.sharding import deal, split_off


def by_domain(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    per_label: Annotated[int, Ge(1)] | None = None,
    sizes: tuple[int, ...] | None = None,
) -> Partition:
    """Feature shift: every client holds samples of one domain, which is its group (FedC2I).

    Client i belongs to domain i * D // clients; each domain is dealt evenly to its clients.

    Args:
        per_label: keep at most so many samples of each label per client (Digit-5: 100).
        sizes: keep so many samples per client, stratified by label (Office-10: 200, 200, 125, 197).

    Raises:
        UserError: the data set has no domains, or more of them than there are clients; or `sizes`
            asks for what is not there.
    """
    if domains is None:
        raise UserError("partition 'by-domain' needs a data set with domains, such as digits-shift")
    count = len(np.unique(domains))
    if clients < count:
        raise UserError(f"{count} domains need at least {count} clients, got {clients}")
    if per_label is not None and sizes is not None:
        raise UserError("partition 'by-domain': give per_label or sizes, not both")
    if sizes is not None and len(sizes) != clients:
        raise UserError(
            f"partition 'by-domain': sizes names {len(sizes)} clients, expected {clients}"
        )
    group = np.arange(clients, dtype=np.int64) * count // clients
    holders = group[:, None] == np.arange(count)
    dealt = deal(domains, holders, rng)
    if per_label is not None:
        dealt = tuple(_at_most(rows, labels, per_label, rng) for rows in dealt)
    elif sizes is not None:
        pairs = enumerate(zip(dealt, sizes, strict=True))
        dealt = tuple(_drawn(client, rows, labels, size, rng) for client, (rows, size) in pairs)
    return Partition(dealt, group)


def _at_most(rows: Indices, labels: Indices, most: int, rng: np.random.Generator) -> Indices:
    """At most so many random rows of each label, ascending."""
    shuffled = rng.permutation(rows)
    kept = [shuffled[labels[shuffled] == label][:most] for label in np.unique(labels[rows])]
    return np.sort(np.concatenate(kept))


def _drawn(
    client: int, rows: Indices, labels: Indices, size: int, rng: np.random.Generator
) -> Indices:
    """So many random rows, every label by its share, ascending."""
    if not 1 <= size <= len(rows):
        raise UserError(
            f"partition 'by-domain': sizes asks for {size} samples for client {client}: expected 1"
            f" to {len(rows)}, its share of the domain"
        )
    if size == len(rows):
        return rows
    return rows[split_off(labels[rows], size / len(rows), rng)[1]]
