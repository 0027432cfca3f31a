"""Newcomers are served by every method's own rule, and cost the main result nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from every import Film, same_state, stable
from joined import JOIN, M, N, by_hand, greeted, joined, rows
from ledger_formulas import batchnorm
from made_results import page
from toy import Play, Played, bad, both, player, toy_dataset

import flbench as fl
from flbench.core.dataset import Dataset
from flbench.results.files import read_result
from flbench.results.schema import VOLATILE, Result
from flbench.run.result import build_result
from flbench.run.rounds import run_rounds
from flbench.run.runner import execute
from flbench.run.setup import prepare
from flbench.terminal.tables import print_table

pytestmark = pytest.mark.slow  # every method, played several times

SERVED = (
    "cfl",
    "clusterfl",
    "dc-pfl",
    "fedavg",
    "fedc2i",
    "fesem",
    "flis-hc",
    "kld-groups",
    "pfedlia",
)
"""The methods without a formula in `RULES`, and the defaults; the law newcomers-served has all."""

THEIRS = ("unseen", "suite", "fingerprint")
"""What a result says about newcomers, or about how they were asked for."""


def main_part(played: Played) -> dict[str, Any]:
    table = json.loads(build_result(played.job, played.run, played.state).canonical())
    return {key: value for key, value in table.items() if key not in (*THEIRS, *VOLATILE)}


def other_newcomers(played: Played) -> Dataset:
    """The same data set, but every sample of a newcomer is another one."""
    dataset: Dataset = JOIN["dataset"]
    theirs = (dataset.x[:, None] == both(played.run.newcomers).x).all(dim=2).any(dim=1)
    assert int(theirs.sum()) == len(both(played.run.newcomers).x) > 30
    return replace(dataset, x=torch.where(theirs[:, None], -dataset.x, dataset.x))


@pytest.mark.parametrize("method", SERVED)
def test_newcomers_are_served_and_are_of_no_consequence(
    method: str, play_toy: Play, tmp_path: Path
) -> None:
    played = joined(play_toy, method)
    before, samples = replace(played.state), played.run.executor.samples
    before = replace(before, models=before.models.clone(), memory=copied(before.memory))
    moved = json.dumps(played.run.ledger.totals)
    unseen, judged = greeted(played)
    assert same_state(played.state, before), "the state is frozen"
    assert played.run.executor.samples is samples
    assert played.run.services.ledger is played.run.ledger
    assert json.dumps(played.run.ledger.totals) == moved
    assert unseen.epochs == 2
    for correct in (unseen.correct, unseen.correct_tuned):
        assert all(0 <= right <= all_ for right, all_ in zip(correct, unseen.test, strict=True))
        assert len(correct) == len(unseen.train) == M
    assert not torch.equal(rows(played, judged[0]), rows(played, judged[1]))
    changes = {"unseen_epochs": 0, "dataset": other_newcomers(played)}
    assert main_part(joined(player(tmp_path), method, **changes)) == main_part(played)


def copied(memory: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in memory.items()}


# --- rules -------------------------------------------------------------------------------------


def losses(played: Played, split: str) -> torch.Tensor:
    """Cross-entropy of every newcomer under every row, shape (M, K)."""
    space, samples = played.run.executor.workspace, both(played.run.newcomers)
    found = torch.zeros(M, len(played.state.models))
    for place, row in enumerate(played.state.models):
        space.load(row)
        for guest, own in enumerate(samples.splits[split]):
            with torch.no_grad():
                logits = space.module(samples.x[own])
            found[guest, place] = torch.nn.functional.cross_entropy(logits, samples.y[own])
    return found


def best(split: str) -> Callable[[Played], torch.Tensor]:
    return lambda played: played.state.models[losses(played, split).argmin(dim=1)]


def initial_but(mask: str) -> Callable[[Played], torch.Tensor]:
    def expected(played: Played) -> torch.Tensor:
        found = played.run.context.initial.repeat(M, 1)
        shared = getattr(played.run.context.layout, mask)
        found[:, shared] = played.state.models[0, shared]
        return found

    return expected


def common(played: Played) -> torch.Tensor:
    return played.state.models[:1].expand(M, -1)


RULES: dict[str, Callable[[Played], torch.Tensor]] = {
    **dict.fromkeys(("fedavg", "fedavgm", "fednova", "fedprox", "scaffold", "centralised"), common),
    **dict.fromkeys(("fedrod", "per-fedavg"), common),
    **dict.fromkeys(("fedala", "feddyn", "fedem", "fedphp", "pfedme"), common),
    **dict.fromkeys(("local-only", "fedproto"), initial_but("none_mask")),
    **dict.fromkeys(("flis-dc", "fedfomo"), best("validation")),
    **dict.fromkeys(("fedpac", "fedper", "fedrep"), initial_but("body")),
    "ifca": best("train"),
    "lg-fedavg": initial_but("head"),
    "oracle": lambda played: played.state.models[played.run.newcomers.groups],
}


@pytest.mark.parametrize("method", RULES)
def test_a_newcomer_gets_the_model_that_the_methods_rule_says(method: str, play_toy: Play) -> None:
    played = joined(play_toy, method, rounds=5)
    _, judged = greeted(played)
    assert torch.equal(rows(played, judged[0]), RULES[method](played))
    if method in ("ifca", "oracle"):
        assert len(rows(played, judged[0]).unique(dim=0)) > 1, "they do not all go together"


def test_they_can_join_twice_to_the_same_end(play_toy: Play) -> None:
    played = joined(play_toy, "pfedlia", seed=1)
    (once, judged), (again, twice) = greeted(played), greeted(played)
    assert again == once
    for one, two in zip(judged, twice, strict=True):
        assert torch.equal(rows(played, one), rows(played, two))


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_tuned_means_exactly_so_many_local_epochs(epochs: int, play_toy: Play) -> None:
    played = joined(play_toy, "ifca", unseen_epochs=epochs)
    unseen, judged = greeted(played)
    assert unseen.epochs == epochs
    assert len(judged) == (2 if epochs else 1)
    if not epochs:
        assert unseen.correct_tuned == unseen.correct
    for guest, row in enumerate(rows(played, judged[0])):
        expected = by_hand(played, row, guest, epochs, "fine-tune")
        torch.testing.assert_close(rows(played, judged[-1])[guest], expected, rtol=0, atol=1e-6)
        assert torch.equal(expected, row) is (epochs == 0)


@pytest.mark.parametrize("policy", ["global", "local", "reset"])
@pytest.mark.parametrize("method", ["fedavg", "fesem", "local-only"])
def test_newcomers_have_the_statistics_that_the_policy_says(
    method: str, policy: str, play_toy: Play
) -> None:
    executor = "vectorised" if method == "fesem" else "sequential"
    played = joined(play_toy, method, net=batchnorm, buffers=policy, executor=executor)
    unseen, judged = greeted(played)
    p, initial = played.run.context.layout.parameters, played.run.context.initial
    first, tuned = (rows(played, personal) for personal in judged)
    fresh = (first[:, p:] == initial[p:]).all(dim=1)
    assert bool(fresh.all()) is (policy == "local" or method == "local-only")
    assert bool((tuned[:, -1] > first[:, -1]).all()), "training counts on from there"
    assert not torch.equal(first[:, :p], tuned[:, :p])
    if policy != "local" and method == "fedavg":
        assert torch.equal(first, played.state.models.expand(M, -1))
    assert sum(unseen.test) > 0


# --- whose rule fails --------------------------------------------------------------------------


def with_rule(answer: Callable[..., object] | None) -> Any:
    """A method with two rows, and its own answer for newcomers, or the default."""

    def setup(self: Any, ctx: fl.Context) -> fl.Setup:
        memory = {"bad.rows": fl.Memory(ctx.everybody % 2, "client")}
        return fl.Setup(ctx.initial.repeat(2, 1), fl.Membership(ctx.everybody % 2), memory)

    def join(self: Any, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> Any:
        return None if answer is None else answer(state, clients, ctx)

    return bad(setup=setup, join=join)


def raises(error: Exception) -> Callable[..., object]:
    def answer(*_: Any) -> object:
        raise error

    return answer


WITHOUT: dict[str, tuple[Callable[..., object] | None, str]] = {
    "a memory that does not know them": (
        lambda state, clients, ctx: fl.Personal(row=state.memory["bad.rows"][clients]),
        "bad.join raised IndexError",
    ),
    "too few rows": (
        lambda state, clients, ctx: fl.Personal(params=state.models),
        "bad.join returned shape (2, 28), expected (3, 28)",
    ),
    "a refusal": (raises(fl.UserError("nobody joins")), "bad.join: nobody joins"),
    "undefined": (raises(fl.Undefined("nobody joins")), "bad: nobody joins"),
    "no validation samples": (None, "defaults.join: a client has no validation samples"),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_a_rule_that_fails_costs_only_a_warning(case: str, play_toy: Play) -> None:
    answer, reason = WITHOUT[case]
    validation = 0.0 if case == "no validation samples" else 0.2
    played = play_toy(with_rule(answer), validation_fraction=validation, **JOIN)
    moved, samples = json.dumps(played.run.ledger.totals), played.run.executor.samples
    result = played.result
    assert result.unseen is None
    (said,) = result.warnings
    assert said.startswith("unseen clients are not reported: ")
    assert reason in said
    assert played.said == [said]
    assert result.summary["accuracy_mean"] is not None
    assert "unseen_accuracy" not in result.summary
    assert played.run.executor.samples is samples
    assert json.dumps(played.run.ledger.totals) == moved


def test_what_joining_sends_is_not_the_trainings_and_what_it_warns_of_is_kept(
    play_toy: Play,
) -> None:
    def join(self: Any, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> None:
        ctx.send("down", clients, "welcome", 1000)
        ctx.send_models(clients, state.models)
        ctx.warn("they are here")

    played = play_toy(bad(join=join), **JOIN)
    plain = play_toy("fedavg", **JOIN)
    assert played.result.warnings == ["they are here"]
    assert played.result.bytes == plain.result.bytes
    assert played.result.clients.bytes == plain.result.clients.bytes
    assert played.result.unseen == plain.result.unseen


# --- results -----------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> tuple[Played, Result]:
    """A toy run with newcomers, and the same from a job to a file."""
    played = joined(player(tmp_path), "ifca")
    return played, execute(replace(played.job, force=True), lambda *_: JOIN["dataset"])


def test_a_result_reports_them(written: tuple[Played, Result]) -> None:
    played, result = written
    unseen = result.unseen
    assert unseen is not None
    assert unseen == read_result(played.job.path).unseen == played.result.unseen
    assert json.loads(played.job.path.read_text())["unseen"]["epochs"] == 2
    for name, correct in (("", unseen.correct), ("_tuned", unseen.correct_tuned)):
        mean = sum(c / t for c, t in zip(correct, unseen.test, strict=True)) / M
        assert result.summary[f"unseen_accuracy{name}"] == pytest.approx(mean)
    samples = both(played.run.newcomers)
    assert unseen.train == samples.sizes("train").tolist()
    assert unseen.test == samples.sizes("test").tolist()
    assert unseen.group == played.run.newcomers.groups.tolist()
    for column in (result.clients.test, result.clients.bytes):
        assert len(column) == N, "the others are not among the clients"
    moved = sum(sum(items.values()) for items in result.bytes.values())
    assert result.summary["mb_per_client"] == pytest.approx(moved / N / 1e6)


def test_a_leaderboard_shows_them_only_where_there_are_some(
    written: tuple[Played, Result],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    played, result = written
    means = [f"{result.summary[f'unseen_accuracy{name}']:.4f}" for name in ("", "_tuned")]
    text = page(played.job.out)
    assert "| MB/client | unseen | unseen, tuned | seeds |" in text
    assert f"| {means[0]} | {means[1]} | 0 |" in text
    print_table([(played.job.path, result)])
    shown = capsys.readouterr().out
    assert "unseen, tuned" in shown
    assert means[1] in shown
    plain = player(tmp_path / "plain")("fedavg")
    execute(replace(plain.job, force=True), lambda *_: toy_dataset())
    assert "| unseen" not in page(plain.job.out)


def test_a_result_from_before_there_were_newcomers_can_be_read(
    written: tuple[Played, Result],
) -> None:
    played, _ = written
    table = json.loads(played.job.path.read_text())
    del table["unseen"], table["digest"]
    table["schema_version"] = 2
    played.job.path.write_text(json.dumps(table))
    assert read_result(played.job.path).unseen is None


@pytest.mark.usefixtures("checkpoint_every_round")
def test_a_run_interrupted_while_they_join_lets_them_join_again(tmp_path: Path) -> None:
    film = Film(tmp_path)
    played = joined(player(tmp_path), "fesem", sinks=(("film", film),))
    job = replace(played.job, out=tmp_path / "again", resume=True, sinks=())
    job.checkpoint.parent.mkdir(parents=True)
    shutil.copy(film.checkpoint(3), job.checkpoint)
    run, state = prepare(job, JOIN["dataset"])
    assert state.round == 3
    assert stable(Played(run, run_rounds(run, state), job)) == stable(played)
