"""The label-groups partitions: the clients of a group hold the same few labels."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError
from flbench.partitions.sharding import BoolMatrix, Order, divide_labels


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
    and holds every label of its group; the samples of a label are divided evenly among its holders.

    Args:
        groups: number of label groups.
        order: "shuffled" cuts a random order of the labels, "natural" cuts (0, 1), (2, 3), ...,
            "domains" cuts a random order of the superclasses that `domains` names, so that a group
            holds whole superclasses.
        classes: number of labels to use, the first of the order; samples of the other labels are
            not used.
    """
    holders, group = _label_groups(labels, domains, clients, rng, groups, order, classes)
    return Partition(divide_labels(labels, holders, rng), group)


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
    """Noisy non-IID: `label_groups` where some clients also hold labels of other groups.

    With probability `extra_probability` a client gets `extra_labels` distinct labels drawn from
    outside its group; the samples of a label are divided evenly among *all* its holders. The true
    group of a client is its group without the extra labels.
    """
    holders, group = _label_groups(labels, domains, clients, rng, groups, order)
    for row in holders:
        if rng.random() < extra_probability:
            outside = np.flatnonzero(~row)
            row[rng.choice(outside, size=min(extra_labels, len(outside)), replace=False)] = True
    return Partition(divide_labels(labels, holders, rng), group)


def _label_groups(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    groups: int,
    order: str,
    used: int | None = None,
) -> tuple[BoolMatrix, Indices]:
    """Return the mask of each client's labels, shape (clients, labels), and its group."""
    count = len(np.unique(labels))
    if used is not None and order == "domains":
        raise UserError(f"cannot use {used} labels: order 'domains' uses whole superclasses")
    if used is not None and used > count:
        raise UserError(f"cannot use {used} labels: there are {count}")
    # The unit that is assigned to groups: a superclass, or a label as its own unit.
    unit = _superclasses(labels, domains) if order == "domains" else np.arange(count)
    units, what = int(unit.max()) + 1, "superclasses" if order == "domains" else "labels"
    if not 1 <= groups <= min(used or units, clients):
        raise UserError(
            f"cannot form {groups} label groups from {used or units} {what} and {clients} clients:"
            " expected 1 <= groups <= both"
        )
    ordered = np.arange(units) if order == "natural" else rng.permutation(units)
    parts = np.array_split(ordered[:used], groups)
    group = np.arange(clients, dtype=np.int64) * groups // clients
    held_by_group = np.stack([np.isin(unit, part) for part in parts])
    return held_by_group[group], group


def _superclasses(labels: Indices, domains: Indices | None) -> Indices:
    """Superclass of each label, 0..S-1, shape (labels,)."""
    if domains is None:
        raise UserError(
            "partition order 'domains' needs a data set that names superclasses, such as cifar100"
        )
    label, superclass = np.unique(np.stack([labels, domains]), axis=1)
    ambiguous = label[1:][label[1:] == label[:-1]]
    if len(ambiguous):
        first, second, *_ = superclass[label == ambiguous[0]].tolist()
        raise UserError(
            f"partition order 'domains': label {ambiguous[0]} has samples of the domains {first}"
            f" and {second}: expected one superclass per label"
        )
    return np.unique(superclass, return_inverse=True)[1].astype(np.int64)
