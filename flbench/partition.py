"""Partitions: pure functions from labels to the clients' sample lists.

Each takes `(labels, domains, clients, rng, **parameters)` and returns a `Partition`. No function
here overlaps: a sample belongs to one client at most. `flbench.skewed` and `flbench.primary` hold
those without true groups. Third parties add theirs under the entry point group
`flbench.partitions`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError

BoolMatrix = npt.NDArray[np.bool_]
Order = Literal["shuffled", "natural", "domains"]


def iid(
    labels: Indices, domains: Indices | None, clients: int, rng: np.random.Generator
) -> Partition:
    """Shuffle and deal: sizes differ by at most one; everybody is in the one group."""
    dealt = np.array_split(rng.permutation(len(labels)), clients)
    return Partition(tuple(np.sort(part) for part in dealt), np.zeros(clients, dtype=np.int64))


def patho5(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    groups: Annotated[int, Ge(1)] = 5,
    order: Order = "shuffled",
    classes: Annotated[int, Ge(1)] | None = None,
) -> Partition:
    """Pathological non-IID: label groups without overlap (pFedLIA IV-B).

    The labels are cut into `groups` equal parts; client i belongs to group i * groups // clients
    and holds every label of its group; each label is dealt in equal shards to its holders.

    Args:
        groups: number of label groups.
        order: "shuffled" cuts a random order of the labels, "natural" cuts (0, 1), (2, 3), ...,
            "domains" cuts a random order of the superclasses that `domains` names: a group holds
            whole superclasses.
        classes: use only so many labels, the first of the order; the other labels' samples are
            nobody's.

    Raises:
        UserError: the labels or clients cannot be cut that way.
    """
    holders, group = _label_groups(labels, domains, clients, rng, groups, order, classes)
    return Partition(deal(labels, holders, rng), group)


def patho5_noisy(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    groups: Annotated[int, Ge(1)] = 5,
    order: Order = "shuffled",
    extra_labels: Annotated[int, Ge(0)] = 1,
    extra_probability: Annotated[float, Ge(0), Le(1)] = 0.5,
) -> Partition:
    """Noisy non-IID: `patho5` where some clients hold labels of others too.

    With probability `extra_probability` a client gets `extra_labels` distinct labels drawn from
    outside its group; each label is then dealt over *all* its holders. The true group stays the
    main one.
    """
    holders, group = _label_groups(labels, domains, clients, rng, groups, order)
    for row in holders:
        if rng.random() < extra_probability:
            outside = np.flatnonzero(~row)
            row[rng.choice(outside, size=min(extra_labels, len(outside)), replace=False)] = True
    return Partition(deal(labels, holders, rng), group)


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


def _label_groups(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    groups: int,
    order: str,
    used: int | None = None,
) -> tuple[BoolMatrix, Indices]:
    """Who holds which label, shape (clients, labels), and each client's group."""
    count = len(np.unique(labels))
    if used is not None and (used > count or order == "domains"):
        why = "whole superclasses have all theirs" if order == "domains" else f"there are {count}"
        raise UserError(f"cannot use {used} labels: {why}")
    if order not in ("shuffled", "natural", "domains"):
        raise UserError(
            f"partition order: expected 'shuffled', 'natural' or 'domains', got '{order}'"
        )
    above = _superclasses(labels, domains) if order == "domains" else np.arange(count)
    kinds, what = int(above.max()) + 1, "superclasses" if order == "domains" else "labels"
    if not 1 <= groups <= min(used or kinds, clients):
        raise UserError(
            f"cannot form {groups} label groups from {used or kinds} {what} and {clients} clients:"
            " expected 1 <= groups <= both"
        )
    places = np.arange(kinds) if order == "natural" else rng.permutation(kinds)
    parts = np.array_split(places[:used], groups)
    group = np.arange(clients, dtype=np.int64) * groups // clients
    holds = np.stack([np.isin(above, part) for part in parts])
    return holds[group], group


def _superclasses(labels: Indices, domains: Indices | None) -> Indices:
    """Which superclass each label is of, 0..S-1, shape (labels,)."""
    if domains is None:
        raise UserError(
            "partition order 'domains' needs a data set that names superclasses, such as cifar100"
        )
    label, superclass = np.unique(np.stack([labels, domains]), axis=1)
    twice = label[1:][label[1:] == label[:-1]]
    if len(twice):
        of = superclass[label == twice[0]].tolist()
        raise UserError(
            f"partition order 'domains': label {twice[0]} has samples of the domains {of[0]} and"
            f" {of[1]}: expected one superclass per label"
        )
    return np.unique(superclass, return_inverse=True)[1].astype(np.int64)


def deal(labels: Indices, holders: BoolMatrix, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Cut each label into equal shards, one per holder; shard sizes differ by at most one."""
    dealt: list[list[Indices]] = [[] for _ in holders]
    for column, label in enumerate(np.unique(labels)):
        owners = np.flatnonzero(holders[:, column])
        samples = rng.permutation(np.flatnonzero(labels == label))
        if 0 < len(samples) < len(owners):
            raise UserError(
                f"label {label} has {len(samples)} samples for {len(owners)} clients: expected at"
                " least one each; use fewer clients"
            )
        if len(owners):
            for owner, shard in zip(owners, np.array_split(samples, len(owners)), strict=True):
                dealt[owner].append(shard)
    return tuple(np.sort(np.concatenate(parts)).astype(np.int64) for parts in dealt)


def split_off(
    labels: Indices, fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Split positions 0..n-1 in two, stratified by label.

    Every label gives the floor of its quota; the rest is drawn by largest remainder, ties at
    random, so a label with one sample goes either way. Both parts get at least one sample.

    Args:
        labels: the samples' labels, shape (n,), n >= 2.
        fraction: share of the part taken off.

    Returns:
        Positions kept and positions taken, ascending.
    """
    if fraction <= 0:
        return np.arange(len(labels)), np.arange(0)
    total = min(max(round(fraction * len(labels)), 1), len(labels) - 1)
    order = rng.permutation(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    quota = total * counts / len(labels)
    take = np.floor(quota + 1e-9).astype(np.int64)
    lot = rng.random(len(classes))
    neediest = np.lexsort((lot, -np.round(quota - take, 9)))
    take[neediest[: total - take.sum()]] += 1
    taken = np.concatenate(
        [order[labels[order] == c][:k] for c, k in zip(classes, take, strict=True)]
    )
    mask = np.zeros(len(labels), dtype=bool)
    mask[taken] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)
