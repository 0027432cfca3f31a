"""Metrics: numbers that were computed by hand (T27, T28)."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

from flbench.metrics import (
    BINS,
    METRICS,
    Measurements,
    calibration_error,
    churn,
    clustering_error,
    clustering_summary,
    columns_of,
    computed,
    flis_compat,
    link_seconds,
    mean_churn,
    measured,
    megabits_per_client,
    metrics_of,
    perplexity,
    to_target,
)
from flbench.models.lenet5 import build


def accuracies(correct: Any, tested: Any) -> dict[str, Any]:
    """The metrics that need nothing but right answers."""
    found = computed(Measurements(correct, tested, np.zeros(len(tested))))
    names = ("mean", "micro", "std_clients", "worst_decile", "worst")
    return {f"accuracy_{name}": found[f"accuracy_{name}"] for name in names}


def test_accuracy_over_clients_by_hand() -> None:
    found = accuracies(np.array([3, 1, 8]), np.array([4, 2, 8]))  # .75, .5, 1
    assert found["accuracy_mean"] == 0.75
    assert found["accuracy_micro"] == pytest.approx(12 / 14)
    assert found["accuracy_std_clients"] == pytest.approx((0.125 / 3) ** 0.5), "ddof=0"
    assert found["accuracy_worst_decile"] == pytest.approx(0.55), "a fifth of the way .5 to .75"
    assert found["accuracy_worst"] == 0.5
    assert set(map(type, found.values())) == {float}


def test_the_worst_decile_of_eleven_clients_is_the_second_worst() -> None:
    correct = np.array([100, 0, 90, 80, 70, 60, 50, 40, 30, 20, 10])
    found = accuracies(correct, np.full(11, 100))
    assert found["accuracy_worst_decile"] == pytest.approx(0.1)
    assert found["accuracy_worst"] == 0.0


@pytest.mark.parametrize(
    ("correct", "expected"),
    [
        (range(20), 18.5 / 20 - 0.5 / 20),  # two best: 18 and 19 of 20; two worst: 0 and 1
        ([3, 19, 7], 16 / 20),  # a decile of three clients is one client
        ([*range(10), 20], 14.5 / 20 - 0.5 / 20),  # of eleven two: 20 and 9, 0 and 1
        ([4, 4, 4], 0.0),
    ],
)
def test_the_gap_between_the_best_and_the_worst_decile(correct: Any, expected: float) -> None:
    found = np.array([*correct])
    every = computed(Measurements(found, np.full(len(found), 20), np.zeros(len(found))))
    assert every["accuracy_decile_gap"] == pytest.approx(expected)


def test_mean_and_micro_agree_where_test_sets_are_equally_large() -> None:
    found = accuracies(np.array([3, 1, 4]), np.array([5, 5, 5]))
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


@pytest.mark.parametrize("truth", [[0, 0, 0, 1, 1, 1], [4, 2, 2, 7, 2, 7], [0, 0, 0, 0, 0, 1]])
def test_one_group_is_what_scikit_learn_says_of_it(truth: list[int]) -> None:
    everybody = np.zeros(6, dtype=np.int64)
    found = clustering_summary(everybody, np.array(truth))
    assert found["ari"] == adjusted_rand_score(truth, everybody) == 0.0
    assert found["nmi"] == normalized_mutual_info_score(truth, everybody) == 0.0
    assert found["purity"] == contingency_matrix(truth, everybody).max() / 6


def test_one_group_is_right_where_there_is_one() -> None:
    found = clustering_summary(np.array([3, 3, 3]), np.array([1, 1, 1]))
    assert (found["ari"], found["nmi"], found["purity"]) == (1.0, 1.0, 1.0)


@pytest.mark.slow
def test_a_common_model_is_judged_without_scikit_learn() -> None:
    """Importing it takes longer than a short run."""
    code = (
        "import sys, numpy as np; from flbench.metrics import clustering_summary\n"
        "clustering_summary(np.zeros(4, dtype=np.int64), np.array([0, 0, 1, 1]))\n"
        "print('sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_undecided_are_in_no_group() -> None:
    """FLIS-DC groups the last cohort alone: here clients 1, 2, 5 and 6 of eight."""
    truth = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    found = clustering_summary(np.array([-1, 0, 0, -1, -1, 1, 1, -1]), truth)
    assert found == {"groups": 2, "noise": 4, "ari": 1.0, "nmi": 1.0, "purity": 1.0}
    split = clustering_summary(np.array([-1, 0, 1, -1, -1, 2, 2, -1]), truth)
    # pairs of four clients: together in both 1, in the truth 2, in the labels 1, of 6
    expected = 2 * 1 / 6
    assert split["ari"] == pytest.approx((1 - expected) / ((2 + 1) / 2 - expected))
    assert clustering_summary(np.array([0, -1, 0, -1]), None)["groups"] == 1
    nobody = clustering_summary(np.full(8, -1), truth)
    assert nobody == {"groups": 0, "noise": 8, "ari": None, "nmi": None, "purity": None}


def test_without_true_groups_there_is_nothing_to_agree_with() -> None:  # T28
    found = clustering_summary(np.array([0, 1, 1]), None)
    assert found == {"groups": 2, "noise": 0, "ari": None, "nmi": None, "purity": None}


def test_purity_and_noise_by_hand() -> None:
    found = clustering_summary(np.array([0, 0, 0, 1, 1, -1]), np.array([0, 0, 1, 1, 1, 1]))
    assert found["purity"] == pytest.approx(4 / 5)
    assert (found["groups"], found["noise"]) == (2, 1), "the undecided are left out"
    truth, one = np.array([0, 0, 1, 1]), np.zeros(4, dtype=np.int64)
    assert clustering_summary(one, truth)["purity"] == 0.5
    assert clustering_summary(np.arange(4), truth)["purity"] == 1.0


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([0, 0, 1, 1], [0, 0, 1, 1], 0),
        ([0, 0, 1, 1], [1, 1, 0, 0], 0),  # names do not matter
        ([0, 0, 1, 1], [0, 1, 1, 1], 0.25),
        ([0, 0, 0, 0], [0, 0, 1, 1], 0.5),
        ([0, 0, 0, 0], [0, 1, 2, 3], 0.75),
    ],
)
def test_churn_by_hand(before: list[int], after: list[int], expected: float) -> None:
    assert churn(np.array(before), np.array(after)) == pytest.approx(expected)
    assert churn(np.array(after), np.array(before)) == pytest.approx(expected)


@pytest.mark.slow
def test_calibration_is_torchmetrics() -> None:
    from torchmetrics.functional.classification import multiclass_calibration_error

    from flbench.engine.model_evaluation import confidences

    draw = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 4, generator=draw)
    y = torch.randint(4, (500,), generator=draw)
    table = confidences(logits, y, torch.ones(500), BINS)
    assert table[:, 0].sum() == 500
    expected = multiclass_calibration_error(logits, y, num_classes=4, n_bins=BINS)
    assert calibration_error(table.numpy()) == pytest.approx(float(expected), abs=1e-6)
    twice = confidences(logits, y, torch.where(y == 0, 2, 1), BINS)
    again = torch.cat([torch.arange(500), (y == 0).nonzero()[:, 0]])
    longer = confidences(logits[again], y[again], torch.ones(len(again)), BINS)
    torch.testing.assert_close(twice, longer)


def test_tokens_are_judged_one_by_one() -> None:
    from flbench.engine.model_evaluation import confidences

    draw = torch.Generator().manual_seed(1)
    logits, y = torch.randn(6, 5, 4, generator=draw), torch.randint(4, (6, 5), generator=draw)
    flat = confidences(logits.flatten(0, 1), y.flatten(), torch.ones(30), BINS)
    torch.testing.assert_close(confidences(logits, y, torch.ones(6), BINS), flat)


@pytest.mark.parametrize(
    ("parameters", "factor", "rounds", "printed"),
    [
        (62_006, 2, 200, 79.36), (62_006, 2, 180, 71.43), (62_006, 2, 60, 23.81),
        (62_006, 2, 19, 7.54), (62_006, 3, 28, 16.66), (62_006, 3, 19, 11.30),
        (6_621_540, 2, 100, 4237.37), (6_621_540, 2, 85, 3601.98), (6_621_540, 4, 39, 3305.11),
        (6_621_540, 3, 55, 3495.19),
    ],
)  # fmt: skip
def test_the_cost_of_a_target_is_what_flis_prints(
    parameters: int, factor: int, rounds: int, printed: float
) -> None:
    """Ten clients of a hundred per round; SCAFFOLD moves twice as much, IFCA downloads twice."""
    steps = [4.0 * parameters * 10 * (t + 1) for t in range(rounds)]
    curves: dict[str, list[float | None]] = {
        "accuracy": [0.1] * (rounds - 1) + [0.8],
        "bytes_down": [step * (factor - 1) for step in steps],
        "bytes_up": [*steps],
        "bytes_peer": [0.0] * rounds,
    }
    found = to_target(outcome(curves=curves, tested=np.ones(100), target=0.8))
    assert found["rounds_to_target"] == rounds
    assert found["megabits_to_target"] == pytest.approx(printed, rel=1e-3)


def test_a_target_that_is_never_reached_has_no_cost() -> None:
    curves: dict[str, list[float | None]] = {"accuracy": [0.1, None, 0.2]}
    assert to_target(outcome(curves=curves, target=0.5)) == {
        "rounds_to_target": None,
        "megabits_to_target": None,
        "seconds_to_target": None,
    }


def test_flis_counts_every_lenet_as_the_coloured_one() -> None:
    grey = 8 * 4 * 44_426 * 2 * 10 / (100 * 1e6)
    assert grey == pytest.approx(0.2843, abs=1e-4)
    assert flis_compat(grey, 44_426) == pytest.approx(0.39684, abs=1e-5)
    assert flis_compat(1.0, 6_621_540) == 1.0


# --- the table -----------------------------------------------------------------------------------


def outcome(**changes: Any) -> Measurements:
    """Two clients, one group each, after three rounds of which the second was not evaluated."""
    curves = {
        "accuracy": [0.5, None, 0.75], "bytes_down": [1_000_000, 2_000_000, 3_000_000],
        "bytes_up": [0, 0, 1_000_000], "bytes_peer": [0, 0, 0], "slowest_down": [250_000, None, 0],
        "selection_error": [None, None, None],
    }  # fmt: skip
    found = Measurements(
        correct=np.array([1, 4]), tested=np.array([2, 4]), loss=np.array([4.0, 2.0]),
        labels=np.array([0, 1]), groups=np.array([0, 1]), curves=curves,
        memberships=[np.array([0, 0]), np.array([0, 1])],
    )  # fmt: skip
    return replace(found, **changes)


def test_the_metrics_of_an_outcome_by_hand() -> None:
    found = computed(outcome())
    assert (found["accuracy_mean"], found["loss_mean"]) == (0.75, 1.25)
    assert (found["groups"], found["noise"], found["ari"], found["nmi"]) == (2, 0, 1.0, 1.0)
    assert (found["accuracy_best_test"], found["accuracy_last10"]) == (0.75, 0.625)
    assert found["churn"] == 0.5, "one of two clients moved, once between two evaluations"
    assert (found["mb_per_client"], found["link_seconds"]) == (2.0, 1.0)
    assert found["selection_error_mean"] is None


def test_clients_that_are_not_judged_are_in_no_mean() -> None:
    """The second client has no test samples; what it moved counts all the same."""
    found = computed(
        outcome(correct=np.array([1, 0]), tested=np.array([2, 0]), loss=np.array([4.0, 0.0]))
    )
    assert (found["accuracy_mean"], found["accuracy_worst"], found["loss_mean"]) == (0.5, 0.5, 2.0)
    assert found["mb_per_client"] == 2.0


def test_metrics_that_do_not_apply_are_left_out() -> None:
    plain = computed(outcome())
    joined = {
        "unseen_accuracy": np.array([0.5, 0.25]),
        "unseen_accuracy_tuned": np.array([1.0, 0.25]),
    }
    more = computed(outcome(target=0.6, newcomers=joined, is_text=True))
    assert {name: more[name] for name in more.keys() - plain.keys()} == {
        "target": 0.6,
        "rounds_to_target": 3,
        "megabits_to_target": 16.0,
        "perplexity": pytest.approx(np.exp(1.25)),
        "unseen_accuracy": 0.375,
        "unseen_accuracy_tuned": 0.625,
    }


def test_the_time_to_a_target_by_hand() -> None:
    """The second evaluation, in the third round, reaches .75."""
    curves = {**outcome().curves, "simulated_seconds": [1.5, 2.5, 4.0]}
    found = computed(outcome(curves=curves, target=0.6))
    assert (found["seconds_to_target"], found["simulated_seconds"]) == (4.0, 4.0)
    assert computed(outcome(curves=curves, target=0.5))["seconds_to_target"] == 1.5
    assert computed(outcome(curves=curves, target=0.9))["seconds_to_target"] is None
    assert "seconds_to_target" not in computed(outcome(curves=curves))


@pytest.mark.parametrize(
    ("accuracy", "rounds"),
    [
        ([0.5, None, 0.75], 3),
        ([0.5, 0.73, 0.74, 0.7, 0.75], 3),  # .01 below counts, and what comes after does not
        ([0.9, 0.6, 0.7], 1),  # it was above before: as for a target, the first time counts
        ([0.5, 0.7, None], 2),
        ([None, None], None),
        ([], None),
    ],
)
def test_the_rounds_to_the_final_accuracy_by_hand(
    accuracy: list[float | None], rounds: int | None
) -> None:
    seconds = [1.5 * at for at in range(1, len(accuracy) + 1)]
    found = computed(outcome(curves={"accuracy": accuracy, "simulated_seconds": seconds}))
    assert found["rounds_to_final"] == rounds
    assert found["seconds_to_final"] == (None if rounds is None else 1.5 * rounds)
    assert "seconds_to_final" not in computed(outcome())


def test_the_links_seconds_to_the_final_accuracy_by_hand() -> None:
    """At 2 Mbit/s; rounds 1 and 2 of 3."""
    curves = {"accuracy": [0.5, 0.74, 0.75], "slowest_down": [250_000.0, 500_000.0, 9e9]}
    assert computed(outcome(curves=curves))["link_seconds_to_final"] == 3.0
    unknown = {**curves, "accuracy": [None, None, None]}
    assert computed(outcome(curves=unknown))["link_seconds_to_final"] is None
    assert "link_seconds_to_final" not in computed(outcome(curves={"accuracy": [0.5]}))


def test_without_groups_and_curves_there_is_still_accuracy() -> None:
    bare = Measurements(np.array([1]), np.array([2]), np.zeros(1))
    found = computed(bare)
    assert found["accuracy_mean"] == 0.5
    assert {found[name] for name in ("ari", "groups", "mb_per_client", "accuracy_last10")} == {None}


def test_a_round_measures_the_metrics_that_have_a_curve() -> None:
    assert measured(outcome()) == {"accuracy": 0.75, "ari": 1.0, "groups": 2, "loss": 1.25}
    assert measured(None) == dict.fromkeys(("accuracy", "ari", "groups", "loss"))


def test_the_table_is_sound() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.heading
        assert metric.doc
        assert bool(metric.tables) == bool(metric.family), "a column has a place"


def test_which_direction_is_better() -> None:
    """What ranks results and colours differences."""
    higher = {one.name for one in METRICS if one.higher_is_better}
    neither = {one.name for one in METRICS if one.higher_is_better is None}
    accuracies = {one.name for one in METRICS if one.name.startswith(("accuracy_", "unseen_"))}
    spread = {"accuracy_std_clients", "accuracy_decile_gap"}
    assert higher == (accuracies - spread) | {"ari", "nmi", "purity"}
    assert neither == {"groups", "round", "churn", "target", "kld"}


def test_how_columns_are_written() -> None:
    """Shares have four decimals, agreements three; a column of few runs is left out of others."""
    decimals = {one.name: one.digits for one in METRICS}
    assert {name for name, digits in decimals.items() if digits == 0} == {
        "round", "rounds_to_final", "rounds_to_recover", "rounds_to_target",
    }  # fmt: skip
    assert {name for name, digits in decimals.items() if digits == 1} == {
        "groups", "noise", "link_seconds", "link_seconds_to_final", "trained_epochs",
        "seconds_to_final",
        "seconds_to_target", "simulated_seconds", "perplexity",
    }  # fmt: skip
    assert {name for name, digits in decimals.items() if digits == 2} == {
        "mb_per_client", "megabits_to_target", "megabits_to_target_flis",
    }  # fmt: skip
    assert {name for name, digits in decimals.items() if digits == 3} == {
        "ari", "nmi", "purity", "kld", "selection_error", "selection_error_mean",
        "selection_false_positives", "selection_false_negatives",
    }  # fmt: skip
    assert max(decimals.values()) == 4
    unseen = {"unseen_accuracy", "unseen_accuracy_tuned"}
    rules = {"accuracy_own_mean", "accuracy_fine_tuned"}
    assert {one.name for one in METRICS if one.spread} == {"accuracy_mean", *rules, *unseen}
    assert {one.name for one in METRICS if one.optional} == {
        "megabits_to_target", "rounds_to_recover", "seconds_to_target", "simulated_seconds",
        "accuracy_own_worst_decile", *rules, *unseen,
    }  # fmt: skip


def test_what_is_reported_of_a_metric_that_is_asked_for() -> None:
    """Name, direction, decimals, places of its column, and whether that shows a deviation."""
    for better in (True, False, None):
        found = [
            (one.name, one.higher_is_better, one.digits, one.tables != (), one.spread, one.optional)
            for one in metrics_of("f1", better)
        ]
        assert found == [
            ("f1_mean", better, 4, True, True, True),
            ("f1_std_clients", False, 4, False, False, False),
            ("f1_worst_decile", better, 4, True, False, True),
            ("f1_clients", None, 0, False, False, False),
        ]


def test_columns_of_metrics_that_are_asked_for_come_last() -> None:
    plain = [one.name for one in columns_of("pages")]
    assert "accuracy_mean" in plain
    assert "accuracy_decile_gap" not in plain, "it is on the web page alone"
    asked = [one.name for one in columns_of("pages", {"f1": True, "nll": False})]
    more = ["f1_mean", "f1_worst_decile", "nll_mean", "nll_worst_decile"]
    assert asked == [*plain, *more]
    terminal = [one.name for one in columns_of("terminal")]
    assert [one.name for one in columns_of("terminal", {"f1": None})] == terminal


def test_churn_is_a_mean_over_evaluations() -> None:
    memberships = [np.array([0, 1, 1, 0]), np.array([0, 1, 1, 1]), np.array([0, 1, 1, 1])]
    outcome = Measurements(
        np.ones(4), np.ones(4), np.zeros(4), memberships=memberships,
        curves={"accuracy": [0.1, 0.2, 0.3]},
    )  # fmt: skip
    assert mean_churn(outcome) == 0.125, "one of four moved, once in two steps"


def test_perplexity_that_is_too_large_is_none() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(699.9) == pytest.approx(np.exp(699.9))
    assert perplexity(700.0) is None
    assert perplexity(700.5) is None


def test_bins_that_are_too_sure_and_too_unsure_do_not_cancel() -> None:
    assert calibration_error(np.array([[1, 0.9, 0], [1, 0.1, 1]])) == pytest.approx(0.9)


def test_what_crosses_between_clients_counts_until_the_target() -> None:
    curves: dict[str, list[float | None]] = {
        "accuracy": [0.9], "bytes_down": [1e6], "bytes_up": [2e6], "bytes_peer": [4e6],
    }  # fmt: skip
    found = to_target(outcome(curves=curves, tested=np.ones(10), target=0.8))
    assert found["megabits_to_target"] == pytest.approx(8 * 7 / 10)


def changing(curve: list[float | None], starts: list[int]) -> Measurements:
    one = np.ones(1, dtype=np.int64)
    return Measurements(one, one, np.zeros(1), curves={"accuracy": curve}, periods=starts)


def test_a_period_has_the_accuracy_of_its_last_evaluation() -> None:
    run = changing([0.5, 0.8, None, 0.3, 0.79, None, None, 0.2], [4, 7])
    found = computed(run)
    assert [found[f"accuracy_period_{at}"] for at in (1, 2, 3)] == [0.8, 0.79, 0.2]
    assert found["rounds_to_recover_2"] == 2, ".01 less is recovered"
    assert found["rounds_to_recover_3"] is None
    assert found["rounds_to_recover"] is None, "one period does not recover"


def test_the_slowest_recovery_counts() -> None:
    found = computed(changing([0.8, 0.8, 0.3, 0.9, 0.2, 0.2, 0.9], [2, 5]))
    assert found["rounds_to_recover_2"] == 1, "the change does no harm"
    assert found["rounds_to_recover_3"] == found["rounds_to_recover"] == 3


def test_a_change_before_the_first_evaluation_has_nothing_to_recover() -> None:
    found = computed(changing([None, 0.3, 0.9], [2]))
    assert found["accuracy_period_1"] is None
    assert found["rounds_to_recover_2"] is None


def test_a_run_without_periods_has_none_of_these_numbers() -> None:
    found = computed(changing([0.5, 0.8], []))
    assert not [name for name in found if "period" in name or "recover" in name]
