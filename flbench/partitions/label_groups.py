"""Label-groups partitions: true groups of clients that hold the same few labels."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError
from flbench.partitions.sharding import BoolMatrix, Order, deal


def label_groups(
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


def label_groups_noisy(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    groups: Annotated[int, Ge(1)] = 5,
    order: Order = "shuffled",
    extra_labels: Annotated[int, Ge(0)] = 1,
    extra_probability: Annotated[float, Ge(0), Le(1)] = 0.5,
) -> Partition:
    """Noisy non-IID: `label_groups` where some clients hold labels of others too.

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
