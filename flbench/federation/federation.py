"""Federation: every client's data, split once for all methods.

What methods may touch (`visible`: training and validation samples, the server's samples) and what
only the evaluation sees (`held_out`: test samples, true groups) are two objects with two pools of
tensors, so no method can reach a test sample through the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset, Indices, Partition
from flbench.core.seeding import rng
from flbench.errors import UserError
from flbench.partitions.sharding import split_off


@dataclass(frozen=True)
class Samples:
    """A pool of samples and, per split, the rows of it that each client owns.

    Attributes:
        x: samples, shape (m, ...).
        y: labels, shape (m,), int64.
        splits: split name -> one int64 row tensor per client.
        names: what each client is called in the addresses of its random streams; None = its id.
    """

    x: Tensor
    y: Tensor
    splits: Mapping[str, tuple[Tensor, ...]]
    names: tuple[int, ...] | None = None

    def name(self, client: int) -> int:
        """The number that stands for a client in random addresses."""
        return client if self.names is None else self.names[client]

    def called(self, names: Tensor) -> Tensor:
        """Ids of the clients with some names, ascending, shape (n,), int64."""
        if self.names is None:
            return names
        return torch.tensor(sorted(self.names.index(name) for name in names.tolist()))

    def sizes(self, split: str) -> Tensor:
        """Samples of each client in a split, shape (N,), int64."""
        return torch.tensor([len(rows) for rows in self.splits[split]])

    def joined(self, other: Samples) -> Samples:
        """One pool of both: the other's lists behind mine; of its splits only those I have."""
        shift = len(self.y)
        splits = {
            name: (*lists, *(rows + shift for rows in other.splits.get(name, ())))
            for name, lists in self.splits.items()
        }
        x, y = torch.cat([self.x, other.x]), torch.cat([self.y, other.y])
        return replace(self, x=x, y=y, splits=splits)

    def to(self, device: torch.device) -> Samples:
        """Move the pool; row lists stay on the CPU."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))


@dataclass(frozen=True)
class Newcomers:
    """Clients that no method meets before the last round is over.

    Attributes:
        visible: splits "train" and "validation", one list per newcomer, in a pool of their own.
        held_out: split "test", in another.
        groups: true group per newcomer, shape (M,), int64, or None.
    """

    visible: Samples
    held_out: Samples
    groups: Tensor | None

    def __len__(self) -> int:
        """M."""
        return len(self.held_out.splits["test"])


@dataclass(frozen=True)
class Federation:
    """All clients' data, split.

    Attributes:
        visible: splits "train" and "validation", and "server" (one list) if the suite has any.
        held_out: split "test".
        groups: true group per client, shape (N,), int64, or None.
        classes: number of labels.
        fingerprint: hashes of the data and of every index list, hex.
        newcomers: clients held out of training, or None.
    """

    visible: Samples
    held_out: Samples
    groups: Tensor | None
    classes: int
    fingerprint: Mapping[str, str]
    newcomers: Newcomers | None = None

    @property
    def clients(self) -> int:
        """N."""
        return len(self.held_out.splits["test"])

    def relabelled(self, order: Sequence[int]) -> Federation:
        """The same federation under other ids: client i is what client `order[i]` was.

        Its samples, its group and its random streams go with it, so whatever a method makes of the
        clients must come out relabelled, and otherwise the same. Newcomers stay where they are.
        """

        def moved(samples: Samples) -> Samples:
            lists = {
                name: rows if name == "server" else tuple(rows[client] for client in order)
                for name, rows in samples.splits.items()
            }
            return replace(samples, splits=lists, names=tuple(order))

        groups = None if self.groups is None else self.groups[list(order)]
        visible, held_out = moved(self.visible), moved(self.held_out)
        return replace(self, visible=visible, held_out=held_out, groups=groups)

    def with_test_as_validation(self) -> Federation:
        """The same federation with the test split in the place of the validation split.

        Three of the reference protocols decide on test data; a method that asks
        for `paper_leak` gets this view, and its result says so.
        """
        shift = len(self.visible.y)
        test = tuple(rows + shift for rows in self.held_out.splits["test"])
        visible = Samples(
            torch.cat([self.visible.x, self.held_out.x]),
            torch.cat([self.visible.y, self.held_out.y]),
            {**self.visible.splits, "validation": test},
        )
        return replace(self, visible=visible)


def server_indices(
    labels: Indices, wanted: int, generator: np.random.Generator, share: float = 0.1
) -> Indices:
    """Class-balanced samples for the server, at most a share of the pool."""
    _, counts = np.unique(labels, return_counts=True)
    most = int(len(labels) * share + 1e-9)
    each = min(min(wanted, most) // len(counts), int(counts.min()))
    drawn = [
        generator.permutation(np.flatnonzero(labels == label))[:each] for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(drawn))


def federate(
    dataset: Dataset,
    partition: Partition,
    seed: int,
    *,
    test_fraction: float,
    validation_fraction: float,
    server: Indices | None = None,
    newcomers: int = 0,
    tests: Sequence[Indices] | None = None,
) -> Federation:
    """Split every client's samples into training, validation and test, stratified by label.

    Args:
        partition: indices into `dataset`; groups may be None.
        test_fraction: share of a client's samples that is tested on.
        validation_fraction: share of the remaining samples that is validated on.
        server: samples the server owns, outside every client's.
        newcomers: how many of the clients, from the end, are held out of training.
        tests: test samples of each client, outside everybody's own; None = a share of its own.

    Raises:
        UserError: a client has too few samples to split, or shares some that it may be tested on.
    """
    everybodys = np.concatenate(partition.clients)
    if tests is None and len(np.unique(everybodys)) < len(everybodys):
        raise UserError(
            "the partition gives samples to several clients, so one could be tested on what another"
            " trains on: set test_set to labels or proportional"
        )
    labels = dataset.labels.numpy()
    parts = ("training", "validation") if tests is not None else ("training", "validation", "test")
    splits: dict[str, list[Indices]] = {"train": [], "validation": [], "test": []}
    for client, owned in enumerate(partition.clients):
        if len(owned) < len(parts):
            raise UserError(
                f"client {client} has {len(owned)} samples: expected at least {len(parts)}"
                f" ({', '.join(parts)}); use fewer clients"
            )
        if tests is None:
            keep, test = split_off(labels[owned], test_fraction, rng(seed, "test-split", client))
            rest, tested = owned[keep], owned[test]
        else:
            rest, tested = owned, tests[client]
        train, validation = split_off(
            labels[rest], validation_fraction, rng(seed, "validation-split", client)
        )
        splits["train"].append(rest[train])
        splits["validation"].append(rest[validation])
        splits["test"].append(tested)
    if server is not None and len(server):
        splits["server"] = [server]
    n = len(partition.clients) - newcomers
    groups = None if partition.groups is None else torch.as_tensor(partition.groups)
    visible = {name: lists[:n] for name, lists in splits.items() if name != "test"}
    guests = None
    if newcomers:
        later = {name: splits[name][n:] for name in ("train", "validation")}
        guests = Newcomers(
            visible=_pool(dataset, later),
            held_out=_pool(dataset, {"test": splits["test"][n:]}),
            groups=None if groups is None else groups[n:].clone(),
        )
    return Federation(
        visible=_pool(dataset, visible),
        held_out=_pool(dataset, {"test": splits["test"][:n]}),
        groups=None if groups is None else groups[:n].clone(),
        classes=dataset.classes,
        fingerprint={"data": _data_hash(dataset), "partition": _index_hash(splits)},
        newcomers=guests,
    )


def _pool(dataset: Dataset, splits: Mapping[str, list[Indices]]) -> Samples:
    """Copy the samples that occur in the given splits into a pool of their own."""
    used = np.unique(np.concatenate([rows for lists in splits.values() for rows in lists]))
    rows = {
        name: tuple(torch.as_tensor(np.searchsorted(used, part)) for part in lists)
        for name, lists in splits.items()
    }
    kept = torch.as_tensor(used)
    return Samples(dataset.x[kept], dataset.y[kept], rows)


def label_counts(samples: Samples, classes: int) -> Tensor:
    """Training samples per client and label, shape (clients, C), int64."""
    lists = samples.splits["train"]
    return torch.stack(
        [torch.bincount(samples.y[rows].reshape(-1), minlength=classes) for rows in lists]
    )


def _data_hash(dataset: Dataset) -> str:
    digest = hashlib.sha256(dataset.y.contiguous().numpy().data)
    digest.update(dataset.x.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _index_hash(splits: Mapping[str, list[Indices]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(splits):
        for client, rows in enumerate(splits[name]):
            digest.update(f"{name}/{client}:".encode())
            digest.update(np.asarray(rows, dtype="<i8").tobytes())
    return digest.hexdigest()[:16]
