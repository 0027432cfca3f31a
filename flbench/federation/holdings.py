"""Who has what: the samples of all clients, counted before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flbench.core.dataset import Dataset, Indices
from flbench.federation.federation import Division

SPLITS = {"train": "to train on", "validation": "to validate on", "test": "to test on"}
"""Splits of a client's samples, and what they are for."""
MOST = 20
"""Labels, domains and groups that are told one by one."""


@dataclass(frozen=True)
class Holdings:
    """What each client has; newcomers are the last ones.

    Attributes:
        sizes: samples by split, in the order of `SPLITS`, shape (N + M, 3).
        labels: samples to train and validate on by label, shape (N + M, C); None = the targets are
            no classes, or a label for each token of a text.
        domains: samples by domain, shape (N + M, D); None = there are no domains.
        groups: true group of each client, shape (N + M,); None = there are none.
        newcomers: clients that join after the last round, M.
        server: samples that the server owns.
        unused: samples that nobody has.
        label_names, domain_names: C and D names.
    """

    sizes: Indices
    labels: Indices | None
    domains: Indices | None
    groups: Indices | None
    newcomers: int
    server: int
    unused: int
    label_names: tuple[str, ...]
    domain_names: tuple[str, ...]

    @classmethod
    def of(cls, dataset: Dataset, division: Division) -> Holdings:
        """Count what a division of a data set gives to whom."""
        lists = [division.splits[split] for split in SPLITS]
        sizes = np.array([[len(rows) for rows in split] for split in lists]).T.astype(np.int64)
        seen = [np.concatenate(pair) for pair in zip(*lists[:2], strict=True)]
        everything = [np.concatenate(own) for own in zip(*lists, strict=True)]
        is_classes = dataset.task == "classes" and dataset.y.ndim == 1
        labels = counted(dataset.y.numpy(), seen, dataset.classes) if is_classes else None
        domains, count = None, 0
        if dataset.domains is not None:
            count = int(dataset.domains.max()) + 1
            domains = counted(dataset.domains.numpy(), everything, count)
        server = division.splits.get("server", [np.arange(0)])[0]
        held = np.unique(np.concatenate([*everything, server]))
        return cls(
            sizes, labels, domains, division.groups, division.newcomers, len(server),
            len(dataset.y) - len(held),
            dataset.label_names or tuple(map(str, range(dataset.classes))),
            dataset.domain_names or tuple(map(str, range(count))),
        )  # fmt: skip

    @property
    def training_clients(self) -> int:
        """Clients that train, N."""
        return len(self.sizes) - self.newcomers


def counted(kinds: Indices, clients: Sequence[Indices], count: int) -> Indices:
    """How many samples of each kind each client has, shape (clients, count).

    Example:
        >>> counted(np.array([0, 2, 2, 0]), [np.array([1, 2]), np.array([3])], 3).tolist()
        [[0, 0, 2], [1, 0, 0]]
    """
    owners = np.repeat(np.arange(len(clients)), [len(rows) for rows in clients])
    places = owners * count + kinds[np.concatenate([np.arange(0), *clients])]
    found: Indices = np.bincount(places, minlength=len(clients) * count)
    return found.reshape(len(clients), count)


def headline(holdings: Holdings) -> str:
    """Clients, newcomers, and samples that no client has, in one line."""
    text = f"{holdings.training_clients:,} clients train"
    if holdings.newcomers:
        text += f", {holdings.newcomers:,} more join after the last round"
    if holdings.server:
        text += f"; the server owns {holdings.server:,} samples"
    if holdings.unused:
        text += f"; nobody has {holdings.unused:,} samples"
    return text


TableRows = list[Mapping[str, object]]


def tables(holdings: Holdings) -> Iterator[tuple[str, TableRows]]:
    """The tables that say who has what: title and rows."""
    yield "what a client has", _of_clients(holdings)
    if holdings.labels is not None:
        what = "labels of what is trained and validated on"
        yield from _by_kind("label", holdings.labels, holdings.label_names, what)
    if holdings.domains is not None:
        yield from _by_kind("domain", holdings.domains, holdings.domain_names, "domains")
    if holdings.groups is not None:
        members = (holdings.groups[:, None] == np.unique(holdings.groups)).astype(np.int64)
        samples = members * holdings.sizes.sum(axis=1, keepdims=True)
        names = list(map(str, np.unique(holdings.groups)))
        yield from _by_kind("true group", samples, names, "true groups")


def _of_clients(holdings: Holdings) -> TableRows:
    """Least, median and most of samples, labels and domains."""
    columns = {"samples": holdings.sizes.sum(axis=1)}
    columns |= dict(zip(SPLITS.values(), holdings.sizes.T, strict=True))
    for what, counts in (("labels", holdings.labels), ("domains", holdings.domains)):
        if counts is not None:
            columns[what] = (counts > 0).sum(axis=1)
    return [
        {
            "": what,
            "least": int(values.min()),
            "median client": float(np.median(values)),
            "most": int(values.max()),
            "all": int(values.sum()) if what in ("samples", *SPLITS.values()) else None,
        }
        for what, values in columns.items()
    ]


def _by_kind(
    kind: str, counts: Indices, names: Sequence[str], title: str
) -> Iterator[tuple[str, TableRows]]:
    """Of each kind its samples, and how many clients have some, or have none."""
    having = (counts > 0).sum(axis=0)
    rows: TableRows = [
        {
            kind: name,
            "samples": int(samples),
            "clients that have it": int(some),
            "have none": len(counts) - int(some),
        }
        for name, samples, some in zip(names, counts.sum(axis=0), having, strict=True)
    ]
    if rows:
        more = f", the first {MOST} of {len(rows):,}" if len(rows) > MOST else ""
        yield f"{title}{more}", rows[:MOST]
