"""Own models: what each client had after its last local training, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import small
import torch
from toy import CLIENTS, Play, Played, composition, same_evaluations

import flbench as fl
from flbench.core.bank_budget import RowStore
from flbench.engine.options import EngineOptions
from flbench.run.composition import compose
from flbench.run.evaluation import evaluate
from flbench.run.own_models import OwnModels
from flbench.testing.small_run import run_small, small_suite

EVERYBODY = torch.arange(CLIENTS)
OWN: dict[str, Any] = {"own_models": True}


def kept(played: Played) -> OwnModels:
    """The own models after the last round."""
    assert played.run.history.own is not None
    return played.run.history.own


def own_correct(played: Played) -> list[int]:
    """What they get right, by client."""
    return cast("list[int]", played.last.own_correct)


def correct(played: Played, rows: torch.Tensor) -> list[int]:
    """What explicit models, shape (N, W), get right, by client."""
    run, personal = played.run, fl.Personal(params=rows)
    work = lambda stage: run.hooks.local_work(played.state, stage, run.context)  # noqa: E731
    return evaluate(run.executor, personal, played.state, run.held_out, EVERYBODY, work).correct


@dataclass(frozen=True)
class Notes:
    """Decides nothing, and writes down what arrives of each stage that is aggregated."""

    seen: list[tuple[torch.Tensor, torch.Tensor]]

    @fl.hookimpl
    def aggregate(self, upload: fl.Upload) -> None:
        self.seen.append((upload.ids, upload.selected().clone()))


@dataclass(frozen=True)
class SendsNothing:
    """Every client sends that it did not move."""

    @fl.hookimpl
    def encode(self) -> Any:
        return lambda message: message.sending(torch.zeros_like(message.update))


# --- by hand ----------------------------------------------------------------------------------


def test_of_fedavg_it_is_what_the_client_trained_last(play_toy: Play) -> None:
    """One round of four clients: the others are judged with what serves them."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    local = {"epochs": 9, "batch_size": 4, "lr": 0.3}
    method = composition(("notes", Notes(seen)))
    played = play_toy(method, rounds=1, participation=0.7, local=local, **OWN)
    ((ids, trained),) = seen
    own = kept(played)
    assert own.trained.nonzero()[:, 0].tolist() == ids.tolist()
    assert torch.equal(own.rows[ids], trained)
    rows = played.personal.clone()
    rows[ids] = trained
    assert own_correct(played) == correct(played, rows)
    assert own_correct(played) != played.last.correct, "the mean is another model"
    accuracy = sum(a / b for a, b in zip(own_correct(played), played.last.tested, strict=True)) / 6
    assert played.run.history.curves["accuracy_own"] == [pytest.approx(accuracy, abs=1e-6)]
    result = played.result
    assert result.summary["accuracy_own_mean"] == pytest.approx(accuracy)
    assert result.own is not None
    assert (result.own.correct, result.own.trained) == (own_correct(played), own.trained.tolist())


def test_the_last_training_of_each_client_counts(play_toy: Play) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    played = play_toy(composition(("notes", Notes(seen))), rounds=4, **OWN)
    last = {client: row for ids, rows in seen for client, row in zip(ids.tolist(), rows)}  # noqa: B905
    own = kept(played)
    assert own.trained.nonzero()[:, 0].tolist() == sorted(last)
    assert all(torch.equal(own.rows.read(client), row) for client, row in last.items())


def test_who_serves_itself_is_judged_alike_by_both_rules(play_toy: Play) -> None:
    played = play_toy("local-only", **OWN)
    own = kept(played)
    assert torch.equal(own.rows[own.trained], played.personal[own.trained])
    assert own_correct(played) == played.last.correct
    curves = played.run.history.curves
    assert curves["accuracy_own"] == curves["accuracy"]


def test_last_local_of_flis_is_a_case_of_it(play_toy: Play) -> None:
    """Equal bits where everybody has trained."""
    common: dict[str, Any] = {"server_samples": 8, "participation": 1.0}
    own = play_toy("flis-dc", **OWN, **common)
    method = {"eval": "last_local"}
    last = play_toy("flis-dc", settings=method, **common)
    assert torch.equal(kept(own).rows.dense(), last.state.memory["flis-dc.last"].dense())  # type: ignore[attr-defined]
    assert own.run.history.curves["accuracy_own"] == last.run.history.curves["accuracy"]
    assert own_correct(own) == last.last.correct


def test_what_is_no_own_model_by_hand() -> None:
    """Two candidates each: in a probe, on pooled samples, and in a trial.

    Client 1 made no step, clients 3 and 4 chose their second.
    """
    none = OwnModels.of_nobody(torch.zeros(2), 5, RowStore(budget=None))
    ids = torch.tensor([1, 3, 4])
    params = torch.arange(12.0).reshape(3, 2, 2)
    active = torch.tensor([[True, True], [False, True], [True, True]])
    upload = replace(
        small.uploaded(params[:, 0].tolist()),
        ids=ids,
        params=params,
        active=active,
        steps=torch.tensor([0, 2, 2]),
        chosen=torch.tensor([0, 1, 1]),
    )
    trial = fl.Stage("trial", ids, 1)
    for stage in (replace(trial, kind="probe"), replace(trial, kind="train", pooled=True)):
        assert none.after(stage, upload) is none
    own = none.after(trial, upload)
    assert own.trained.tolist() == [False, False, False, True, True]
    assert own.rows[3].tolist() == params[1, 1].tolist()
    assert own.rows[4].tolist() == params[2, 1].tolist()
    assert not none.trained.any() and not none.rows.dense().any(), "the state before is as it was"


def test_a_server_that_pools_the_data_leaves_no_client_a_model(play_toy: Play) -> None:
    played = play_toy("centralised", rounds=1, **OWN)
    assert not kept(played).trained.any()
    assert own_correct(played) == played.last.correct


# --- what a client has is not what the server gets ----------------------------------------------


def test_it_is_what_was_trained_and_not_what_was_sent(play_toy: Play) -> None:
    plain = play_toy("fedavg", rounds=1, **OWN)
    coded = play_toy(composition(("sends", SendsNothing())), rounds=1, **OWN)
    assert torch.equal(kept(coded).rows.dense(), kept(plain).rows.dense())
    assert torch.equal(coded.personal[0], coded.run.context.initial), "nothing arrived"


def test_who_is_late_has_trained_and_who_does_not_answer_has_not(play_toy: Play) -> None:
    late = {"seconds_per_step": [1.0, 1, 1, 9, 9, 9], "deadline": 20.0}
    played = play_toy("fedavg", rounds=1, participation=1.0, clock=late, **OWN)
    assert kept(played).trained.all()
    lost = play_toy("fedavg", rounds=1, participation=1.0, clock={"dropout": 0.5}, **OWN)
    answered = lost.run.ledger.per_client["up"] > 0
    assert 0 < int(answered.sum()) < CLIENTS
    assert torch.equal(kept(lost).trained, answered)


def test_where_the_server_does_not_wait_it_is_that_of_the_last_upload(play_toy: Play) -> None:
    clock = {"seconds_per_step": [1.0, 1, 1, 9, 9, 9]}
    played = play_toy("fedasync", rounds=2, clock=clock, **OWN)
    assert kept(played).trained.tolist() == [True] * 3 + [False] * 3, "the others still train"


def test_statistics_that_clients_keep_are_part_of_it(play_toy: Play) -> None:
    """`buffers = 'local'`: the server's models have the initial ones."""
    normed = {"name": "mlp", "hidden": 3, "norm": True}
    played = play_toy("fedavg", rounds=1, buffers="local", model=normed, **OWN)
    own, width = kept(played), played.run.context.layout.parameters
    assert torch.equal(
        own.rows[own.trained][:, width:], played.state.memory["buffers.own"][own.trained]
    )


def test_clients_with_networks_of_their_own_keep_them(play_toy: Play) -> None:
    further = [{"name": "mlp", "hidden": 5}]
    played = play_toy("local-only", further_models=further, **OWN)
    own, layout = kept(played), played.run.context.layout
    networks = played.run.context.networks
    assert networks is not None and len(networks.unique()) == 2
    assert torch.equal(layout.network_of(own.rows[own.trained]), networks[own.trained])
    assert own_correct(played) == played.last.correct


def test_who_is_not_there_or_not_judged_is_in_no_mean(play_toy: Play) -> None:
    away = {"start": 2, "change": "leave", "clients": [1]}
    played = play_toy("fedavg", rounds=2, participation=1.0, not_judged=[0], periods=[away], **OWN)
    assert kept(played).trained.all()
    assert own_correct(played)[:2] == [0, 0]
    mean = sum(a / b for a, b in zip(own_correct(played)[2:], played.last.tested[2:], strict=True))
    assert played.run.history.curves["accuracy_own"][1] == pytest.approx(mean / 4, abs=1e-6)
    assert played.result.own is not None


def test_what_personalises_by_training_is_not_adapted_again(play_toy: Play) -> None:
    """The predictor and what clients receive for it stay; the adaptation is not asked for."""
    played = play_toy("fedbabu", rounds=1, participation=1.0, **OWN)
    assert own_correct(played) == correct(played, kept(played).rows.dense())


# --- laws -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "dc-pfl"])
def test_to_ask_for_it_changes_nothing_else(method: str, play_toy: Play) -> None:
    plain, asked = (play_toy(method, rounds=2, own_models=asks) for asks in (False, True))
    assert torch.equal(plain.state.models, asked.state.models)
    assert plain.state.memory.keys() == asked.state.memory.keys(), "no hook sees it"
    assert plain.run.ledger.totals == asked.run.ledger.totals, "nothing crosses"
    assert plain.run.history.curves["trained_epochs"] == asked.run.history.curves["trained_epochs"]
    without, table = plain.stable, asked.stable
    assert "own" not in without and "accuracy_own_mean" not in without["summary"]
    del table["own"], table["curves"]["accuracy_own"]
    changed = {key for key in without if table[key] != without[key]}
    assert changed == {"suite", "fingerprint", "summary"}
    assert without["summary"].items() <= table["summary"].items()


def test_in_lanes_it_is_the_same_up_to_rounding(play_toy: Play) -> None:
    one, lanes = (play_toy("fedavg", executor=name, **OWN) for name in ("sequential", "vectorised"))
    assert torch.equal(kept(one).trained, kept(lanes).trained)
    torch.testing.assert_close(kept(one).rows.dense(), kept(lanes).rows.dense())
    same_evaluations(one, lanes)


def test_a_run_that_is_resumed_has_it_again() -> None:
    """Who trained before the cut only is judged with what was kept then."""
    suite = small_suite(rounds=4, participation=0.34, own_models=True)
    half = run_small(compose("fedavg"), suite, last=2)
    whole = run_small(compose("fedavg"), suite)
    again = run_small(compose("fedavg"), suite, checkpoint=half.checkpoint)
    assert again.stable == whole.stable
    assert half.run.history.own is not None and whole.run.history.own is not None
    assert half.run.history.own.trained.sum() < whole.run.history.own.trained.sum()


def test_rows_beyond_the_budget_are_in_files(play_toy: Play) -> None:
    budget = EngineOptions(executor="sequential", accelerator="cpu", bank_budget=1)
    small_bank, plain = (play_toy("fedavg", engine=engine, **OWN) for engine in (budget, None))
    assert small_bank.run.services.store.spilled > 0
    assert torch.equal(kept(small_bank).rows.dense(), kept(plain).rows.dense())
