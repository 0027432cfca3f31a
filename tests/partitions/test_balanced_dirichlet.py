"""Balanced Dirichlet: equal sizes, every sample once, labels by shares that each client draws."""

from __future__ import annotations

import numpy as np
import pytest
from mentions import mention

from flbench.errors import UserError
from flbench.partitions.balanced_dirichlet import balanced_dirichlet, drawn_counts
from flbench.partitions.shares import log_shares

LABELS = np.random.default_rng(5).permutation(np.arange(1003, dtype=np.int64) % 10)


def counts(alpha: float, clients: int = 20, seed: int = 0) -> np.ndarray:
    found = balanced_dirichlet(LABELS, None, clients, np.random.default_rng(seed), alpha)
    assert sorted(np.concatenate(found.clients).tolist()) == list(range(1003)), "each sample once"
    assert found.groups is None
    return np.array([np.bincount(LABELS[rows], minlength=10) for rows in found.clients])


@pytest.mark.parametrize("alpha", [1e-9, 0.1, 1.0, 1e6])
def test_clients_are_of_one_size_whatever_alpha_is(alpha: float) -> None:
    assert sorted(counts(alpha).sum(axis=1)) == [50] * 17 + [51] * 3


def test_small_alphas_give_few_labels_and_large_ones_all() -> None:
    held = [(counts(alpha) > 0).sum(axis=1).mean() for alpha in (1e-9, 0.1, 1.0, 1e6)]
    assert held == sorted(held)
    assert held[0] < 2.5, "one, and more where a label is used up"
    assert held[-1] > 9.5


@pytest.mark.parametrize("alpha", [0.1, 1.0, 20.0])
def test_labels_are_drawn_by_shares_of_the_distribution(alpha: float) -> None:
    """Of k labels without end, n draws: E sum (c / n)^2 = 1/n + (1 - 1/n) (a + 1) / (k a + 1)."""
    k, n, clients = 5, 40, 4000
    generator = np.random.default_rng(0)
    logs = log_shares(alpha, (clients, k), generator)
    found = drawn_counts(logs, np.full(clients, n), np.full(k, n * clients), generator)
    assert (found.sum(axis=1) == n).all()
    expected = 1 / n + (1 - 1 / n) * (alpha + 1) / (k * alpha + 1)
    assert ((found / n) ** 2).sum(axis=1).mean() == pytest.approx(expected, rel=0.02)
    assert found.mean(axis=0) == pytest.approx(n / k, rel=0.05)


def test_of_a_label_that_is_wanted_by_more_than_there_are_anybody_may_have_some() -> None:
    """Two clients want nothing but label 0, of which there are 10 for 20."""
    first = []
    for seed in range(300):
        logs = np.array([[0.0, -1e9], [0.0, -1e9]])
        generator = np.random.default_rng(seed)
        found = drawn_counts(logs, np.array([10, 10]), np.array([10, 10]), generator)
        assert found.sum(axis=0).tolist() == [10, 10]
        assert found.sum(axis=1).tolist() == [10, 10]
        first.append(found[0, 0])
    assert np.mean(first) == pytest.approx(5, abs=0.4)
    assert np.var(first) == pytest.approx(10 * 0.25 * 10 / 19, rel=0.3), "hypergeometric"


def test_fewer_samples_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match=mention("3 samples", "4 clients", "1 each")):
        balanced_dirichlet(LABELS[:3], None, 4, np.random.default_rng(0))
