"""What clients are tested with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toy import CLIENTS, Play, Played, plain_work

from flbench import Membership, Personal, Stage, State, Upload
from flbench.core.client import LocalWork
from flbench.core.state import Dispatched
from flbench.run.evaluation import SELECTION, evaluate, selection_quality, trained
from flbench.run.history import Evaluation

EVERYBODY = torch.arange(CLIENTS)


def evaluated(played: Played, personal: Personal) -> Evaluation:
    """All clients on their test samples, each with what `personal` says."""
    run, state = played.run, played.state
    return evaluate(run.executor, personal, state, run.held_out, EVERYBODY, plain_work)


def test_personal_models_are_adapted_before_they_are_tested(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1)
    row, stage = played.state.membership.home, Stage("train", EVERYBODY, 5)
    common, asked = Personal(row=row), Personal(row=row, adaptation=stage)
    adapted = trained(played.run.executor, common, played.state, stage, plain_work)
    assert (
        evaluated(played, asked).loss
        == evaluated(played, adapted).loss
        != evaluated(played, common).loss
    )
    both = evaluated(played, Personal(row=row, others={"tuned": asked}))
    assert both.loss == evaluated(played, common).loss
    assert both.others["tuned"] == pytest.approx(evaluated(played, adapted).accuracy(), abs=1e-6)


def test_further_figures_are_means_over_clients_not_over_samples(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1, partition={"name": "dirichlet", "alpha": 0.5})
    one = Personal(row=played.state.membership.home)
    found = evaluated(played, Personal(row=one.row, others={"same": one}))
    assert sum(found.correct) / sum(found.tested) != pytest.approx(found.accuracy(), abs=1e-6)
    assert found.others["same"] == pytest.approx(found.accuracy(), abs=1e-6)


def test_fine_tuning_takes_the_epochs_that_are_asked_for(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play_toy("fedavg", rounds=1).run
    fit, epochs = run.executor.fit, []

    def noted(start: Dispatched, stage: Stage, work: LocalWork, round_: int) -> Upload:
        epochs.append(stage.epochs)
        return fit(start, stage, work, round_)

    monkeypatch.setattr(run.executor, "fit", noted)
    personal = Personal(row=torch.zeros(CLIENTS, dtype=torch.int64))
    state = State(1, run.context.initial[None], Membership(personal.row))
    found = evaluate(run.executor, personal, state, run.held_out, EVERYBODY, plain_work, 3)
    assert epochs == [3]
    assert list(found.others) == ["fine_tuned"]


def test_models_of_ones_own_are_adapted_in_a_copy(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1)
    rows = played.run.context.initial.repeat(CLIENTS, 1)
    stage, before = Stage("train", EVERYBODY, 1), rows.clone()
    tuned = trained(
        played.run.executor, Personal(params=rows), played.state, stage, plain_work
    ).params
    assert tuned is not None
    assert not torch.equal(tuned, before)
    assert torch.equal(rows, before)


def test_a_selection_of_clients_without_rows_has_no_quality() -> None:
    nobody = Membership(torch.full((4,), -1), torch.zeros(2, 4))
    found = selection_quality(nobody, None, torch.ones(4, 3, dtype=torch.int64))
    assert found == dict.fromkeys(SELECTION)


def test_groups_are_numbered_by_first_appearance(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1)
    home = torch.tensor([4, 4, -1, 2, 4, 2])
    state = replace(played.state, membership=Membership(home))
    row = torch.zeros(CLIENTS, dtype=torch.int64)
    assert evaluated(replace(played, state=state), Personal(row=row)).labels == [0, 0, -1, 1, 0, 1]
