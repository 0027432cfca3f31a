"""Statistics of label counts, by hand and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import entropy, wasserstein_distance

from flbench.metrics import clustering_error
from flbench.toolbox.heterogeneity import earth_movers, kld, label_overlap_truth, mean_kld, summary


def some_counts(clients: int = 12, labels: int = 7, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 40, (clients, labels)) * (rng.random((clients, labels)) < 0.5)


def test_kld_of_the_papers_two_distributions_by_hand() -> None:
    counts = np.array([[1, 1], [3, 1]])  # (.5, .5) and (.75, .25)
    one_way = [0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)]
    one_way.append(0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.5))
    assert one_way == pytest.approx([0.143841, 0.130812], abs=1e-6)
    found = kld(counts, smoothing=0)
    assert found[0, 1] == pytest.approx(0.137327, abs=1e-6)
    assert found.tolist() == found.T.tolist()
    assert mean_kld(counts, smoothing=0) == pytest.approx(0.137327, abs=1e-6)


def test_half_a_sample_is_added_to_every_count() -> None:
    counts = np.array([[4, 0], [0, 1]])  # (.9, .1) and (.25, .75)
    expected = ((0.9 - 0.25) * np.log(0.9 / 0.25) + (0.1 - 0.75) * np.log(0.1 / 0.75)) / 2
    assert kld(counts)[0, 1] == pytest.approx(expected)
    assert mean_kld(counts) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.5, 1.0, 1e-3])
def test_kld_agrees_with_scipys_entropy(smoothing: float) -> None:
    counts = some_counts() + 0.0
    found = kld(counts, smoothing)
    for i, p in enumerate(counts + smoothing):
        for j, q in enumerate(counts + smoothing):
            assert found[i, j] == pytest.approx((entropy(p, q) + entropy(q, p)) / 2, abs=1e-12)


def test_the_mean_is_over_unordered_pairs_of_different_clients() -> None:
    counts = some_counts(9, 5, 3)
    pairs = kld(counts)[np.triu_indices(9, 1)]
    assert len(pairs) == 36
    assert mean_kld(counts) == pytest.approx(pairs.mean(), rel=1e-12)


def test_without_smoothing_a_label_only_one_of_two_holds_is_infinitely_far() -> None:
    counts = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1]])
    assert kld(counts, 0).tolist() == [[0, 0, np.inf], [0, 0, np.inf], [np.inf, np.inf, 0]]
    assert mean_kld(counts, 0) == np.inf
    assert kld(counts[:2], 0).tolist() == [[0, 0], [0, 0]], "a label that nobody holds is no label"
    assert mean_kld(counts[:2], 0) == 0


def test_a_client_without_samples_needs_smoothing() -> None:
    counts = np.array([[1, 1], [0, 0]])
    assert mean_kld(counts) == 0, "half a sample of each"
    for function in (kld, mean_kld):
        with pytest.raises(ValueError, match="client 1 has no samples"):
            function(counts, smoothing=0)


def test_one_client_differs_from_nobody() -> None:
    assert mean_kld(np.array([[3, 1]])) == 0
    assert kld(np.array([[3, 1]])).tolist() == [[0]]


def test_equal_clients_do_not_differ_and_no_divergence_is_negative() -> None:
    counts = np.tile([[7, 1, 3]], (50, 1))
    assert mean_kld(counts) == pytest.approx(0, abs=1e-12)
    assert mean_kld(counts) >= 0
    assert (kld(counts) >= 0).all()
    assert np.diag(kld(some_counts())).tolist() == [0] * 12


def test_earth_movers_distance_is_half_the_difference_to_all_samples() -> None:
    counts = np.array([[10, 0, 0], [0, 5, 5]])  # all: (.5, .25, .25)
    assert earth_movers(counts).tolist() == [0.5, 0.5]
    counts = np.array([[30, 0], [0, 10]])  # all: (.75, .25)
    assert earth_movers(counts).tolist() == [0.25, 0.75]


def test_earth_movers_distance_of_two_labels_agrees_with_scipy() -> None:
    counts = some_counts(8, 2, 5) + 1  # of two labels, one step apart, the order means nothing
    whole = counts.sum(axis=0)
    expected = [wasserstein_distance([0, 1], [0, 1], mine, whole) for mine in counts]
    assert earth_movers(counts) == pytest.approx(expected)


def test_two_of_two_labels_overlap_from_one_and_three_from_two_on() -> None:
    counts = np.zeros((4, 6), dtype=np.int64)
    for client, labels in enumerate(([0, 1], [1, 2], [0, 1, 2], [2, 3, 4])):
        counts[client, labels] = 5
    assert label_overlap_truth(counts).astype(int).tolist() == [
        [1, 1, 1, 0],
        [1, 1, 1, 1],
        [1, 1, 1, 0],
        [0, 0, 0, 1],
    ]


def test_the_truth_is_what_the_definition_says_client_by_client() -> None:
    counts = some_counts(20, 6, 8)
    labels = [set(np.flatnonzero(mine)) for mine in counts]
    found = label_overlap_truth(counts)
    for i, mine in enumerate(labels):
        for j, theirs in enumerate(labels):
            assert found[i, j] == (len(mine & theirs) >= (len(mine) + 1) // 2)
    assert clustering_error(found, found)["error"] == 0, "it fits the metric"


def test_numbers_of_samples_do_not_matter_to_the_truth() -> None:
    counts = some_counts()
    assert np.array_equal(label_overlap_truth(counts), label_overlap_truth(counts * 1000))


@pytest.mark.slow
def test_ten_thousand_clients_are_no_trouble() -> None:
    counts = some_counts(10_000, 10) + 1
    assert 0 < mean_kld(counts) < 10
    assert earth_movers(counts).shape == (10_000,)
    assert label_overlap_truth(counts[:2000]).all()
    assert kld(counts[:2000]).shape == (2000, 2000)


def test_the_summary_says_what_it_is_of() -> None:
    found = summary(np.array([[4, 0], [1, 3], [0, 6]]))
    assert list(found.values())[:3] == [
        "3",
        "min 4, median 4, max 6",
        "min 1, median 1, max 2",
    ]
    assert found["mean KL divergence of two clients"].endswith(" nats")
