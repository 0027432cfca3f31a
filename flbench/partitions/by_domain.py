"""The by-domain partition: every client holds samples of one domain."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError
from flbench.partitions.sharding import divide_labels, split_off


def by_domain(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    per_label: Annotated[int, Ge(1)] | None = None,
    sizes: tuple[int, ...] | None = None,
) -> Partition:
    """Feature shift: every client holds samples of one domain, which is its group (FedC2I).

    Client i belongs to domain i * D // clients; each domain is divided evenly among its clients.

    Args:
        per_label: largest number of samples per label and client (Digit-5: 100).
        sizes: samples of each client, stratified by label (Office-10: 200, 200, 125, 197).
    """
    if domains is None:
        raise UserError(
            "partition 'by-domain' needs samples that say of which domain they are, as those of"
            " digits-shift: csv:FILE?client=COLUMN, hub:NAME?client=COLUMN, or"
            " Dataset(..., domains=...)"
        )
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
    owned = divide_labels(domains, holders, rng)
    if per_label is not None:
        owned = tuple(_limit_per_label(rows, labels, per_label, rng) for rows in owned)
    elif sizes is not None:
        triples = zip(range(clients), owned, sizes, strict=True)
        owned = tuple(_stratified_sample(*triple, labels, rng) for triple in triples)
    return Partition(owned, group)


def _limit_per_label(
    rows: Indices, labels: Indices, limit: int, rng: np.random.Generator
) -> Indices:
    """At most `limit` random rows of each label, ascending."""
    shuffled = rng.permutation(rows)
    kept = [shuffled[labels[shuffled] == label][:limit] for label in np.unique(labels[rows])]
    return np.sort(np.concatenate(kept))


def _stratified_sample(
    client: int, rows: Indices, size: int, labels: Indices, rng: np.random.Generator
) -> Indices:
    """`size` random rows, stratified by label, ascending."""
    if not 1 <= size <= len(rows):
        raise UserError(
            f"partition 'by-domain': sizes asks for {size} samples for client {client}: expected 1"
            f" to {len(rows)}, its share of the domain"
        )
    if size == len(rows):
        return rows
    return rows[split_off(labels[rows], size / len(rows), rng)[1]]
