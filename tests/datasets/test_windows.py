"""Windows that overlap are found, whichever way time goes; other samples are no windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mentions import mentions

from flbench.core.dataset import Dataset
from flbench.datasets.windows import by_time, gap_of, sequence_of

SERIES = np.random.default_rng(0).normal(size=200)


@pytest.mark.parametrize(("step", "gap"), [(1, 9), (2, 4), (3, 3), (5, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_the_gap_is_the_least_after_which_nothing_is_shared(
    step: int, gap: int, turned: bool
) -> None:
    """Windows of 10 that start at `step * i`: i and j share values where step * (j - i) < 10."""
    rows = np.stack([SERIES[i : i + 10] for i in range(0, 150, step)])
    rows = rows[:, ::-1] if turned else rows
    shares = [bool(np.isin(rows[0], rows[k]).any()) for k in range(1, 12)]
    assert shares.index(False) == gap
    assert gap_of(rows, np.zeros(len(rows), dtype=np.int64)) == gap


@pytest.mark.parametrize("axis", [1, 2])
def test_several_series_beside_each_other(axis: int) -> None:
    two = np.stack([SERIES, SERIES**2], axis=1)
    rows = np.stack([two[i : i + 6] for i in range(40)])
    rows = rows if axis == 1 else rows.transpose(0, 2, 1)
    assert gap_of(rows, np.zeros(40, dtype=np.int64)) == 5


def test_other_samples_are_no_windows() -> None:
    draw, one = np.random.default_rng(1), np.zeros(50, dtype=np.int64)
    assert gap_of(draw.normal(size=(50, 10)), one) is None
    assert gap_of(np.zeros((50, 10)), one) is None, "constants are equal, and no windows"
    blocks = np.stack([SERIES[i : i + 10] for i in range(0, 200, 10)])
    assert gap_of(blocks, one[:20]) is None
    rows = np.stack([SERIES[i : i + 10] for i in range(50)])
    assert gap_of(draw.permutation(rows), one) is None
    assert gap_of(rows, np.arange(50)) is None, "each is another domain's"
    assert gap_of(rows, np.arange(50) % 2) == 4, "two domains, each with every second window"


# --- shuffled -----------------------------------------------------------------------------------


def windows(step: int = 1, length: int = 10, axes: int = 1) -> np.ndarray:
    series = SERIES if axes == 1 else np.stack([SERIES, SERIES[::-1]], axis=1)
    return np.stack([series[i : i + length] for i in range(0, 190, step)])


@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize("turned", [False, True])
def test_shuffled_windows_are_put_in_order_of_time_or_against_it(step: int, turned: bool) -> None:
    rows = windows(step)
    rows = rows[:, ::-1] if turned else rows
    mixed = np.random.default_rng(1).permutation(len(rows))
    found = sequence_of(rows[mixed], np.zeros(len(rows), dtype=np.int64))
    assert found is not None
    places = mixed[found[0]].tolist()
    assert places == sorted(places, reverse=turned)
    assert found[1] == -(-10 // step) - 1


@pytest.mark.parametrize("axis", [1, 2])
def test_shuffled_windows_of_several_series(axis: int) -> None:
    rows = windows(axes=2)
    rows = rows if axis == 1 else rows.transpose(0, 2, 1)
    mixed = np.random.default_rng(1).permutation(len(rows))
    found = sequence_of(rows[mixed], np.zeros(len(rows), dtype=np.int64))
    assert found is not None
    assert mixed[found[0]].tolist() == list(range(len(rows)))


def test_each_domain_is_put_in_order_in_its_own_places() -> None:
    rows, generator = windows(), np.random.default_rng(2)
    domains = np.arange(len(rows)) // 95
    mixed = generator.permutation(len(rows))
    found = sequence_of(rows[mixed], domains[mixed])
    assert found is not None
    order = found[0]
    assert (domains[mixed][order] == domains[mixed]).all()
    for domain in (0, 1):
        own = mixed[order][domains[mixed][order] == domain].tolist()
        assert own == sorted(own)


def test_pieces_between_which_windows_are_missing_are_joined() -> None:
    """Every seventh window is missing; what is left is in order all the same."""
    kept = np.array([k for k in range(190) if k % 7])
    rows = windows()[kept]
    mixed = np.random.default_rng(3).permutation(len(rows))
    found = sequence_of(rows[mixed], np.zeros(len(rows), dtype=np.int64))
    assert found is not None
    assert mixed[found[0]].tolist() == list(range(len(rows)))


@pytest.mark.parametrize("shuffled", [True, False])
def test_windows_at_uneven_distances_have_the_gap_of_the_densest(shuffled: bool) -> None:
    """A third of the windows, drawn: nothing is shared after the gap, and something before it."""
    kept = np.sort(np.random.default_rng(4).permutation(190)[:63])
    order = np.random.default_rng(3).permutation(63) if shuffled else np.arange(63)
    found = sequence_of(windows()[kept][order], np.zeros(63, dtype=np.int64))
    assert found is not None
    places, gap = kept[order[found[0]]], found[1]
    assert sorted(places) == kept.tolist()
    apart = np.abs(places[:, None] - places)
    rows = np.abs(np.arange(63)[:, None] - np.arange(63))
    assert (rows[apart <= 7] <= gap).all(), "those that share three values or more"
    assert gap < 9, "as many windows of 10 values would overlap if all were there"
    assert gap_of(windows()[kept][order], np.zeros(63, dtype=np.int64)) is None


def test_tables_of_few_values_are_no_windows() -> None:
    for seed in range(40):
        draw = np.random.default_rng(seed)
        for values, columns in ((2, 5), (2, 20), (3, 8), (10, 12)):
            table = draw.integers(0, values, (40, columns))
            assert sequence_of(table, np.zeros(40, dtype=np.int64)) is None
    columns = 6
    one_hot = np.eye(columns)[np.random.default_rng(0).integers(0, columns, 50)]
    assert sequence_of(one_hot, np.zeros(50, dtype=np.int64)) is None
    counting = np.arange(50)[:, None] + np.zeros((1, columns))
    assert sequence_of(counting, np.zeros(50, dtype=np.int64)) is None
    levels = np.random.default_rng(0).integers(0, 9, 60)
    ordinal = (np.arange(8) < levels[:, None]).astype(float)
    assert sequence_of(ordinal, np.zeros(60, dtype=np.int64)) is None
    one_row = np.tile(SERIES[:10], (50, 1))
    assert sequence_of(one_row, np.zeros(50, dtype=np.int64)) is None


def test_digits_are_no_windows() -> None:
    from sklearn.datasets import load_digits

    pixels = load_digits().data
    assert sequence_of(pixels, np.zeros(len(pixels), dtype=np.int64)) is None


def data_of(rows: np.ndarray) -> Dataset:
    numbers = torch.arange(len(rows))
    return Dataset("own:file", numbers[:, None].float(), numbers % 2, 2, test=numbers % 5 == 0)


def test_a_data_set_of_shuffled_windows_is_in_order_and_says_so() -> None:
    rows = windows()
    mixed = np.random.default_rng(1).permutation(len(rows))
    data = data_of(rows)
    found = by_time(data, rows[mixed])
    assert found.gap == 9
    assert mentions(found.notes, "order of time")
    order = found.x[:, 0].long()
    assert mixed[order].tolist() == list(range(len(rows)))
    assert torch.equal(found.y, order % 2)
    assert found.test is not None and torch.equal(found.test, order % 5 == 0)
    assert by_time(data, rows).notes != found.notes
    assert by_time(data, np.random.default_rng(0).normal(size=(190, 10))) is data
