"""What a method needs with many clients, and the line that refuses it before its first round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mentions import mentioning
from toy import WIDTH, Play, bad, refused, toy_suite

import flbench as fl
from flbench.run import demand
from flbench.run.composition import compose
from flbench.run.demand import MANY, hours_of
from flbench.testing.small_run import run_small, small_dataset


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1 MB of memory that takes a second for an evaluation or 1e9 operations."""
    monkeypatch.setattr(demand, "free_memory", lambda: 1_000_000)
    monkeypatch.setattr(demand, "seconds_per_evaluation", lambda ctx: 1.0)
    monkeypatch.setattr(demand, "seconds_per_operation", lambda device: 1e-9)


def needing(**numbers: float) -> Any:
    def needs(self: Any, ctx: fl.Context) -> fl.Needs:
        return fl.Needs(**numbers)

    return bad(needs=needs)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("numbers", "memory", "hours"),
    [
        ({"scalars": 250_001}, "0.001", "0"),
        ({"evaluations": 3.6e6}, "0", "1e+03"),
        ({"operations": 3.7e14}, "0", "103"),
        ({"evaluations": 1.8e6, "operations": 1.8e15, "scalars": 5e8}, "2", "1e+03"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    play_toy: Play, numbers: Any, memory: str, hours: str
) -> None:
    assert refused(play_toy, needing(**numbers)) == mentioning(
        memory,
        "GB",
        "0.001 GB",
        hours,
        "training",
        "100",
        "6 models",
        WIDTH,
        "clients, participation or rounds",
    )


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "numbers", [{"scalars": 250_000}, {"evaluations": MANY.evaluations}, {"operations": 3.6e14}]
)
def test_what_can_be_is_not_refused(play_toy: Play, numbers: Any) -> None:
    said = [line for line in play_toy(needing(**numbers), rounds=1).said if "bad needs" in line]
    assert len(said) == ("operations" in numbers), "a person is told of hours"


def test_nobody_measures_where_little_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(demand, "seconds_per_evaluation")
    monkeypatch.delattr(demand, "seconds_per_operation")
    assert hours_of(MANY, None) == 0.0  # type: ignore[arg-type]


def test_speeds_are_measured_without_a_trace(play_toy: Play) -> None:
    ctx = play_toy("fedavg", rounds=1).run.context
    assert 0 < demand.seconds_per_evaluation(ctx) < 60
    assert 0 < demand.seconds_per_operation(torch.device("cpu")) < 60
    none = play_toy("fedavg", rounds=1, validation_fraction=0.0).run.context
    assert demand.seconds_per_evaluation(none) == 0.0


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_needs_that_are_none_are_refused(play_toy: Play, number: float) -> None:
    line = refused(play_toy, needing(scalars=number))
    assert line == f"round 1: bad.needs: scalars is {number}, expected a number >= 0"


@pytest.mark.parametrize("method", ["pfedlia", "apple", "fedamp"])
def test_everybody_with_everybody_grows_with_the_pairs(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three times the clients of as many samples it needs nine times as much time."""
    found: list[fl.Needs] = []
    monkeypatch.setattr(demand, "hours_of", lambda needs, ctx: found.append(needs) or 0.0)
    settings: dict[str, object] = {"warmup": 1} if method == "pfedlia" else {}
    for clients in (4, 12):
        suite = toy_suite(clients=clients, participation=1.0, rounds=2)
        run_small(compose(method, settings), suite, small_dataset(samples=12 * clients), last=0)
    few, many = found
    once, thrice = (one.operations + one.evaluations for one in (few, many))
    assert 7 * once < thrice < 10 * once
    assert many.scalars > 2 * few.scalars


def test_fedavg_has_no_pairs_to_wait_for(play_toy: Play) -> None:
    run = play_toy("fedavg", rounds=1).run
    assert run.hooks.needs(run.context) == []
