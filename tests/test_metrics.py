"""Metrics: numbers that were computed by hand (T27, T28)."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.metrics import (
    accuracy_summary,
    clustering_error,
    clustering_summary,
    link_seconds,
    megabits_per_client,
)
from flbench.models.lenet5 import build


def test_accuracy_over_clients_by_hand() -> None:
    found = accuracy_summary(np.array([3, 1, 8]), np.array([4, 2, 8]))  # .75, .5, 1
    assert found["accuracy_mean"] == 0.75
    assert found["accuracy_micro"] == pytest.approx(12 / 14)
    assert found["accuracy_std_clients"] == pytest.approx((0.125 / 3) ** 0.5), "ddof=0"
    assert found["accuracy_worst_decile"] == pytest.approx(0.55), "a fifth of the way .5 to .75"
    assert found["accuracy_worst"] == 0.5
    assert set(map(type, found.values())) == {float}
    assert len(found) == 5


def test_the_worst_decile_of_eleven_clients_is_the_second_worst() -> None:
    correct = np.array([100, 0, 90, 80, 70, 60, 50, 40, 30, 20, 10])
    found = accuracy_summary(correct, np.full(11, 100))
    assert found["accuracy_worst_decile"] == pytest.approx(0.1)
    assert found["accuracy_worst"] == 0.0


def test_mean_and_micro_agree_where_test_sets_are_equally_large() -> None:
    found = accuracy_summary(np.array([3, 1, 4]), np.array([5, 5, 5]))
    assert found["accuracy_mean"] == pytest.approx(found["accuracy_micro"])


def test_a_round_of_fedavg_with_lenet5_costs_what_flis_prints() -> None:  # T27
    scalars = sum(parameter.numel() for parameter in build((3, 32, 32), 10).parameters())
    assert scalars == 62_006
    bytes_moved = scalars * 4 * 2 * 10  # float32, down and up, ten of a hundred clients
    assert megabits_per_client(bytes_moved, 100) == pytest.approx(0.396838, abs=5e-7)
    assert megabits_per_client(200 * bytes_moved, 100) == pytest.approx(79.36, abs=0.01)
    assert megabits_per_client(0, 7) == 0.0


def test_one_model_takes_a_second_on_a_2_mbps_link() -> None:  # T27
    assert link_seconds(62_006 * 4) == pytest.approx(0.992096, abs=1e-12)
    assert link_seconds(62_006 * 4, bits_per_second=4e6) == pytest.approx(0.496048, abs=1e-12)


def test_clustering_error_of_the_example_is_two_thirds() -> None:  # T28
    truth = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], bool)
    chosen = np.array([[1, 0, 0], [1, 1, 1], [0, 0, 1]], bool)
    found = clustering_error(truth, chosen)
    assert found["error"] == pytest.approx(2 / 3)
    assert found["false_positives"] == pytest.approx(1 / 3)
    assert found["false_negatives"] == pytest.approx(1 / 3)


def test_false_positives_and_negatives_are_told_apart() -> None:
    truth = np.array([[1, 0], [0, 1]], bool)
    everybody = np.ones((2, 2), bool)
    assert clustering_error(truth, everybody) == {
        "error": 1.0, "false_positives": 1.0, "false_negatives": 0.0,
    }  # fmt: skip
    assert clustering_error(everybody, truth) == {
        "error": 1.0, "false_positives": 0.0, "false_negatives": 1.0,
    }  # fmt: skip
    assert clustering_error(truth, truth)["error"] == 0.0


def test_a_relabelled_partition_is_the_same_partition() -> None:  # T28
    truth = np.array([0, 0, 1, 1, 2, 2])
    found = clustering_summary(np.array([7, 7, 0, 0, 3, 3]), truth)
    assert found["groups"] == 3
    assert found["ari"] == pytest.approx(1.0)
    assert found["nmi"] == pytest.approx(1.0)


def test_the_agreement_of_two_partitions_by_hand() -> None:
    truth = np.array([0, 0, 0, 1, 1, 1])
    found = clustering_summary(np.array([0, 0, 1, 1, 2, 2]), truth)
    # pairs: together in both 2, in the truth 6, in the labels 3, of 15
    expected = 6 * 3 / 15
    assert found["ari"] == pytest.approx((2 - expected) / ((6 + 3) / 2 - expected))
    everybody = clustering_summary(np.zeros(6, dtype=np.int64), truth)
    assert (everybody["groups"], everybody["ari"]) == (1, 0.0)
    assert everybody["nmi"] == pytest.approx(0.0)


def test_the_undecided_count_as_a_group() -> None:
    assert clustering_summary(np.array([0, -1, 0, -1]), None)["groups"] == 2


def test_without_true_groups_there_is_nothing_to_agree_with() -> None:  # T28
    found = clustering_summary(np.array([0, 1, 1]), None)
    assert found == {"groups": 2, "ari": None, "nmi": None}
