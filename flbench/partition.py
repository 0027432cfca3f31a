"""Partitions: pure functions from labels to the clients' sample lists.

Each takes `(labels, domains, clients, rng, **parameters)` and returns a `Partition`. No function
here overlaps: a sample belongs to one client at most. Third parties add theirs under the entry
point group `flbench.partitions`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from flbench.dataset import Indices, Partition
from flbench.errors import UserError

BoolMatrix = npt.NDArray[np.bool_]


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
    order: Literal["shuffled", "natural"] = "shuffled",
) -> Partition:
    """Pathological non-IID: label groups without overlap (pFedLIA IV-B).

    The labels are cut into `groups` equal parts; client i belongs to group i * groups // clients
    and holds every label of its group; each label is dealt in equal shards to its holders.

    Args:
        groups: number of label groups.
        order: "shuffled" cuts a random order of the labels, "natural" cuts (0, 1), (2, 3), ...

    Raises:
        UserError: the labels or clients cannot be cut that way.
    """
    holders, group = _label_groups(labels, clients, rng, groups, order)
    return Partition(_deal(labels, holders, rng), group)


def patho5_noisy(
    labels: Indices,
    domains: Indices | None,
    clients: int,
    rng: np.random.Generator,
    groups: Annotated[int, Ge(1)] = 5,
    order: Literal["shuffled", "natural"] = "shuffled",
    extra_labels: Annotated[int, Ge(0)] = 1,
    extra_probability: Annotated[float, Ge(0), Le(1)] = 0.5,
) -> Partition:
    """Noisy non-IID: `patho5` where some clients hold labels of others too.

    With probability `extra_probability` a client gets `extra_labels` distinct labels drawn from
    outside its group; each label is then dealt over *all* its holders. The true group stays the
    main one.
    """
    holders, group = _label_groups(labels, clients, rng, groups, order)
    for row in holders:
        if rng.random() < extra_probability:
            outside = np.flatnonzero(~row)
            row[rng.choice(outside, size=min(extra_labels, len(outside)), replace=False)] = True
    return Partition(_deal(labels, holders, rng), group)


def by_domain(
    labels: Indices, domains: Indices | None, clients: int, rng: np.random.Generator
) -> Partition:
    """Feature shift: every client holds samples of one domain, which is its group (FedC2I).

    Client i belongs to domain i * D // clients; each domain is dealt evenly to its clients.

    Raises:
        UserError: the data set has no domains, or more of them than there are clients.
    """
    if domains is None:
        raise UserError("partition 'by-domain' needs a data set with domains, such as digits-shift")
    count = len(np.unique(domains))
    if clients < count:
        raise UserError(f"{count} domains need at least {count} clients, got {clients}")
    group = np.arange(clients, dtype=np.int64) * count // clients
    holders = group[:, None] == np.arange(count)
    return Partition(_deal(domains, holders, rng), group)


def _label_groups(
    labels: Indices, clients: int, rng: np.random.Generator, groups: int, order: str
) -> tuple[BoolMatrix, Indices]:
    """Who holds which label, shape (clients, labels), and each client's group."""
    classes = np.unique(labels)
    if not 1 <= groups <= min(len(classes), clients):
        raise UserError(
            f"cannot form {groups} label groups from {len(classes)} labels and {clients} clients:"
            " expected 1 <= groups <= both"
        )
    if order not in ("shuffled", "natural"):
        raise UserError(f"partition order: expected 'shuffled' or 'natural', got '{order}'")
    places = rng.permutation(len(classes)) if order == "shuffled" else np.arange(len(classes))
    parts = np.array_split(places, groups)
    group = np.arange(clients, dtype=np.int64) * groups // clients
    holders = np.zeros((clients, len(classes)), dtype=bool)
    for client, of in enumerate(group):
        holders[client, parts[of]] = True
    return holders, group


def _deal(labels: Indices, holders: BoolMatrix, rng: np.random.Generator) -> tuple[Indices, ...]:
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
