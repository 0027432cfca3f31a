"""Runs whose data change: what clients train on, who is called and judged, what a result says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from every import Film, resumed, same_state, stable
from mentions import mention, mentioning
from toy import CLIENTS, Play, composition, player, toy_dataset, toy_suite

import flbench as fl
from flbench.engine.lanes.vectorised import Vectorised
from flbench.engine.options import EngineOptions
from flbench.errors import Undefined, UserError
from flbench.results.schema import Result
from flbench.run.checkpoint import pack, write
from flbench.run.composition import compose
from flbench.run.result import build_result
from flbench.run.rounds import run_rounds
from flbench.run.setup import prepare
from flbench.submission.consistency import faults
from flbench.testing.reproducibility import end_in_process_group, end_of_run
from flbench.testing.small_run import run_small
from flbench.testing.subprocesses import in_process_group

EXCHANGE = {"start": 3, "change": "exchange"}
"""All six clients of the two groups: each gets the data of one of the other group."""
SWAP = {"start": 4, "change": "swap-labels", "labels": [[0, 1], [2, 3]], "clients": [0, 4]}
AWAY = {"start": 2, "change": "leave", "clients": [1, 3], "until": 4}
LATE = {"start": 3, "change": "come", "clients": [5]}
MOVING = {"rounds": 5, "participation": 0.5, "periods": [EXCHANGE, SWAP, AWAY, LATE]}


def test_changes_after_the_last_round_are_told(play_toy: Play) -> None:
    assert play_toy("fedavg", **MOVING).said == []
    said = play_toy("fedavg", **{**MOVING, "rounds": 3}).said
    assert said == ["periods: swap-labels from round 4 on: the run has 3 rounds"]


@pytest.mark.parametrize(
    ("method", "what"), [("centralised", "pools the samples"), ("fedasync", "takes uploads")]
)
@pytest.mark.parametrize("change", [AWAY, LATE])
def test_who_takes_all_clients_cannot_leave_some_out(
    play_toy: Play, method: str, what: str, change: dict[str, Any]
) -> None:
    """Refused in round 1, whenever some are missing."""
    clock = {"seconds_per_step": 1.0}
    with pytest.raises(Undefined, match=mention(what, "of all clients", "leave some out")):
        play_toy(method, rounds=5, clock=clock, periods=[change])
    play_toy(method, rounds=5, clock=clock, periods=[SWAP])


def test_a_swap_that_changes_no_sample_is_refused(play_toy: Play) -> None:
    """Client 0 has samples of labels 0 and 1 until it gets those of a client of the other group."""
    swap = {"start": 4, "change": "swap-labels", "labels": [[0, 1]], "clients": [0]}
    play_toy("fedavg", rounds=5, periods=[swap])
    with pytest.raises(UserError, match="swap-labels from round 4 on: nobody changes"):
        play_toy("fedavg", rounds=5, periods=[EXCHANGE, swap])


@dataclass(frozen=True)
class Sees:
    """Writes down what a method sees of the clients in each round."""

    seen: list[dict[str, Any]] = field(default_factory=list)

    uses_true_groups = True

    @fl.hookimpl
    def aggregate(self, upload: fl.Upload, ctx: fl.Context) -> None:
        found = [ctx.client_data(client) for client in range(ctx.clients)]
        self.seen.append(
            {
                "ids": upload.ids.tolist(),
                "cohort": ctx.cohort.tolist(),
                "data": found,
                "counts": ctx.label_counts,
                "samples": ctx.samples.tolist(),
                "groups": ctx.true_groups.tolist(),
            }
        )


def test_what_a_method_sees_follows_the_data(play_toy: Play) -> None:
    sees = Sees()
    play_toy(composition(("sees", sees)), rounds=4, participation=1.0, periods=[EXCHANGE, SWAP])
    first, second, third, fourth = sees.seen
    for (x, y), (same, labels) in zip(first["data"], second["data"], strict=True):
        assert torch.equal(x, same)
        assert torch.equal(y, labels)
    old = [x for x, _ in first["data"]]
    for client, (x, _) in enumerate(third["data"]):
        (source,) = (at for at, other in enumerate(old) if torch.equal(x, other))
        assert first["groups"][source] != first["groups"][client]
        assert third["groups"][client] == first["groups"][source]
    swapped = torch.tensor([1, 0, 3, 2])
    for client, ((_, before), (_, after)) in enumerate(
        zip(third["data"], fourth["data"], strict=True)
    ):
        assert torch.equal(after, swapped[before] if client in (0, 4) else before)
    for one in sees.seen:
        rows = [torch.bincount(y, minlength=4).tolist() for _, y in one["data"]]
        assert one["counts"].tolist() == rows
        assert one["samples"] == [sum(row) for row in rows]


def test_clients_that_are_away_are_neither_called_nor_judged(play_toy: Play) -> None:
    sees, film = Sees(), Film()
    played = play_toy(
        composition(("sees", sees)),
        sinks=(("film", film),),
        rounds=4,
        participation=0.5,
        periods=[AWAY, LATE],
    )
    absent = [{5}, {1, 3, 5}, {1, 3}, set[int]()]
    for one, away in zip(sees.seen, absent, strict=True):
        assert len(one["ids"]) == 3, "as many are called, as long as so many are there"
        assert not set(one["ids"]) & away
    tested = played.run.history.last
    assert tested is not None
    assert all(tested.tested)
    labels = [labels for _, labels in played.result.memberships()]
    assert [{at for at, label in enumerate(row) if label < 0} for row in labels] == absent


def test_who_is_away_at_the_end_is_in_no_figure(play_toy: Play) -> None:
    result = play_toy("fedavg", rounds=3, periods=[{**AWAY, "until": None}]).result
    clients = result.clients
    assert [at for at, tested in enumerate(clients.test) if not tested] == [1, 3]
    shares = [a / b for a, b in zip(clients.correct, clients.test, strict=True) if b]
    assert result.summary["accuracy_mean"] == pytest.approx(sum(shares) / 4)
    assert result.summary["noise"] == 2
    assert list(faults(result)) == []


def test_clients_are_tested_on_the_data_that_they_have_now(play_toy: Play) -> None:
    before, after = (play_toy("fedavg", rounds=rounds, periods=[EXCHANGE]).run for rounds in (2, 3))
    assert after.period is not None
    for client, source in enumerate(after.period.origin.tolist()):
        one, other = before.held_out.splits["test"][source], after.held_out.splits["test"][client]
        assert torch.equal(before.held_out.x[one], after.held_out.x[other])


def test_a_method_that_calls_everybody_gets_those_who_are_there(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Everybody(Sees):
        @fl.hookimpl
        def plan(self, ctx: fl.Context) -> list[fl.Stage]:
            probe = fl.Stage("probe", ctx.everybody, 1, "look")
            return [fl.Stage("train", ctx.everybody, 1), probe]

    everybody = Everybody()
    played = play_toy(composition(("all", everybody)), rounds=2, periods=[AWAY])
    assert [one["ids"] for one in everybody.seen] == [[0, 1, 2, 3, 4, 5], [0, 2, 4, 5]]
    assert played.run.history.warnings == [mentioning("round 2", "look", "2 absent")]


def test_nobody_who_is_judged_is_a_refusal(play_toy: Play) -> None:
    gone = {"start": 3, "change": "leave"}
    with pytest.raises(UserError, match=mention("nobody", "round 3")):
        play_toy("fedavg", rounds=4, periods=[gone])


def test_changes_after_the_last_round_change_nothing(play_toy: Play) -> None:
    plain = play_toy("fedavg", rounds=2)
    other = play_toy("fedavg", rounds=2, periods=[EXCHANGE])
    assert torch.equal(plain.state.models, other.state.models)
    assert "rounds_to_recover" not in other.result.summary


def test_what_is_learnt_before_a_change_is_as_without_it(play_toy: Play) -> None:
    plain = play_toy("fedavg", rounds=3)
    other = play_toy("fedavg", rounds=3, periods=[EXCHANGE])
    one, same = plain.run.history.curves["accuracy"], other.run.history.curves["accuracy"]
    assert one[:2] == same[:2]
    assert not torch.equal(plain.state.models, other.state.models)


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_resumed_run_is_in_the_period_of_its_round(after: int, tmp_path: Path) -> None:
    film = Film(tmp_path)
    whole = player(tmp_path)("fedrep", sinks=(("film", film),), **MOVING)
    again = resumed(whole, film.checkpoint(after), tmp_path / "again")
    assert same_state(again.state, whole.state)
    assert stable(again) == stable(whole)


def test_a_run_without_rounds_left_is_in_its_last_period(tmp_path: Path) -> None:
    whole = player(tmp_path)("fedavg", **MOVING)
    job = replace(whole.job, out=tmp_path / "again", resume=True)
    job.checkpoint.parent.mkdir(parents=True)
    run = whole.run
    write(job.checkpoint, pack(whole.state, run.ledger, run.history, run.origin))
    run, state = prepare(job, toy_dataset())
    state = run_rounds(run, state)
    assert state.round == 5
    again = build_result(job, run, state)
    assert again.clients == whole.result.clients
    assert again.summary == whole.result.summary


@pytest.mark.slow
def test_two_processes_agree_on_every_period() -> None:
    suite = toy_suite(**{**MOVING, "name": "small", "dataset": "small"})
    plain = suite.model_dump(mode="json")
    ends = in_process_group(end_in_process_group, 2, "fedrep", {}, plain)
    engine = EngineOptions(executor="sequential", accelerator="cpu")
    expected = end_of_run(run_small(compose("fedrep"), suite, engine=engine))
    assert ends == [expected, expected]


def test_lanes_train_on_the_data_of_the_period(play_toy: Play) -> None:
    uneven = {"partition": {"name": "iid"}, "dataset": toy_dataset(samples=105)}
    periods = [{"start": 2, "change": "exchange"}]
    with pytest.raises(UserError, match=mention("group", "half")):
        play_toy("fedavg", rounds=2, periods=periods, **uneven)  # iid: all are of one group
    one, other = (
        play_toy("fedavg", executor=executor, **MOVING) for executor in ("sequential", "vectorised")
    )
    assert isinstance(other.run.executor, Vectorised)
    assert other.run.executor.reason is None
    torch.testing.assert_close(one.state.models, other.state.models, rtol=0, atol=1e-5)


def test_a_relabelled_federation_changes_alike() -> None:
    suite = toy_suite(**{**MOVING, "name": "small", "dataset": "small"})
    order = (2, 4, 0, 5, 1, 3)
    usual, other = (run_small(compose("fedavg"), suite, order=one) for one in (None, order))
    assert [other.last.correct[i] for i in range(CLIENTS)] == [
        usual.last.correct[order[i]] for i in range(CLIENTS)
    ]
    assert usual.run.origin.marks.cohorts == other.run.origin.marks.cohorts


def test_a_result_has_the_accuracy_of_each_period(play_toy: Play) -> None:
    played = play_toy("fedavg", **MOVING, eval_every=2)
    result = played.result
    curve = result.curves["accuracy"]
    assert [value is None for value in curve] == [True, False, True, False, False]
    assert result.periods == [2, 3, 4]
    summary = result.summary
    assert [summary[f"accuracy_period_{at}"] for at in (1, 2, 3, 4)] == [
        *(None, curve[1], None, curve[4])
    ]
    assert {name for name in summary if name.startswith("rounds_to_recover")} == {
        *("rounds_to_recover", "rounds_to_recover_2", "rounds_to_recover_3", "rounds_to_recover_4")
    }
    assert list(faults(result)) == []
    assert Result.model_validate(result.model_dump()) == result
