"""Extended Dirichlet: each client has C labels, and each label is divided by shares."""

from __future__ import annotations

import numpy as np
import pytest
from mentions import mention

from flbench.errors import UserError
from flbench.partitions.extended_dirichlet import extended_dirichlet

LABELS = np.random.default_rng(5).permutation(np.arange(2000, dtype=np.int64) % 10)


def counts(seed: int = 0, clients: int = 30, **settings: float) -> np.ndarray:
    generator = np.random.default_rng(seed)
    found = extended_dirichlet(LABELS, None, clients, generator, **settings)  # type: ignore[arg-type]
    assert sorted(np.concatenate(found.clients).tolist()) == list(range(2000)), "each sample once"
    return np.array([np.bincount(LABELS[rows], minlength=10) for rows in found.clients])


@pytest.mark.parametrize("alpha", [1e-9, 0.1, 1e6])
@pytest.mark.parametrize("classes", [1, 3, 10])
def test_each_client_has_exactly_so_many_labels(classes: int, alpha: float) -> None:
    found = counts(classes=classes, alpha=alpha)
    assert ((found > 0).sum(axis=1) == classes).all()
    assert (found.max(axis=0) > 1).all()


def test_without_a_least_number_they_have_at_most_so_many() -> None:
    held = (counts(classes=5, alpha=0.2, least=0) > 0).sum(axis=1)
    assert 1 <= held.min() < held.max() <= 5


def test_a_label_is_divided_by_shares_of_the_distribution() -> None:
    """All 30 clients have label k: variance of a share (30 - 1) / (30^2 (30 alpha + 1))."""
    alpha = 0.5
    shares = np.concatenate(
        [counts(seed, classes=10, alpha=alpha, least=0) / 200 for seed in range(60)]
    )
    assert shares.mean() == pytest.approx(1 / 30)
    assert shares.var() == pytest.approx(29 / (900 * (30 * alpha + 1)), rel=0.1)


def test_large_alphas_divide_evenly() -> None:
    found = counts(clients=10, classes=10, alpha=1e6)
    assert np.abs(found - 20).max() <= 1


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"classes": 11}, ("classes=11", 10)),
        ({"classes": 10, "least": 7}, ("label 0", 200, "30 clients", 7)),
        ({"classes": 1, "alpha": 1e-9, "least": 0}, ("30 clients", "least=1")),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, float], facts: tuple[object, ...]) -> None:
    with pytest.raises(UserError, match=mention("extended-dirichlet", *facts)):
        counts(**settings)
