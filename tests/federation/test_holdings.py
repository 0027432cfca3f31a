"""Who has what, counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mentions import mentions

from flbench.core.dataset import Dataset
from flbench.federation.federation import Division
from flbench.federation.holdings import Holdings, headline, tables

Y = torch.tensor([0, 0, 1, 1, 1, 2, 2, 0, 1, 2])


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def holdings(groups: bool = True, **changes: Any) -> Holdings:
    """Two clients and a newcomer; the server has sample 8, nobody has sample 9."""
    x = torch.zeros(10, 2)
    data = Dataset("d", x, changes.pop("y", Y), 3, torch.arange(10) // 5, **changes)
    splits = {
        "train": [rows(0, 2), rows(1), rows(5)],
        "validation": [rows(3), rows(), rows(6)],
        "test": [rows(4), rows(7), rows()],
        "server": [rows(8)],
    }
    known = np.array([0, 1, 1]) if groups else None
    return Holdings.of(data, Division(splits, known, 1))


def test_samples_labels_and_domains_of_each_client() -> None:
    found = holdings(label_names=("a", "b", "c"))
    assert found.sizes.tolist() == [[2, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert found.labels is not None and found.domains is not None
    assert found.labels.tolist() == [[1, 2, 0], [1, 0, 0], [0, 0, 2]], "test samples are hidden"
    assert found.domains.tolist() == [[4, 0], [1, 1], [0, 2]]
    assert (found.newcomers, found.training_clients, found.server, found.unused) == (1, 2, 1, 1)
    assert found.domain_names == ("0", "1")


def test_the_line_and_the_tables_say_it() -> None:
    found = holdings(label_names=("a", "b", "c"))
    assert mentions(headline(found), "2 clients", "1 more", "server owns 1", "nobody has 1")
    shown = dict(tables(found))
    samples, *_ = shown["what a client has"]
    assert samples == {"": "samples", "least": 2, "median client": 2.0, "most": 4, "all": 8}
    columns = ("label", "samples", "clients that have it", "have none")
    labels = shown["labels of what is trained and validated on"]
    assert [tuple(row[name] for name in columns) for row in labels] == [
        ("a", 2, 2, 1), ("b", 2, 1, 2), ("c", 2, 1, 2),
    ]  # fmt: skip
    assert [row["samples"] for row in shown["domains"]] == [5, 3]
    assert [row["samples"] for row in shown["true groups"]] == [4, 4]
    assert "true groups" not in dict(tables(holdings(groups=False)))


def test_without_classes_there_are_sizes_alone() -> None:
    text = holdings(y=torch.zeros(10, 4, dtype=torch.int64))
    assert text.labels is None
    assert [title for title, _ in tables(text)] == ["what a client has", "domains", "true groups"]


def test_of_many_kinds_the_first_are_told() -> None:
    many = 50
    data = Dataset("d", torch.zeros(many, 1), torch.arange(many), many)
    splits = {"train": [np.arange(many)], "validation": [rows()], "test": [rows()]}
    titles = {
        title: len(found) for title, found in tables(Holdings.of(data, Division(splits, None, 0)))
    }
    assert titles == {
        "what a client has": 5,
        "labels of what is trained and validated on, the first 20 of 50": 20,
    }
