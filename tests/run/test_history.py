"""What a run keeps of its rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy import Play

from flbench.run.history import Evaluation, History


def evaluation(round_: int, validated: int) -> Evaluation:
    """Two clients with ten validation samples, of which some are right."""
    return Evaluation(
        round=round_,
        correct=[round_, round_],
        tested=[10, 10],
        loss=[1.0, 1.0],
        validation_correct=[validated, validated],
        validation_tested=[10, 10],
        labels=[0, 0],
        ece=0.0,
    )


def test_validation_chooses_the_first_of_the_best_rounds() -> None:
    history = History()
    for round_, validated in ((1, 4), (2, 6), (3, 6), (4, 5)):
        history.add_round({"accuracy": 0.1 * round_}, evaluation(round_, validated))
    assert history.shown("last").round == 4
    assert history.shown("chosen").round == 2
    assert history.measured_in_run("last")["round"] == 4
    assert history.measured_in_run("chosen")["round"] == 2


def test_counts_of_too_many_labels_are_left_out(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert play_toy("fedavg", rounds=1).result.clients.labels is not None
    monkeypatch.setattr("flbench.run.result.MOST_LABELS", 3)
    assert play_toy("fedavg", rounds=1).result.clients.labels is None


def test_nothing_is_chosen_where_nobody_validates() -> None:
    history = History()
    for round_ in (1, 2):
        unchecked = replace(evaluation(round_, 0), validation_tested=[10, 0])
        history.add_round({"accuracy": 0.1 * round_}, unchecked)
    found = history.measured_in_run("last")
    assert (found["accuracy_last"], found["accuracy_chosen"]) == (0.2, None)


def test_a_change_of_half_the_clients_is_kept_as_all_labels() -> None:
    first = {"round": 1, "labels": [0, 0, 0, 0]}
    second = {"round": 2, "labels": [0, 0, 1, 1]}
    third = {"round": 3, "labels": [0, 0, 1, 2]}
    assert History(membership=[first, second, third]).changes() == [
        first,
        second,
        {"round": 3, "clients": [3], "labels": [2]},
    ]
