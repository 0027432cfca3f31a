"""What is asked about a person's own numbers, whatever kind of file they are in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mentions import mentions

from flbench.core.dataset import Dataset
from flbench.datasets.doubts import doubts
from flbench.federation.loading import load_dataset

MEASURED = [(7 * row) % 31 / 10 for row in range(124)]


def numbers(y: list[float], owners: list[int] | None = None, **fields: object) -> Dataset:
    """A table of two features that never repeat, with numbers to predict."""
    x = torch.randn(len(y), 2, generator=torch.Generator().manual_seed(0))
    made = Dataset(
        "mine", x, torch.tensor(y), 1, None if owners is None else torch.tensor(owners),
        task="numbers", label_names=("kg",), keeps_test=True,
    )  # fmt: skip
    return made if not fields else Dataset(**{**vars(made), **fields})


@pytest.mark.parametrize(
    ("more", "told"),
    [([], 0), ([1e6], 1), ([-1e6], 1), ([1e6] * 20, 0), ([99_999.0] * 2, 0), ([99_999.0], 1)],
)
def test_few_numbers_far_from_the_others(more: list[float], told: int) -> None:
    """Twenty are no mistake; several of nines stand for what is missing, of which a table says."""
    found = doubts(numbers([*MEASURED, *more]))
    assert len(found) == told
    assert all(mentions([one], "target kg", "1,000 times", "1 in all") for one in found)


def test_numbers_of_all_sizes_are_none() -> None:
    assert doubts(numbers([10 ** (row / 20) for row in range(124)])) == []


def test_a_far_number_of_a_feature_and_a_gap(tmp_path: Path) -> None:
    data = numbers(MEASURED)
    data.x[3, 1], data.x[4, 0] = 1e9, float("nan")
    assert mentions(doubts(data), "number 2 of a sample", "1 in all")
    assert mentions(doubts(Dataset(**{**vars(data), "features": ("a (numbers)", "b (numbers)")})),
                    "feature b has")  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "told"),
    [([1, 1, 1, 1000], 1), ([1, 1, 1, 0.001], 1), ([1, 1, 1, 20], 0), ([1, 1000], 0),
     ([1, 1, 1000, 1000], 0), ([0, 0, 0, 1000], 0)],
)  # fmt: skip
def test_a_client_in_another_unit(sizes: list[float], told: int) -> None:
    """Of three clients or more, where most agree; a zero is in all units."""
    owners = [row % len(sizes) for row in range(120)]
    y = [sizes[owner] * (1 + row // len(sizes) % 5) for row, owner in enumerate(owners)]
    found = [one for one in doubts(numbers(y, owners)) if "unit" in one]
    assert len(found) == told
    assert all(mentions([one], f"client {len(sizes) - 1}") for one in found)


def test_a_client_that_says_the_label() -> None:
    owners = [row % 3 for row in range(30)]
    for labels, told in (([0, 1, 1], 1), ([1, 1, 1], 0)):
        y = torch.tensor([labels[owner] for owner in owners])
        made = Dataset("mine", torch.randn(30, 2), y, 2, torch.tensor(owners), keeps_test=True)
        assert sum("one label alone" in one for one in doubts(made)) == told
    y[0] = 1 - y[0]
    assert (
        doubts(Dataset("mine", torch.randn(30, 2), y, 2, torch.tensor(owners), keeps_test=True))
        == []
    )


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_they_are_asked_of_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    y = [*MEASURED, 1e6]
    x = np.random.default_rng(0).normal(size=(len(y), 1)).astype(np.float32)
    if kind == "npz":
        np.savez(tmp_path / "mine.npz", x=x, y=np.array(y))
        name = f"npz:{tmp_path / 'mine.npz'}?task=numbers"
    else:
        lines = ["a,kg", *(f"{a:g},{one:g}" for (a,), one in zip(x.tolist(), y, strict=True))]
        (tmp_path / "mine.csv").write_text("\n".join(lines), encoding="utf-8")
        name = f"csv:{tmp_path / 'mine.csv'}?label=kg&task=numbers"
    assert mentions(doubts(load_dataset(name, tmp_path)), "target", "1e+06", "1 in all")


def test_data_of_packages_are_not_asked_about() -> None:
    assert doubts(numbers([*MEASURED, 1e6], keeps_test=False)) == []
