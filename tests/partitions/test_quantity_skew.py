"""Quantity skew: sizes follow the Dirichlet distribution, labels are those of all samples."""

from __future__ import annotations

import numpy as np
import pytest
from mentions import mention, mentions

from flbench.errors import UserError
from flbench.partitions.quantity_skew import quantity_skew

LABELS = np.arange(3000, dtype=np.int64) % 10


def sizes(seed: int, clients: int = 6, **settings: float) -> np.ndarray:
    found = quantity_skew(LABELS, None, clients, np.random.default_rng(seed), **settings)  # type: ignore[arg-type]
    assert sorted(np.concatenate(found.clients).tolist()) == list(range(3000)), "each sample once"
    assert found.groups is not None
    assert not found.groups.any(), "all are in one group"
    return np.array([len(rows) for rows in found.clients])


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.5, 5.0])
def test_sizes_have_the_moments_of_the_distribution(beta: float) -> None:
    """Without a least size: mean m / N, variance m^2 (N - 1) / (N^2 (N beta + 1))."""
    found = np.array([sizes(seed, beta=beta, min_samples=1) for seed in range(400)]) / 3000
    variance = 5 / (36 * (6 * beta + 1))
    assert found.mean(axis=0) == pytest.approx(1 / 6, abs=5 * np.sqrt(variance / 400))
    assert found.var() == pytest.approx(variance, rel=0.12)


def test_labels_are_those_of_all_samples() -> None:
    """Chi-square of each client against equal labels, summed: 6 clients of 9 degrees."""
    found = quantity_skew(LABELS, None, 6, np.random.default_rng(3), beta=1.0)
    statistic = 0.0
    for rows in found.clients:
        counts = np.bincount(LABELS[rows], minlength=10)
        statistic += ((counts - len(rows) / 10) ** 2 / (len(rows) / 10)).sum()
    assert statistic < 54 + 5 * np.sqrt(108)


def test_everybody_has_the_least_number_and_large_beta_gives_equal_sizes() -> None:
    assert sizes(0, clients=60, beta=0.3).min() >= 10
    assert np.abs(sizes(0, beta=1e6) - 500).max() < 20


def test_where_no_draw_suffices_the_largest_give(caplog: pytest.LogCaptureFixture) -> None:
    found = sizes(0, beta=1e-9)
    assert sorted(found) == [10] * 5 + [2950]
    (line,) = [record.getMessage() for record in caplog.records]
    assert mentions(line, "quantity-skew", "1000 draws", "6 clients", "50 samples")


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(UserError, match=mention(39, "4 clients", "min_samples")):
        quantity_skew(LABELS[:39], None, 4, np.random.default_rng(0))
