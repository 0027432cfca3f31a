"""Make a data set of the columns of a federation: numbers first, then categories as 0 and 1.

A sample is a row `[numbers, one-hot code of the first category, of the second, ...]`, float32. The
numbers are as they were measured; the federation scales them by the training samples when it is
divided (`Dataset.scaled`), where NaN becomes the mean. Categories have fixed values, so the network
`embedded-mlp` knows their widths from the suite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flbench.core.dataset import Dataset
from flbench.datasets.natural.packaged import PackagedColumns

Cells = npt.NDArray[Any]


@dataclass(frozen=True)
class TidyTable:
    """The samples of a federation as columns, each of shape (m,).

    Attributes:
        label: texts; or float64, the number that is predicted.
        client: who has the sample, texts.
        numbers: columns of numbers by name; NaN = missing.
        categories: columns of texts by name, "" = missing, which is a category of its own.
        test: whether it is of the test part; None = suites draw one.
        group: true group of the sample's client, texts; None = not known.
        labels: the labels in their order, () = sorted; of a number its name.
        values: of a category the values in their order, where these are not sorted.
        notes: what was left out, one sentence each.
    """

    label: Cells
    client: Cells
    numbers: Mapping[str, Cells] = field(default_factory=dict)
    categories: Mapping[str, Cells] = field(default_factory=dict)
    test: Cells | None = None
    group: Cells | None = None
    labels: Sequence[str] = ()
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def built(name: str, rows: TidyTable) -> Dataset:
    """The data set of some rows; every client is a domain."""
    is_number = rows.label.dtype.kind == "f"
    labels, y = (rows.labels, rows.label) if is_number else coded(rows.label, rows.labels)
    clients, domains = coded(rows.client)
    parts = [np.asarray(column, dtype=np.float64)[:, None] for column in rows.numbers.values()]
    features = [f"{column} (numbers)" for column in rows.numbers]
    for column, texts in rows.categories.items():
        found, places = coded(texts, rows.values.get(column, ()))
        parts.append(np.eye(len(found))[places])
        features.append(f"{column} ({len(found)} texts)")
    groups: tuple[str, ...] = ()
    of_domain = None
    if rows.group is not None:
        groups, places = coded(rows.group)
        first = np.unique(domains, return_index=True)[1]
        of_domain = torch.from_numpy(places[first])
    return Dataset(
        name,
        torch.from_numpy(np.concatenate(parts, axis=1, dtype=np.float32)),
        torch.from_numpy(y.astype(np.float32) if is_number else y),
        len(labels),
        torch.from_numpy(domains),
        None if rows.test is None else torch.from_numpy(np.asarray(rows.test, dtype=bool)),
        label_names=tuple(labels),
        domain_names=clients,
        features=tuple(features),
        notes=rows.notes,
        keeps_test=rows.test is not None,
        scaled=tuple(range(len(rows.numbers))),
        task="numbers" if is_number else "classes",
        domain_groups=of_domain,
        group_names=groups,
    )


def coded(texts: Cells, names: Sequence[str] = ()) -> tuple[tuple[str, ...], Cells]:
    """The different texts, and the number of each row's text, shape (m,), int64.

    Args:
        texts: shape (m,).
        names: all of them in their order; () = those that there are, sorted.

    Example:
        >>> coded(np.array(["b", "a", "b"]))[1].tolist(), coded(np.array(["b"]), ["c", "b"])[1]
        ([1, 0, 1], array([1]))
    """
    found, places = np.unique(texts, return_inverse=True)
    if names:
        place = {name: number for number, name in enumerate(names)}
        places = np.array([place[one] for one in found.tolist()], dtype=np.int64)[places]
        return tuple(names), places
    return tuple(map(str, found.tolist())), places.astype(np.int64)


def whole(column: Cells) -> Cells:
    """Whole numbers as texts, shape (m,); "" = missing.

    Example:
        >>> whole(np.array([3.0, np.nan])).tolist()
        ['3', '']
    """
    return np.array(["" if np.isnan(one) else str(int(one)) for one in column.tolist()], np.str_)


def chosen(columns: PackagedColumns, rows: Cells) -> PackagedColumns:
    """Some rows of all columns: a mask, shape (m,), or places."""
    return {name: column[rows] for name, column in columns.items()}


def last_share(client: Cells, share: float) -> Cells:
    """Mask of the last rows of each client, a share of them, rounded, one at least, shape (m,).

    Example:
        >>> last_share(np.array(list("aaaabb")), 0.25).astype(int).tolist()
        [0, 0, 0, 1, 0, 1]
    """
    _, places, counts = np.unique(client, return_inverse=True, return_counts=True)
    order = np.argsort(places, kind="stable")
    rank = np.empty(len(client), dtype=np.int64)
    starts = np.cumsum(counts) - counts
    rank[order] = np.arange(len(client)) - np.repeat(starts, counts)
    late: Cells = rank >= (counts - np.maximum(1, np.round(share * counts)))[places]
    return late


def thirds(values: Cells, block: Cells, of: Cells) -> Cells:
    """`low`, `mid` or `high`, shape (m,): where a value lies among those of its block.

    Args:
        values: numbers, shape (m,).
        block: of each row, in which thirds are counted apart, shape (m,).
        of: mask of the rows that the thirds are of, such as those of the training part.
    """
    found = np.empty(len(values), dtype=np.int64)
    for one in np.unique(block):
        rows = block == one
        found[rows] = np.searchsorted(np.quantile(values[rows & of], [1 / 3, 2 / 3]), values[rows])
    texts: Cells = np.array(THIRDS, dtype=np.str_)[found]
    return texts


THIRDS = ("low", "mid", "high")


def standing(values: Cells, block: Cells, of: Cells) -> Cells:
    """How many deviations a value is above the mean of its block, shape (m,); as `thirds`."""
    found = np.empty(len(values))
    for one in np.unique(block):
        rows = block == one
        known = values[rows & of]
        found[rows] = (values[rows] - known.mean()) / known.std()
    return found


def with_enough(client: Cells, least: int) -> Cells:
    """Mask of the rows whose client has so many rows or more, shape (m,)."""
    _, places, counts = np.unique(client, return_inverse=True, return_counts=True)
    enough: Cells = counts[places] >= least
    return enough


def shares(mask: Cells, group: Cells) -> Cells:
    """The share of a row's group of which the mask is true, shape (m,).

    Example:
        >>> shares(np.array([True, False, True]), np.array(["a", "a", "b"])).tolist()
        [0.5, 0.5, 1.0]
    """
    _, places, counts = np.unique(group, return_inverse=True, return_counts=True)
    found: Cells = (np.bincount(places, mask) / counts)[places]
    return found
