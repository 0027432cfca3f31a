"""Federation: the data of all clients, split in the same way for all methods.

The data that methods may use (`visible`: training and validation samples, the server's samples) and
the data for the evaluation alone (`held_out`: test samples) are two objects with separate tensors,
so that a method cannot reach a test sample through the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset, Indices, Partition
from flbench.core.seeding import rng
from flbench.core.targets import task_of
from flbench.errors import UserError
from flbench.federation.feature_scale import SCALARS, scalars, scaled
from flbench.federation.loading import opens_argument
from flbench.federation.remembered import Remembered
from flbench.federation.row_lists import RowLists
from flbench.federation.target_scale import TargetScale, prepared
from flbench.partitions.sharding import split_off
from flbench.tasks import TaskName

POOLED = 2**25
"""Bytes of pooled batches that are remembered."""
Gather = Callable[[Tensor, Tensor], Tensor]
"""Copies rows of a table, shape (m,), int64, to a table of their own, shape (m, ...)."""


def gathered(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a table, copied."""
    return table[rows]


@dataclass(frozen=True)
class Samples:
    """A pool of samples and, for each split, the rows of the pool that belong to each client.

    Attributes:
        x: samples, shape (m, ...).
        y: targets, as `core.targets` says; labels, shape (m,), int64.
        splits: split name -> the rows of each client.
        names: number of each client in the addresses of random generators; None = its id.
        places: place of each test sample in the data set, shape (m,), int64, on the CPU; None of
            other pools.
        pooled: batches of several clients that are remembered (`pooled.py`).
    """

    x: Tensor
    y: Tensor
    splits: Mapping[str, RowLists]
    names: tuple[int, ...] | None = None
    places: Tensor | None = None
    pooled: Remembered = field(
        default_factory=lambda: Remembered(POOLED), init=False, repr=False, compare=False
    )

    def name(self, client: int) -> int:
        """The number of a client in the addresses of random generators."""
        return client if self.names is None else self.names[client]

    def called(self, names: Tensor) -> Tensor:
        """Ids of the clients with these names, ascending, shape (n,), int64."""
        if self.names is None:
            return names
        return torch.tensor(sorted(self.names.index(name) for name in names.tolist()))

    def sizes(self, split: str) -> Tensor:
        """Samples of each client in a split, shape (N,), int64."""
        return self.splits[split].sizes

    def joined(self, other: Samples) -> Samples:
        """One pool with the clients of both, these first; other splits than these are dropped."""
        offset = len(self.y)
        splits = {
            name: RowLists.of([*lists, *(rows + offset for rows in other.splits[name])])
            if name in other.splits
            else lists
            for name, lists in self.splits.items()
        }
        x, y = torch.cat([self.x, other.x]), torch.cat([self.y, other.y])
        return replace(self, x=x, y=y, splits=splits, places=None)

    def to(self, device: torch.device) -> Samples:
        """Move the pool; row lists stay on the CPU."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))


@dataclass(frozen=True)
class Newcomers:
    """Clients that join after the last round.

    Attributes:
        visible: splits "train" and "validation", one list per newcomer, in a pool of their own.
        held_out: split "test", in another pool.
        groups: true group per newcomer, shape (M,), int64, or None.
    """

    visible: Samples
    held_out: Samples
    groups: Tensor | None

    def __len__(self) -> int:
        """Number of newcomers, M."""
        return len(self.held_out.splits["test"])


@dataclass(frozen=True)
class Federation:
    """The split data of all clients.

    Attributes:
        visible: splits "train" and "validation", and "server" (one list) if the server has samples.
        held_out: split "test".
        groups: true group per client, shape (N,), int64, or None.
        classes: number of labels, or other outputs.
        fingerprint: hashes of the data and of all index lists, hexadecimal.
        newcomers: clients that do not take part in training, or None.
        scaled: scalars that say how features are scaled, by item of the ledger (`feature_scale`).
        scale: of numbers that are predicted; None = other targets.
    """

    visible: Samples
    held_out: Samples
    groups: Tensor | None
    classes: int
    fingerprint: Mapping[str, str]
    newcomers: Newcomers | None = None
    scaled: Mapping[str, int] = field(default_factory=dict)
    scale: TargetScale | None = None

    @property
    def task(self) -> TaskName:
        """What is predicted."""
        return task_of(self.visible.y)

    @property
    def clients(self) -> int:
        """Number of clients that take part in training, N."""
        return len(self.held_out.splits["test"])

    def relabelled(self, order: Sequence[int]) -> Federation:
        """The same federation with other client ids: client i is the former client `order[i]`.

        A client keeps its samples, its group and its random generators, so the results of a method
        must be the same up to the ids. Newcomers keep their ids.
        """

        def relabel(samples: Samples) -> Samples:
            lists = {
                name: rows if name == "server" else RowLists.of(rows[client] for client in order)
                for name, rows in samples.splits.items()
            }
            return replace(samples, splits=lists, names=tuple(order))

        groups = None if self.groups is None else self.groups[list(order)]
        visible, held_out = relabel(self.visible), relabel(self.held_out)
        return replace(self, visible=visible, held_out=held_out, groups=groups)

    def with_test_as_validation(self) -> Federation:
        """The same federation with the test split in place of the validation split.

        Three of the reference protocols make decisions on test data; a method with the parameter
        `paper_leak` gets this federation, and its result says so.
        """
        offset = len(self.visible.y)
        hidden = self.held_out.splits["test"]
        test = hidden.numbered(hidden.rows + offset)
        visible = replace(
            self.visible,
            x=torch.cat([self.visible.x, self.held_out.x]),
            y=torch.cat([self.visible.y, self.held_out.y]),
            splits={**self.visible.splits, "validation": test},
        )
        return replace(self, visible=visible)


def server_indices(
    labels: Indices, wanted: int, generator: np.random.Generator, share: float = 0.1
) -> Indices:
    """Draw class-balanced samples for the server.

    Fewer than `wanted` are drawn if they exceed the `share` of the pool, or half of the samples of
    a label.

    Returns:
        Indices into the pool, ascending.
    """
    classes, counts = np.unique(labels, return_counts=True)
    limit = int(len(labels) * share + 1e-9)
    per_class = min(min(wanted, limit) // len(counts), int(counts.min()) // 2)
    drawn = [
        generator.permutation(np.flatnonzero(labels == label))[:per_class] for label in classes
    ]
    return np.sort(np.concatenate(drawn))


@dataclass(frozen=True)
class SplitRule:
    """How each client's samples are split into training, validation and test sets.

    Attributes:
        seed: the run's.
        test_fraction: share of a client's samples in its test set, unless it is given one.
        validation_fraction: share of the remaining samples in its validation set.
        stratified: whether each label has its share of both, or they are drawn by chance alone.
    """

    seed: int
    test_fraction: float
    validation_fraction: float
    stratified: bool = True

    def split(
        self,
        client: int,
        owned: Indices,
        labels: Indices,
        test: Indices | None,
        validation: Indices | None = None,
    ) -> dict[str, Indices]:
        """Samples of a client by the name of the split.

        Args:
            owned: its samples, shape (m,).
            labels: of all samples.
            test: its test samples, which are not among its own; None = a share of these.
            validation: its validation samples, likewise.

        Raises:
            UserError: they are too few.
        """
        validates = self.validation_fraction > 0 and validation is None
        parts = ["training"] + ["validation"] * validates + ["test"] * (test is None)
        if len(owned) < len(parts):
            raise UserError(
                f"client {client} has {len(owned)} samples: expected at least {len(parts)}"
                f" ({', '.join(parts)}); use fewer clients"
            )
        rest = owned
        if test is None:
            keep, own = self._share(labels[owned], self.test_fraction, "test-split", client)
            rest, test = owned[keep], owned[own]
        if validation is not None:
            return {"train": rest, "validation": validation, "test": test}
        if self.validation_fraction > 0 and len(rest) < 2:
            raise UserError(
                f"client {client} has {len(owned)} samples, {len(test)} of them test samples:"
                " none is left to validate on; use fewer clients or a smaller test_fraction"
            )
        train, validation = self._share(
            labels[rest], self.validation_fraction, "validation-split", client
        )
        return {"train": rest[train], "validation": rest[validation], "test": test}

    def _share(
        self, labels: Indices, fraction: float, name: str, client: int
    ) -> tuple[Indices, Indices]:
        kinds = labels if self.stratified else np.zeros_like(labels)
        return split_off(kinds, fraction, rng(self.seed, name, client))


@dataclass(frozen=True)
class Division:
    """Which samples of a data set each client has, and the server.

    Attributes:
        splits: "train", "validation" and "test": the samples of each client; perhaps "server": one
            list. Newcomers are the last clients.
        groups: true group per client, shape (N + M,), or None.
        newcomers: number of clients that do not take part in training, M.
    """

    splits: Mapping[str, list[Indices]]
    groups: Indices | None
    newcomers: int


def split_up(
    dataset: Dataset,
    partition: Partition,
    rule: SplitRule,
    *,
    server: Indices | None = None,
    newcomers: int = 0,
    tests: Sequence[Indices] | None = None,
    validations: Sequence[Indices] | None = None,
) -> Division:
    """Split every client's samples.

    Args:
        dataset: all samples.
        partition: indices into `dataset`.
        rule: how the samples of a client are split.
        server: samples of the server, which no client has.
        newcomers: number of clients, the last ones, that do not take part in training.
        tests: test samples of each client, which no client trains on; None = a share of its own.
        validations: validation samples of each client, likewise.

    Raises:
        UserError: a client has too few samples to split, or clients share samples and `tests` is
            None.
    """
    if tests is None:
        _refuse_shared(partition)
    labels = dataset.labels.numpy()
    split = [
        rule.split(
            client,
            owned,
            labels,
            None if tests is None else tests[client],
            None if validations is None else validations[client],
        )
        for client, owned in enumerate(partition.clients)
    ]
    splits = {name: [one[name] for one in split] for name in ("train", "validation", "test")}
    if server is not None and len(server):
        splits["server"] = [server]
    return Division(splits, partition.groups, newcomers)


def federated(dataset: Dataset, division: Division, gather: Gather = gathered) -> Federation:
    """Copy what is visible and what is held out to two pools.

    Args:
        division: of the data set.
        gather: copies samples from the data set to a pool.
    """
    splits, newcomers = division.splits, division.newcomers
    n = len(splits["train"]) - newcomers
    groups = None if division.groups is None else torch.as_tensor(division.groups)
    data, trained = data_hash(dataset), np.concatenate(splits["train"][:n])
    dataset, scale = prepared(replace(dataset, x=scaled(dataset, trained)), trained)
    pool = partial(_pool, dataset, gather)
    return Federation(
        visible=pool({name: lists[:n] for name, lists in splits.items() if name != "test"}),
        held_out=pool({"test": splits["test"][:n]}, knows_places=True),
        groups=None if groups is None else groups[:n].clone(),
        classes=dataset.classes,
        fingerprint={"data": data, "partition": _index_hash(splits)},
        newcomers=None
        if newcomers == 0
        else Newcomers(
            visible=pool({name: splits[name][n:] for name in ("train", "validation")}),
            held_out=pool({"test": splits["test"][n:]}),
            groups=None if groups is None else groups[n:].clone(),
        ),
        scaled={item: count for item in SCALARS if (count := scalars(item, dataset))},
        scale=scale,
    )


def _refuse_shared(partition: Partition) -> None:
    every = np.concatenate(partition.clients)
    if len(np.unique(every)) < len(every):
        raise UserError(
            "the partition gives samples to several clients, so one could be tested on what another"
            " trains on: set test_set to labels or proportional"
        )


def _pool(
    dataset: Dataset,
    gather: Gather,
    splits: Mapping[str, list[Indices]],
    *,
    knows_places: bool = False,
) -> Samples:
    """Copy the samples of the given splits into a pool of their own."""
    joined = {name: RowLists.of(lists) for name, lists in splits.items()}
    used, places = torch.unique(
        torch.cat([lists.rows for lists in joined.values()]), return_inverse=True
    )
    parts = places.split([len(lists.rows) for lists in joined.values()])
    rows = {
        name: lists.numbered(part)
        for (name, lists), part in zip(joined.items(), parts, strict=True)
    }
    known = used if knows_places else None
    return Samples(gather(dataset.x, used), gather(dataset.y, used), rows, places=known)


def label_counts(samples: Samples, classes: int) -> Tensor:
    """Training samples per client and label, shape (clients, C), int32; 0 without classes."""
    lists = samples.splits["train"]
    if task_of(samples.y) != "classes":
        return torch.zeros(len(lists), classes, dtype=torch.int32)
    labels = (
        samples.y[lists.rows].flatten(1) if samples.y.dim() > 1 else samples.y[lists.rows, None]
    )
    owners = torch.arange(len(lists)).repeat_interleave(lists.sizes)[:, None]
    places = owners.to(labels.device) * classes + labels
    counts = torch.bincount(places.flatten(), minlength=len(lists) * classes)
    return counts.view(-1, classes).int()


def data_hash(dataset: Dataset, *, samples_alone: bool = False) -> str:
    """The digest of a data set that results have: `fingerprint.data`.

    It is of samples and targets; where a person's own files are read also of whose they are, in
    which part, and how they are prepared, as files are edited.

    Args:
        samples_alone: never of more, as in results from before 0.3.0.
    """
    digest = hashlib.sha256(dataset.y.contiguous().numpy().data)
    digest.update(dataset.x.contiguous().numpy().data)
    if not samples_alone and opens_argument(dataset.name):
        for name in ("domains", "test", "domain_groups"):
            table = getattr(dataset, name)
            digest.update(name.encode())
            digest.update(b"" if table is None else table.contiguous().numpy().data)
        prepared_by = (dataset.gap, dataset.keeps_test, dataset.scaled, dataset.filled)
        digest.update(repr(prepared_by).encode())
    return digest.hexdigest()[:16]


def _index_hash(splits: Mapping[str, list[Indices]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(splits):
        for client, rows in enumerate(splits[name]):
            digest.update(f"{name}/{client}:".encode())
            digest.update(np.asarray(rows, dtype="<i8").tobytes())
    return digest.hexdigest()[:16]
