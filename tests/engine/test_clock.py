"""The simulated clock by hand: durations, arrivals, who is left out; and what must not change."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_processes import clocked_end
from mentions import mention
from small import resumed
from toy import CLIENTS, WIDTH, Play, Played, bad, composition, refused, toy_dataset, toy_suite

import flbench as fl
from flbench.core import clock_settings
from flbench.core.clock_settings import ClockSettings, Uniform, drawn
from flbench.engine.clock import SimulatedClock, StageTimer
from flbench.engine.ledger import CommunicationLedger
from flbench.errors import BadParameter, UserError
from flbench.run.rounds import run_rounds
from flbench.run.setup import prepare
from flbench.submission.consistency import _numbers
from flbench.suite import load_suite
from flbench.testing.subprocesses import in_process_group
from flbench_plugins.oracle import Oracle

BITS = 32 * WIDTH
"""A model of the toy network."""
SPEEDS = {"seconds_per_step": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "up": BITS, "down": BITS / 2}
"""Client i takes i + 1 seconds a step; a model takes two seconds down, and one up."""
TRAIN = fl.Stage("train", torch.arange(CLIENTS), 2)
STEPS = 4
"""Two epochs over seven samples in batches of four."""
ALL = tuple(range(CLIENTS))


def simulated(names: tuple[int, ...] = ALL, seed: int = 0, **settings: Any) -> SimulatedClock:
    return SimulatedClock.of(ClockSettings.model_validate(settings), seed, names)


@dataclass(frozen=True)
class Watch:
    """Keeps every upload that is aggregated, and the time when that happens."""

    uploads: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload) -> None:
        self.uploads.append(upload)
        self.times.append(state.seconds)


def watched(play_toy: Play, *plugins: tuple[str, object], **more: Any) -> tuple[Played, Watch]:
    """A run in which everybody is called in every round."""
    watch = Watch()
    layers = composition(*plugins, ("watch", watch))
    return play_toy(layers, participation=1.0, **more), watch


# --- the settings ------------------------------------------------------------------------------


def test_constants_and_lists_are_taken_as_they_are() -> None:
    clock = simulated(seconds_per_step=0.5, up=[1, 2, 3, 4, 5, 6])
    assert clock.seconds_per_step.tolist() == [0.5] * 6
    assert clock.up.tolist() == [1, 2, 3, 4, 5, 6]
    assert clock.down.isinf().all(), "what is left out takes no time"
    assert simulated(up=1).seconds_per_step.tolist() == [0.0] * 6


def test_distributions_have_their_median_and_range() -> None:
    names = tuple(range(4000))
    drawn = simulated(
        names,
        seconds_per_step={"distribution": "lognormal", "median": 2.0, "sigma": 0.5},
        up={"distribution": "uniform", "low": 3.0, "high": 5.0},
    )
    logs = drawn.seconds_per_step.log()
    assert float(drawn.seconds_per_step.median()) == pytest.approx(2.0, rel=0.05)
    assert float(logs.std()) == pytest.approx(0.5, rel=0.05)
    assert 3.0 <= float(drawn.up.min()) < 3.01
    assert 4.99 < float(drawn.up.max()) <= 5.0
    assert float(drawn.up.mean()) == pytest.approx(4.0, rel=0.02)


def test_stragglers_are_a_share_of_the_clients() -> None:
    clock = simulated(seconds_per_step=2.0, stragglers={"share": 0.34, "factor": 5})
    assert sorted(clock.seconds_per_step.tolist()) == [2.0] * 4 + [10.0] * 2
    others = simulated(seconds_per_step=2.0, stragglers={"share": 0.34, "factor": 5}, seed=1)
    assert not torch.equal(clock.seconds_per_step, others.seconds_per_step)


def test_all_draws_belong_to_the_name_of_a_client() -> None:
    settings: dict[str, Any] = {
        "seconds_per_step": {"distribution": "lognormal", "median": 2.0, "sigma": 0.5},
        "up": [1, 2, 3, 4, 5, 6],
        "dropout": 0.5,
        "stragglers": {"share": 0.34, "factor": 5},
    }
    order = (2, 4, 0, 5, 1, 3)
    one, other = simulated(**settings), simulated(order, **settings)
    everybody, index = torch.arange(CLIENTS), torch.tensor(order)
    for name in ("seconds_per_step", "up", "down"):
        assert torch.equal(getattr(other, name), getattr(one, name)[index])
    for round_ in range(1, 5):
        answers = one.answering(everybody, round_)
        assert torch.equal(other.answering(everybody, round_), answers[index])
        assert torch.equal(one.answering(index[:3], round_), answers[index[:3]])


def test_dropout_is_a_probability_in_each_round() -> None:
    clock, names = simulated(tuple(range(1000)), dropout=0.2), torch.arange(1000)
    rounds = torch.stack([clock.answering(names, round_) for round_ in range(20)])
    assert float(rounds.double().mean()) == pytest.approx(0.8, abs=0.01)
    assert not torch.equal(rounds[0], rounds[1])
    assert simulated().answering(torch.arange(6), 1).all()


def suite_file(folder: Path, clock: str) -> str:
    """A suite with a clock."""
    text = Path(load_path("iid")).read_text(encoding="utf-8")
    (folder / "mine.toml").write_text(f"{text}\n[clock]\n{clock}\n", encoding="utf-8")
    return str(folder / "mine.toml")


def load_path(name: str) -> str:
    return str(Path(__file__).parents[2] / "benchmarks" / f"{name}.toml")


def test_a_trace_is_part_of_the_suite(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,down,up\n1,8,2e6\n0,9,1e6\n", encoding="utf-8")
    name = suite_file(tmp_path, 'up = { trace = "t.csv" }')
    suite = load_suite(name)
    assert suite.clock is not None
    assert suite.clock.up == (1e6, 2e6)
    before = suite.hash()
    (tmp_path / "t.csv").write_text("client,down,up\n1,8,2e6\n0,9,3e6\n", encoding="utf-8")
    assert load_suite(name).hash() != before
    again = type(suite).model_validate({**suite.settings(), "summary": ""})
    assert again.hash() == before, "a result says all that is needed to run it again"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected CSV with the columns client and up"),
        ("client,up\n", "client 0 has none"),
        ("client,up\n1,5\n", "client 0 has none"),
        ("client,up\n0,5\n2,5\n", "client 1 has none"),
        ("client,up\n0,fast\n", "expected CSV"),
        ("client,down\n0,5\n", "expected CSV"),
        ("client,up\n0,5\n1,5\n0,6\n", "client 0 has several"),
        ("client,up,up\n0,5,6\n", "two columns are called 'up'"),
    ],
)
def test_other_traces_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    if not text:
        (tmp_path / "t.csv").unlink()
    with pytest.raises(BadParameter, match=message):
        load_suite(suite_file(tmp_path, 'up = { trace = "t.csv" }'))


def test_a_trace_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("client,up\n0,1.0\n")
    monkeypatch.setattr(clock_settings, "LARGEST", 8)
    with pytest.raises(UserError, match=mention("t.csv", "at most 8")):
        load_suite(suite_file(tmp_path, 'up = { trace = "t.csv" }'))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("clock.up", "fast", "'clock.up': input should be a valid number"),
        ("clock.up", 0, "greater than 0; got 0"),
        ("clock.up", {"distribution": "cauchy"}, "'clock.up': expected a positive number, a list"),
        ("clock.upp", 1, "did you mean 'clock.up'"),
        ("clock.dropout", 1, "less than 1"),
        ("clock.stragglers.share", 2, "less than or equal to 1"),
        ("clock", 3, "'clock'"),
    ],
)
def test_other_clocks_are_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(fl.UserError, match=message):
        load_suite("iid", overrides={key: value})


def test_a_list_has_a_number_for_each_client(play_toy: Play) -> None:
    with pytest.raises(BadParameter, match=r"'clock\.up': expected 6 numbers, .*, got 2"):
        play_toy("fedavg", clock={"up": [1, 2]})


def test_a_distribution_replaces_another(tmp_path: Path) -> None:
    name = suite_file(tmp_path, 'up = { distribution = "lognormal", median = 5, sigma = 1 }')
    uniform = {"distribution": "uniform", "low": 1, "high": 2}
    assert load_suite(name, overrides={"clock.up": uniform}).settings()["clock"]["up"] == uniform
    wider = load_suite(name, overrides={"clock.up.sigma": 2}).settings()["clock"]["up"]
    assert wider == {"distribution": "lognormal", "median": 5, "sigma": 2}


@pytest.mark.parametrize(
    ("speed", "named"),
    [
        ('{ distribution = "lognormal", median = 5, sigma = -1 }', "'clock.up.sigma': "),
        ('{ distribution = "lognormal", median = 5 }', "'clock.up.sigma' is missing"),
        ("-3", "'clock.up': "),
        ("[1, -3]", "'clock.up.1': "),
    ],
)
def test_a_wrong_speed_is_called_as_it_is_typed(tmp_path: Path, speed: str, named: str) -> None:
    with pytest.raises(BadParameter, match=mention(named)):
        load_suite(suite_file(tmp_path, f"up = {speed}"))


# --- times by hand -----------------------------------------------------------------------------


def test_durations_by_hand() -> None:
    clock = simulated(seconds_per_step=[1, 2, 3, 4, 5, 6], up=10, down=[100, 200, 1, 1, 1, 1])
    steps, down, up = torch.tensor([3, 5]), torch.tensor([50, 50]), torch.tensor([20, 0])
    found = clock.durations(torch.tensor([0, 1]), steps, down, up)
    assert found.tolist() == [0.5 + 3 + 2, 0.25 + 10 + 0]


def test_a_round_lasts_until_the_last_upload(play_toy: Play) -> None:
    """The slowest of six: 2 seconds down, 4 steps of 6 seconds, 1 second up."""
    played, watch = watched(play_toy, clock=SPEEDS)
    assert watch.uploads[0].steps.tolist() == [STEPS] * 6
    assert watch.uploads[0].arrivals.tolist() == [2 + 4 * (i + 1) + 1 for i in range(6)]
    assert watch.times == [27.0, 54.0, 81.0]
    assert played.state.seconds == 81.0
    assert played.result.curves["simulated_seconds"] == [27, 54, 81]
    assert played.result.summary["simulated_seconds"] == 81


def test_only_those_who_are_called_are_waited_for(play_toy: Play) -> None:
    watch = Watch()
    played = play_toy(composition(("watch", watch)), clock=SPEEDS)
    slowest = [max(upload.ids.tolist()) + 1 for upload in watch.uploads]
    assert watch.times == pytest.approx([3 * (r + 1) + 4 * sum(slowest[: r + 1]) for r in range(3)])
    assert [len(upload.ids) for upload in watch.uploads] == [3, 3, 3]
    assert played.run.ledger.bits["up"]["model"] == 9 * BITS


def test_uploads_after_the_deadline_are_not_used(play_toy: Play) -> None:
    """Clients 0, 1 and 2 arrive after 7, 11 and 15 seconds; the others have sent for nothing."""
    played, watch = watched(play_toy, clock={**SPEEDS, "deadline": 15.0}, rounds=2)
    assert [upload.ids.tolist() for upload in watch.uploads] == [[0, 1, 2]] * 2
    assert watch.uploads[1].arrivals.tolist() == [22.0, 26.0, 30.0]
    assert watch.times == [15.0, 30.0]
    counted = {way: items.get("model") for way, items in played.run.ledger.bits.items()}
    assert counted == {"down": 12 * BITS, "up": 12 * BITS, "peer": None}


@pytest.mark.parametrize("deadline", [27.0, 40.0])
def test_a_deadline_that_nobody_misses_takes_no_time(deadline: float, play_toy: Play) -> None:
    _, watch = watched(play_toy, clock={**SPEEDS, "deadline": deadline}, rounds=1)
    assert watch.times == [27.0]
    assert len(watch.uploads[0].ids) == 6


def test_the_aggregate_is_that_of_the_clients_that_arrive(play_toy: Play) -> None:
    """The mean of three uploads, weighted by their samples."""
    played, watch = watched(play_toy, clock={**SPEEDS, "deadline": 15.0}, rounds=1)
    upload = watch.uploads[0]
    shares = upload.samples / upload.samples.sum()
    expected = (shares[:, None] * upload.selected()).sum(dim=0)
    torch.testing.assert_close(played.state.models[0], expected)


def test_clients_that_drop_out_have_received_and_sent_nothing(play_toy: Play) -> None:
    played, watch = watched(play_toy, clock={**SPEEDS, "dropout": 0.5})
    clock = played.run.services.simulated_clock
    assert clock is not None
    everybody = torch.arange(6)
    left = [everybody[clock.answering(everybody, r)].tolist() for r in (1, 2, 3)]
    assert [upload.ids.tolist() for upload in watch.uploads] == left
    assert 0 < sum(map(len, left)) < 18
    assert played.run.ledger.bits["down"]["model"] == 18 * BITS
    assert played.run.ledger.bits["up"]["model"] == sum(map(len, left)) * BITS
    lasted = [2 + 4 * (max(ids) + 1) + 1 for ids in left]
    assert watch.times == [sum(lasted[: r + 1]) for r in range(3)]


def test_absent_clients_receive_nothing_and_are_not_waited_for(play_toy: Play) -> None:
    settings = {**SPEEDS, "absent": 0.5, "deadline": 100.0}
    played, watch = watched(play_toy, clock=settings)
    clock = played.run.services.simulated_clock
    assert clock is not None
    everybody = torch.arange(6)
    there = [everybody[clock.present(everybody, r)].tolist() for r in (1, 2, 3)]
    assert [upload.ids.tolist() for upload in watch.uploads] == there
    assert 0 < sum(map(len, there)) < 18
    assert there != [everybody[clock.answering(everybody, r)].tolist() for r in (1, 2, 3)]
    for way in ("down", "up"):
        assert played.run.ledger.bits[way]["model"] == sum(map(len, there)) * BITS
    lasted = [2 + 4 * (max(ids) + 1) + 1 for ids in there]
    assert watch.times == [sum(lasted[: r + 1]) for r in range(3)]


def test_a_round_without_clients_is_said_and_changes_nothing(play_toy: Play) -> None:
    played, watch = watched(play_toy, clock={**SPEEDS, "absent": 1 - 1e-12}, rounds=2)
    assert watch.uploads == []
    assert torch.equal(played.state.models[0], played.run.context.initial)
    assert played.state.seconds == 0
    assert [text.split(":")[0] for text in played.result.warnings] == ["round 1", "round 2"]


@dataclass(frozen=True)
class States:
    """Keeps the state at the start of every round."""

    found: list[fl.State] = field(default_factory=list)

    @fl.hookimpl
    def plan(self, state: fl.State) -> None:
        self.found.append(state)


def test_a_group_without_uploads_keeps_its_model(play_toy: Play) -> None:
    states = States()
    played, _ = watched(
        play_toy,
        ("oracle", Oracle(warmup=0)),
        ("states", states),
        rounds=6,
        clock={**SPEEDS, "dropout": 0.7},
    )
    clock, lost = played.run.services.simulated_clock, 0
    assert clock is not None
    for before, after in pairwise([*states.found[1:], played.state]):
        answers = clock.answering(torch.arange(6), after.round)
        for row in (0, 1):
            somebody = bool(answers[after.membership.home == row].any())
            assert torch.equal(before.models[row], after.models[row]) == (not somebody)
            lost += not somebody
    assert 0 < lost < 10


def test_with_a_deadline_the_server_waits_for_those_that_dropped_out(play_toy: Play) -> None:
    settings = {**SPEEDS, "dropout": 0.5, "deadline": 100.0}
    _, watch = watched(play_toy, clock=settings, rounds=1)
    assert len(watch.uploads[0].ids) < 6
    assert watch.times == [100.0]


@pytest.mark.parametrize(
    ("more", "lasted"), [({"deadline": 5.0}, 5.0), ({"dropout": 1 - 1e-12}, 26.0)]
)
def test_a_round_without_uploads_keeps_the_models(
    more: dict[str, float], lasted: float, play_toy: Play
) -> None:
    """Those who drop out send nothing, which saves a second."""
    played, watch = watched(play_toy, clock={**SPEEDS, **more}, rounds=2)
    assert watch.uploads == []
    assert torch.equal(played.state.models[0], played.run.context.initial)
    assert played.state.seconds == 2 * lasted
    expected = [f"round {r}: no upload of stage 'train' arrived" for r in (1, 2)]
    assert played.result.warnings == expected
    assert played.result.curves["train_loss"] == [None, None]


def test_nobody_sends_what_a_method_wants_beside_the_model(play_toy: Play) -> None:
    played = play_toy("scaffold", clock={**SPEEDS, "dropout": 1 - 1e-12}, rounds=2)
    assert torch.equal(played.state.models[0], played.run.context.initial)
    expected = [f"round {r}: no upload of stage 'train' arrived" for r in (1, 2)]
    assert played.result.warnings == expected


def test_messages_of_fewer_bits_arrive_earlier(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Half:
        @fl.hookimpl
        def encode(self) -> Callable[[fl.Message], fl.Message]:
            return lambda message: replace(message, bits=16)

    _, watch = watched(play_toy, ("half", Half()), clock=SPEEDS, rounds=1)
    assert watch.times == [26.5]


def test_a_client_that_drops_out_keeps_what_it_would_have_sent(play_toy: Play) -> None:
    """One that is late does not know that, and forgets it."""

    @dataclass(frozen=True)
    class Counts:
        @fl.hookimpl
        def setup(self, ctx: fl.Context) -> fl.Setup:
            nothing = fl.Memory(torch.zeros(ctx.clients), "client")
            return fl.Setup(memory={"counts.sent": nothing, "counts.ended": nothing})

        @fl.hookimpl
        def report(self) -> Callable[..., fl.Report]:
            return lambda module, x, y: fl.Report(kept={"counts.ended": torch.tensor(1.0)})

        @fl.hookimpl
        def encode(self) -> Callable[[fl.Message], fl.Message]:
            def count(message: fl.Message) -> fl.Message:
                sent = {"counts.sent": message.memory["counts.sent"] + 1}
                return message.sending(message.update, memory=sent)

            return count

    settings = {**SPEEDS, "dropout": 0.5, "deadline": 15.0}
    played, watch = watched(play_toy, ("counts", Counts()), clock=settings, rounds=2)
    clock, everybody = played.run.services.simulated_clock, torch.arange(6)
    assert clock is not None
    answers = torch.stack([clock.answering(everybody, r) for r in (1, 2)])
    assert not answers.any(dim=0).all(), "somebody never answers"
    assert torch.equal(played.state.memory["counts.sent"], answers.sum(dim=0).float())
    assert torch.equal(played.state.memory["counts.ended"], answers.any(dim=0).float())
    assert sum(len(upload.ids) for upload in watch.uploads) < int(answers.sum())


def test_a_probe_takes_time_and_waits_for_everybody(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Probes:
        seen: list[Any] = field(default_factory=list)

        @fl.hookimpl
        def plan(self, ctx: fl.Context) -> list[fl.Stage]:
            return [fl.Stage("probe", ctx.everybody, 1), fl.Stage("train", ctx.cohort, 1)]

        @fl.hookimpl
        def score(self, state: fl.State, stage: fl.Stage, phase: str, upload: Any) -> None:
            if phase == "after":
                self.seen.append((stage.kind, upload.ids.tolist(), state.seconds))

    method = Probes()
    settings = {**SPEEDS, "deadline": 9.0}
    watched(play_toy, ("probes", method), clock=settings, rounds=1)
    # six probe with two steps of six seconds; the model that all have is not sent again
    assert method.seen == [("probe", [0, 1, 2, 3, 4, 5], 15.0), ("train", [0, 1, 2, 3], 24.0)]


@pytest.mark.parametrize("more", [{"dropout": 0.9}, {"deadline": 1.0}])
def test_nobody_is_left_out_of_a_probe(more: dict[str, float], play_toy: Play) -> None:
    @dataclass(frozen=True)
    class OnlyProbes:
        seen: list[Any] = field(default_factory=list)

        @fl.hookimpl
        def plan(self, ctx: fl.Context) -> list[fl.Stage]:
            return [fl.Stage("probe", ctx.everybody, 2)]

        @fl.hookimpl
        def score(self, phase: str, upload: Any) -> None:
            if phase == "after":
                self.seen.append(len(upload.ids))

    method = OnlyProbes()
    played, _ = watched(play_toy, ("probes", method), clock={**SPEEDS, **more}, rounds=2)
    assert method.seen == [6, 6]
    assert played.state.seconds == 54.0


def test_a_client_that_trains_two_candidates_takes_twice_as_long(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Two:
        @fl.hookimpl
        def plan(self, ctx: fl.Context) -> list[fl.Stage]:
            return [fl.Stage("trial", ctx.everybody, 2)]

        @fl.hookimpl
        def dispatch(self, state: fl.State) -> fl.Start:
            return fl.Start(params=state.models.expand(6, 2, -1))

    clock = {"seconds_per_step": SPEEDS["seconds_per_step"]}
    played, _ = watched(play_toy, ("two", Two()), clock=clock, rounds=1)
    assert played.state.seconds == 2 * 24.0


def test_what_clients_get_from_each_other_is_received(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Peers:
        @fl.hookimpl
        def plan(self, ctx: fl.Context) -> None:
            ctx.send("peer", ctx.everybody, "model", WIDTH)

        @fl.hookimpl
        def aggregate(self, ctx: fl.Context) -> None:
            ctx.send("peer", torch.tensor([2]), "model", WIDTH)

    played, watch = watched(play_toy, ("peers", Peers()), clock=SPEEDS, rounds=1)
    assert watch.times == [29.0]
    assert played.state.seconds == 31.0


def test_what_is_sent_beside_the_stages_takes_its_time(play_toy: Play) -> None:
    """Half a model down to everybody, and as much from one client, after the stage."""

    @dataclass(frozen=True)
    class Sends:
        @fl.hookimpl
        def aggregate(self, ctx: fl.Context) -> None:
            ctx.send("down", ctx.everybody, "more", WIDTH // 2)
            ctx.send("up", torch.tensor([3]), "more", WIDTH // 2)

    played, _ = watched(play_toy, ("sends", Sends()), clock=SPEEDS, rounds=1)
    assert played.state.seconds == 27 + 1 + 0.5


def test_models_that_were_sent_before_a_stage_are_part_of_it(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class SendsFirst:
        @fl.hookimpl
        def plan(self, state: fl.State, ctx: fl.Context) -> None:
            ctx.send_models(ctx.cohort, state.models)

    played, _ = watched(play_toy, ("sends", SendsFirst()), clock=SPEEDS, rounds=1)
    assert played.state.seconds == 27.0


# --- stages that began before ------------------------------------------------------------------


@dataclass(frozen=True)
class Late:
    """Client 2 was called at second 1, client 5 a second later; the round begins at 0 or later."""

    at: tuple[float, float] = (1.0, 2.0)

    @fl.hookimpl
    def plan(self) -> list[fl.Stage]:
        called = torch.tensor(self.at, dtype=torch.float64)
        return [fl.Stage("train", torch.tensor([2, 5]), 2, started=called)]


def test_an_upload_arrives_its_duration_after_the_call(play_toy: Play) -> None:
    """Client 2 takes 15 seconds and client 5 takes 27; nobody is called in the future."""
    _, watch = watched(play_toy, ("late", Late()), clock=SPEEDS, rounds=3)
    found = [upload.arrivals.tolist() for upload in watch.uploads]
    assert found == [[15.0, 27.0], [27.0, 29.0], [29.0, 29.0]]
    assert watch.times == [27.0, 29.0, 29.0]


def test_a_stage_that_is_not_waited_for_has_no_deadline(play_toy: Play) -> None:
    settings = {**SPEEDS, "deadline": 20.0}
    _, watch = watched(play_toy, ("late", Late()), clock=settings, rounds=1)
    assert watch.uploads[0].ids.tolist() == [2, 5]
    assert watch.times == [27.0]


@pytest.mark.parametrize(
    ("started", "message"),
    [
        (torch.zeros(3), "stage 'train': started returned shape (3,), expected (6,)"),
        (torch.full((6,), -1.0), "started expects seconds >= 0, got [-1.0"),
        (torch.full((6,), torch.nan), "started expects seconds >= 0, got [nan"),
        (torch.full((6,), torch.inf), "started expects seconds >= 0, got [inf"),
    ],
)
def test_other_times_of_a_call_are_refused(
    started: torch.Tensor, message: str, play_toy: Play
) -> None:
    method = bad(plan=lambda self, ctx: [fl.Stage("train", ctx.everybody, 1, started=started)])
    assert message in refused(play_toy, method)


def test_the_context_predicts_what_the_clock_says(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Asks:
        found: list[Any] = field(default_factory=list)

        @fl.hookimpl
        def setup(self, ctx: fl.Context) -> None:
            stage = fl.Stage("train", ctx.everybody, 2)
            self.found.append(ctx.durations(stage))
            few = fl.Stage("train", torch.tensor([1, 3]), torch.tensor([0.5, 2.0]), steps=3)
            self.found.append(ctx.durations(few, bits_down=0, bits_up=8))

    asks = Asks()
    _, watch = watched(play_toy, ("asks", asks), clock=SPEEDS, rounds=1)
    assert torch.equal(asks.found[0], watch.uploads[0].arrivals)
    assert asks.found[1].tolist() == [1 * 2 + 8 / BITS, 3 * 4 + 8 / BITS]


def test_without_a_clock_a_method_that_needs_one_is_undefined(play_toy: Play) -> None:
    method = bad(setup=lambda self, ctx: ctx.durations(TRAIN))
    assert "the suite has no clock" in refused(play_toy, method)


def test_the_next_arrivals_by_hand() -> None:
    """0 takes 1 second, 1 takes 2.5; 2 is not called; at equal times the lower id is first."""
    called, seconds = torch.tensor([0.0, 0.0, torch.inf]), torch.tensor([1.0, 2.5, 1.0])
    found = fl.asynchrony.next_arrivals(called, seconds, 7)
    assert found == [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (0, 4), (1, 2.5)]
    lost = fl.asynchrony.next_arrivals(called, seconds, 2, now=2.0)
    assert lost == [(0, 1.0), (1, 0.0)], "the first upload of client 0"


# --- laws --------------------------------------------------------------------------------------


def test_without_a_clock_a_result_says_nothing_of_time(play_toy: Play) -> None:
    played = play_toy("fedavg")
    assert "clock" not in played.job.suite.settings()
    assert not {"simulated_seconds", "seconds_to_target"} & played.result.summary.keys()
    assert "simulated_seconds" not in played.result.curves
    assert played.state.seconds == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "pfedlia", "scaffold", "ifca", "fedrod"])
def test_a_clock_alone_changes_no_model(method: str, play_toy: Play) -> None:
    settings = {"warmup": 1, "probe_epochs": 2} if method == "pfedlia" else None
    clock = {**SPEEDS, "dropout": 0.0, "stragglers": {"share": 0.5, "factor": 3}}
    plain = play_toy(method, settings=settings)
    timed = play_toy(method, settings=settings, clock=clock)
    assert torch.equal(plain.state.models, timed.state.models)
    assert plain.run.ledger.totals == timed.run.ledger.totals
    one, other = plain.result.curves, dict(timed.result.curves)
    assert other.pop("simulated_seconds")[-1] > 0
    assert one == other


HARD = {
    "seconds_per_step": {"distribution": "lognormal", "median": 1.0, "sigma": 0.5},
    "up": {"distribution": "uniform", "low": BITS / 2, "high": BITS},
    "down": BITS,
    "dropout": 0.2,
    "stragglers": {"share": 0.2, "factor": 3.0},
    "deadline": 8.0,
}
"""Everything at once."""


@pytest.mark.slow
def test_a_run_that_goes_on_ends_at_the_same_time(play_toy: Play, tmp_path: Path) -> None:
    whole = play_toy("fedavg", clock=HARD, rounds=4)
    again = resumed(whole, tmp_path, 2)
    assert again.state.seconds == whole.state.seconds > 0
    assert again.stable == whole.stable


@pytest.mark.slow
def test_all_executors_see_the_same_times(play_toy: Play) -> None:
    pair = [
        watched(play_toy, clock=HARD, rounds=4, executor=name)
        for name in ("sequential", "vectorised")
    ]
    for (one, first), (other, second) in [pair]:
        assert first.times == second.times
        assert [u.ids.tolist() for u in first.uploads] == [u.ids.tolist() for u in second.uploads]
        assert [u.arrivals.tolist() for u in first.uploads] == [
            u.arrivals.tolist() for u in second.uploads
        ]
        assert one.run.ledger.totals == other.run.ledger.totals


@pytest.mark.slow
def test_two_processes_see_the_same_times() -> None:
    expected = clocked_end(HARD, 1)
    assert expected["seconds"][-1] > 0
    assert in_process_group(clocked_end, 2, HARD, 2) == [expected, expected]


@pytest.mark.slow
def test_clients_under_other_ids_arrive_at_the_same_times(play_toy: Play) -> None:
    whole, order = play_toy("fedavg", clock=HARD), (2, 4, 0, 5, 1, 3)
    run, state = prepare(whole.job, toy_dataset(), order)
    other = run_rounds(run, state)
    assert other.seconds == pytest.approx(whole.state.seconds, rel=0, abs=0)
    torch.testing.assert_close(other.models, whole.state.models)


# --- parts -------------------------------------------------------------------------------------


def test_a_selection_of_uploads_takes_every_field(play_toy: Play) -> None:
    _, watch = watched(play_toy, clock=SPEEDS, rounds=1)
    upload = replace(
        watch.uploads[0],
        bits=torch.arange(6)[:, None],
        extras={"more": torch.arange(6)},
        kept={"own": torch.arange(6)},
    )
    few = upload.select(torch.tensor([1, 4]))
    for name, value in vars(upload).items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(getattr(few, name), value[[1, 4]], equal_nan=True)
    assert few.extras["more"].tolist() == few.kept["own"].tolist() == [1, 4]


def test_a_timer_without_a_clock_changes_nothing(play_toy: Play) -> None:
    _, watch = watched(play_toy, rounds=1)
    stage, timer = (
        fl.Stage("train", torch.arange(6), 1),
        StageTimer(None, CommunicationLedger(6), 1),
    )
    upload: Any = watch.uploads[0]
    assert upload.arrivals is None
    start: Any = object()
    assert timer.answers(stage, upload, start) == (upload, start)
    assert timer.arrive(stage, upload, 3.0) == (stage, upload, 3.0)
    assert timer.afterwards(3.0) == 3.0


def test_a_result_with_a_clock_is_read_and_timed_again(play_toy: Play) -> None:
    played = play_toy("fedavg", clock=SPEEDS, target=0.3)
    result = type(played.result).model_validate(json.loads(played.result.canonical()))
    assert result == played.result
    first = next(i for i, v in enumerate(result.curves["accuracy"]) if (v or 0) >= 0.3)
    expected = result.curves["simulated_seconds"][first]
    assert result.summary["seconds_to_target"] == expected
    del result.summary["seconds_to_target"]
    assert result.metrics()["seconds_to_target"] == expected


def test_toy_suites_take_a_clock() -> None:
    assert toy_suite(clock=HARD).hash() != toy_suite().hash()


# --- edge servers between ------------------------------------------------------------------------

EDGES = torch.tensor([0, 0, 0, 1, 1, 1])
NEAR = {
    "seconds_per_step": SPEEDS["seconds_per_step"],
    "client_edge": BITS,
    "edge_cloud": [BITS, BITS / 2],
    "up": 1.0,
    "down": 1.0,
}
"""A model takes a second between client and edge, and one or two between edge and server."""


@dataclass(frozen=True)
class Hierarchy:
    """Two edges; in even rounds both send their model to the server and get one back."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(models=ctx.initial.repeat(2, 1), membership=fl.Membership(EDGES))

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> list[fl.Stage]:
        return [fl.Stage("train", ctx.everybody, 2, edges=EDGES)]

    @fl.hookimpl(wrapper=True)
    def aggregate(self, ctx: fl.Context) -> Any:
        models = yield
        if ctx.round % 2:
            return models
        ctx.send("edge-cloud", torch.arange(2), "model", 2 * WIDTH)
        return replace(models, rows=models.rows.mean(dim=0).expand(2, -1).clone())


def test_edges_have_links_of_their_own(play_toy: Play) -> None:
    """A round takes 24 seconds of steps and 2 of models; the slower edge takes 4 more."""
    played, watch = watched(play_toy, ("hierarchy", Hierarchy()), clock=NEAR, rounds=2)
    assert watch.times == [26.0, 52.0]
    assert played.state.seconds == 56.0
    near, above = 4 * 2 * 2 * CLIENTS * WIDTH, 4 * 2 * 2 * WIDTH
    result = played.result
    assert result.bytes == {
        "down": {}, "up": {}, "peer": {},
        "client-edge": {"model": near}, "edge-cloud": {"model": above},
    }  # fmt: skip
    assert result.curves["bytes_client-edge"] == [near / 2, near]
    assert result.curves["bytes_edge-cloud"] == [None, above], "nothing crossed in round 1"
    assert sum(result.clients.bytes) == near, "what edges send is no client's"
    assert result.summary["mb_per_client"] == pytest.approx(near / CLIENTS / 1e6)
    assert list(_numbers(result)) == []


def test_links_of_edge_servers_that_nobody_uses_are_said_once(play_toy: Play) -> None:
    said = "round 1: 'clock.client_edge' and 'clock.edge_cloud' without effect"
    plain = play_toy("fedavg", clock=NEAR, rounds=2).result
    assert [one for one in plain.warnings if said in one] == [
        f"{said}: no client has an edge server"
    ]
    near, _ = watched(play_toy, ("hierarchy", Hierarchy()), clock=NEAR, rounds=1)
    quick = play_toy("fedavg", clock=SPEEDS, rounds=1).result
    others = (*near.result.warnings, *quick.warnings)
    assert not [one for one in others if "without effect" in one]


def test_each_edge_that_sends_needs_a_speed(play_toy: Play) -> None:
    short = {**NEAR, "edge_cloud": [BITS]}
    watched(play_toy, ("hierarchy", Hierarchy()), clock=short, rounds=1)  # no edge sends in round 1
    with pytest.raises(UserError, match=r"'clock\.edge_cloud': expected 2 numbers.*got 1"):
        watched(play_toy, ("hierarchy", Hierarchy()), clock=short, rounds=2)


def test_a_deadline_that_nobody_waits_for_is_said(play_toy: Play) -> None:
    clock = {**SPEEDS, "deadline": 5.0, "absent": 0.5}
    said = "'clock.deadline' and 'clock.absent' without effect: every client trains at times of its"
    assert [said in one for one in play_toy("fedasync", clock=clock, rounds=2).said] == [True]
    assert not any("effect" in one for one in play_toy("fedavg", clock=clock, rounds=1).said)
    assert not any("effect" in one for one in play_toy("fedasync", clock=SPEEDS, rounds=1).said)


def test_uniform_speeds_may_be_given_in_any_order() -> None:
    low_high, high_low = (
        drawn(Uniform(distribution="uniform", low=one, high=other), np.random.default_rng(0), 9)
        for one, other in ((1.0, 3.0), (3.0, 1.0))
    )
    assert low_high.tolist() == high_low.tolist()
    assert 1 <= low_high.min() < low_high.max() <= 3


def test_how_long_clients_of_edges_take_is_known_in_advance(play_toy: Play) -> None:
    seen: list[list[float]] = []

    @dataclass(frozen=True)
    class Asks(Hierarchy):
        @fl.hookimpl
        def plan(self, ctx: fl.Context) -> list[fl.Stage]:
            stage = fl.Stage("train", ctx.everybody, 2, edges=EDGES)
            seen.append(ctx.durations(stage).tolist())
            return [stage]

    _, watch = watched(play_toy, ("asks", Asks()), clock=NEAR, rounds=1)
    assert seen == [[4.0 * (i + 1) + 2 for i in range(CLIENTS)]]
    assert watch.uploads[0].arrivals.tolist() == seen[0]


def test_a_run_with_edges_is_resumed(play_toy: Play, tmp_path: Path) -> None:
    whole, _ = watched(play_toy, ("hierarchy", Hierarchy()), clock=NEAR, rounds=4)
    again = resumed(whole, tmp_path, after=2)
    assert again.stable == whole.stable


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        ([0, 1], "stage 'train': edges returned shape (2,), expected (6,)"),
        ([0, 1, 2, 3, 4, 6], "stage 'train': edges expects numbers of edges in 0..5, got [0, 1"),
    ],
)
def test_edges_that_do_not_fit_are_refused(edges: list[int], said: str, play_toy: Play) -> None:
    def plan(self: object, ctx: fl.Context) -> list[fl.Stage]:
        return [fl.Stage("train", ctx.everybody, 1, edges=torch.tensor(edges))]

    assert said in refused(play_toy, bad(plan=plan))


def test_a_suite_without_edges_has_the_hash_that_it_had() -> None:
    """The two speeds are younger than its files."""
    suite = load_suite("slow-clients")
    assert suite.clock is not None
    assert not {"client_edge", "edge_cloud"} & suite.settings()["clock"].keys()
    near = toy_suite(clock={"client_edge": 5.0})
    assert near.settings()["clock"]["client_edge"] == 5.0
    assert "edge_cloud" not in near.settings()["clock"]
