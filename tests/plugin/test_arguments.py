"""What hooks are given: listeners get copies, and what others write into it is found in every run.

The attacks of a sink are tried all at once: a run that ends with other bytes shows the hole.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mentions
from toy import CLIENTS, Play, Played, bad, composition, refused, toy_dataset

import flbench as fl
from flbench.core.bank_budget import RowStore
from flbench.core.model_bank import ModelBank
from flbench.engine.options import EngineOptions
from flbench.errors import PluginError
from flbench.plugin.arguments import Marks, copied, tensors
from flbench.results.files import read_result
from flbench.results.schema import VOLATILE, Result
from flbench.run.checkpoint_file import discard
from flbench.run.composition import MethodStack
from flbench.run.runner import execute
from flbench.run.setup import prepare


@dataclass(frozen=True)
class Keeping:
    """A model per client, memories of all scopes, weights, terms, reports, coders, predictors.

    `writes` is what a hook or a function writes to, by its place: place -> function of what it got.
    """

    writes: Any = ()

    def at(self, place: str, *got: Any) -> None:
        with torch.no_grad():
            dict(self.writes).get(place, lambda *_: None)(*got)

    @fl.hookimpl
    def setup(self, ctx: Any) -> fl.Setup:
        self.at("setup", ctx)
        memory = {
            "keeping.bank": fl.Memory(ctx.repeated(ctx.initial), "client"),
            "keeping.seen": fl.Memory(torch.zeros(ctx.clients), "client"),
            "keeping.total": fl.Memory(torch.zeros(2), "run"),
        }
        home = fl.Membership(torch.arange(ctx.clients), weights=torch.eye(ctx.clients))
        return fl.Setup(ctx.repeated(ctx.initial), home, memory)

    @fl.hookimpl
    def plan(self, state: Any, ctx: Any) -> None:
        self.at("plan", state, ctx)

    @fl.hookimpl
    def dispatch(self, stage: Any, state: Any) -> fl.Start:
        self.at("dispatch", state, stage)
        own = state.memory["keeping.seen"][stage.clients]
        return fl.Start(
            extras={"told": torch.ones(len(stage.clients), 2)}, client_memory={"o": own}
        )

    @fl.hookimpl
    def local_term(self, state: Any) -> Any:
        def term(module: Any) -> torch.Tensor:
            self.at("term", state, module)
            return module.flat().square().sum() * 1e-3

        return term

    @fl.hookimpl
    def report(self, state: Any) -> Any:
        def report(module: Any, x: Any, y: Any) -> fl.Report:
            self.at("report", state)
            return fl.Report(sent={"mean": x.mean()[None]})

        return report

    @fl.hookimpl
    def encode(self) -> Any:
        def coder(message: Any) -> Any:
            self.at("coder", message)
            return message.sending(message.update * 0.5, memory={"keeping.seen": torch.tensor(1.0)})

        return coder

    @fl.hookimpl
    def score(self, state: Any, upload: Any, phase: str, ctx: Any) -> fl.Scores | None:
        self.at(f"score {phase}", state, upload, ctx)
        if phase == "before":
            return None
        values = torch.ones(ctx.clients, ctx.clients, dtype=torch.float64)
        return fl.Scores(values, ctx.everybody, "clients", ctx.everybody)

    @fl.hookimpl
    def cluster(self, state: Any, scores: Any) -> None:
        self.at("cluster", state, scores)

    @fl.hookimpl
    def aggregate(self, state: Any, upload: Any, membership: Any, ctx: Any) -> fl.Models:
        self.at("aggregate", state, upload, membership, ctx)
        rows = state.models.clone()
        rows[upload.ids] = upload.selected()
        total = state.memory["keeping.total"] + 1
        return fl.Models(rows, {"keeping.total": total, "keeping.bank": rows.clone()})

    @fl.hookimpl
    def personalise(self, state: Any, clients: Any) -> fl.Personal:
        self.at("personalise", state, clients)

        def predictor(module: Any, x: Any) -> Any:
            self.at("predictor", state)
            return module.predict(x)

        return fl.Personal(
            row=clients, predictor=predictor, extras={"e": torch.zeros(len(clients))}
        )


def keeping(**writes: Callable[..., Any]) -> MethodStack:
    """The method, with what it writes: place (spaces as _) -> function."""
    named = tuple((place.replace("_", " "), write) for place, write in writes.items())
    return composition(("mine", Keeping(named)))


# --- what a sink may not change ---------------------------------------------------------------


class Hostile:
    """A sink that writes to everything it gets, in all ways that are known; `did` counts them."""

    def __init__(self) -> None:
        self.did = 0

    def tries(self, *attacks: Callable[[], Any]) -> None:
        """All of them, whichever fails."""
        for attack in attacks:
            with suppress(Exception):
                attack()
                self.did += 1

    def surroundings(self) -> None:
        self.tries(
            lambda: torch.manual_seed(7),
            lambda: np.random.seed(7),
            lambda: random.seed(7),
            lambda: torch.rand(5),
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_grad_enabled(False),
            lambda: torch.set_autocast_enabled("cpu", True),
            lambda: torch.set_flush_denormal(True),
            lambda: os.chdir("/"),
        )

    def tables(self, value: Any) -> None:
        """Every tensor of it, written through every door."""
        for _, tensor in list(tensors(value, "")):
            rows = tensor.stored if isinstance(tensor, ModelBank) else []
            for one in (tensor, *rows):
                self.tries(
                    lambda one=one: one.zero_(),
                    lambda one=one: one.data.fill_(1),
                    lambda one=one: one.detach()[...].fill_(2),
                    lambda one=one: one.numpy().fill(3),
                    lambda one=one: one.__setitem__(0, one[0] + 1),
                    lambda one=one: one.untyped_storage().fill_(1),
                    lambda one=one: one.set_(torch.zeros(1)),
                )

    @fl.hookimpl
    def run_started(self, info: Any) -> None:
        self.surroundings()
        self.tries(
            lambda: info.params.update(mu=9),
            lambda: info.settings.update(rounds=1, participation=1.0),
            lambda: info.groups.reverse(),
            lambda: info.settings["local"].update(lr=0.0),
            lambda: object.__setattr__(info, "path", "elsewhere"),
        )

    @fl.hookimpl
    def round_finished(self, record: Any, state: Any) -> None:
        self.surroundings()
        self.tables(state)
        self.tries(
            lambda: record.metrics.update(accuracy=1.0),
            lambda: record.labels.__setitem__(slice(None), [0] * CLIENTS),
            lambda: record.notes.update(x=1),
            lambda: state.memory.clear(),
            lambda: state.scopes.clear(),
            lambda: object.__setattr__(state, "round", 99),
            lambda: object.__setattr__(state.membership, "home", torch.zeros(CLIENTS).long()),
            lambda: vars(state).update(models=torch.zeros(1, 1)),
        )

    @fl.hookimpl
    def run_finished(self, result: Any, path: str) -> None:
        self.surroundings()
        self.tries(
            lambda: result.summary.update(accuracy=1.0),
            lambda: result.curves["accuracy"].clear(),
            lambda: result.clients.correct.reverse(),
            lambda: result.notes.append({}),
            lambda: Path(path).write_text("{}"),
        )


def results(played: Played, *sinks: Any) -> tuple[Result, dict[str, Any], list[str]]:
    """What a whole run ends with: its result, its file's content, and what the person is told."""
    job = replace(played.job, sinks=tuple((f"sink{i}", one) for i, one in enumerate(sinks)))
    discard(job.checkpoint)
    job.path.unlink(missing_ok=True)
    played.said.clear()
    result = execute(job, lambda name, root: toy_dataset())
    found = read_result(job.path)
    assert found.model_dump(exclude={"digest"}) == result.model_dump(exclude={"digest"})
    return result, found.model_dump(exclude=set(VOLATILE)), list(played.said)


@pytest.mark.parametrize("budget", [None, 0], ids=["memory", "files"])
@pytest.mark.parametrize("method", ["fedavg", pytest.param("mine", marks=pytest.mark.slow)])
def test_a_hostile_sink_changes_no_number(play_toy: Play, method: str, budget: int | None) -> None:
    engine = EngineOptions(executor="sequential", accelerator="cpu", bank_budget=budget)
    one: Any = keeping() if method == "mine" else method
    place = Path.cwd()
    quiet = play_toy(one, engine=engine)
    hostile, heard = Hostile(), Looks()
    loud = play_toy(one, engine=engine, sinks=(("hostile", hostile), ("looks", heard)))
    assert Path.cwd() == place
    same_numbers(quiet.state, loud.state)
    assert quiet.run.history.curves == loud.run.history.curves
    assert quiet.run.history.membership == loud.run.history.membership
    assert heard.accuracy == quiet.run.history.curves["accuracy"], "nor what other sinks hear"
    assert results(quiet)[1] == results(loud, Hostile(), Looks())[1]
    assert hostile.did > 50, "the attacks are carried out"


class Looks:
    """A sink that reads."""

    def __init__(self) -> None:
        self.accuracy: list[float] = []
        self.models: list[torch.Tensor] = []

    @fl.hookimpl
    def round_finished(self, record: Any, state: Any) -> None:
        self.accuracy.append(round(record.metrics["accuracy"], 6))
        self.models.append(torch.stack([state.models[i] for i in range(len(state.models))]))


def same_numbers(one: fl.State, other: fl.State) -> None:
    """Bit for bit, wherever they lie."""
    pairs = [dict(tensors(state, "state")) for state in (one, other)]
    assert pairs[0].keys() == pairs[1].keys()
    for path, tensor in pairs[0].items():
        table = pairs[1][path]
        banks = [t.dense() if isinstance(t, ModelBank) else t for t in (tensor, table)]
        assert torch.equal(*banks), path


def test_what_a_sink_gets_is_what_the_run_has(play_toy: Play) -> None:
    looks = Looks()
    played = play_toy(keeping(), sinks=(("looks", looks),), rounds=2)
    assert torch.equal(looks.models[-1], played.state.models.dense())
    assert not torch.equal(looks.models[0], looks.models[1])


def test_a_file_that_a_sink_changed_is_written_again(play_toy: Play) -> None:
    class Removes:
        @fl.hookimpl
        def run_finished(self, path: str) -> None:
            Path(path).unlink()

    played = play_toy("fedavg", rounds=1)
    _, found, said = results(played, Removes())
    assert found["curves"]["accuracy"] == played.run.history.curves["accuracy"]
    assert [mentions(line, "sink", "changed") for line in said] == [True]
    assert results(played, Looks())[2] == []


def test_a_copy_shares_no_memory_with_an_argument() -> None:
    bank = ModelBank.repeated(torch.ones(3), 4, RowStore(None))
    table = torch.arange(6.0).view(2, 3)
    grown = table * torch.ones(3, requires_grad=True)  # no leaf: torch refuses to copy it
    state = fl.State(1, bank, fl.Membership(torch.zeros(4).long()), {"a": table[1], "b": grown})
    other = copied(state)
    assert isinstance(other.models, ModelBank)
    for _, tensor in tensors(other, "state"):
        tensor.fill_(7)
    assert torch.equal(bank.dense(), torch.ones(4, 3))
    assert torch.equal(table.flatten(), torch.arange(6.0))
    assert int(state.membership.home.sum()) == 0


# --- who draws and writes while the samples are divided ----------------------------------------


def test_a_method_that_leaves_the_partition_to_the_suite_leaves_it_alone(play_toy: Play) -> None:
    def partition(self: Any, labels: Any, rng: Any) -> None:
        rng.permutation(len(labels))
        labels.fill(0)

    played = play_toy(bad(partition=partition), rounds=1)
    assert played.run.marks.partition == play_toy("fedavg", rounds=1).run.marks.partition


def test_true_groups_are_a_copy(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Knows:
        uses_true_groups = True

        @fl.hookimpl
        def plan(self, ctx: Any) -> None:
            ctx.true_groups.zero_()

    played = play_toy(composition(("knows", Knows())), rounds=1)
    assert played.run.groups is not None and played.run.groups.unique().tolist() == [0, 1]


# --- what a method may not write to -----------------------------------------------------------

WRITES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "a row of the bank": (
        "aggregate", "state.models", lambda state, *_: state.models[3].add_(1),
    ),
    "rows of the bank": (
        "aggregate", "state.models", lambda state, *_: state.models.__setitem__([0, 1], 0.0),
    ),
    "the whole bank": ("cluster", "state.models", lambda state, *_: state.models.mul_(0.5)),
    "a stored row": ("plan", "state.models", lambda state, *_: state.models.read(2).zero_()),
    "a memory": (
        "aggregate", "state.memory['keeping.seen']",
        lambda state, upload, *_: state.memory["keeping.seen"].index_add_(
            0, upload.ids, torch.ones(len(upload.ids))
        ),
    ),
    "a memory that is a bank": (
        "plan", "state.memory['keeping.bank']",
        lambda state, *_: state.memory["keeping.bank"][0].zero_(),
    ),
    "a name of the memory": (
        "aggregate", "state.memory['keeping.total']",
        lambda state, *_: state.memory.update({"keeping.total": torch.ones(2)}),
    ),
    "another name": (
        "aggregate", "state.memory['new']",
        lambda state, *_: state.memory.update(new=torch.ones(1)),
    ),
    "a name that goes": (
        "cluster", "state.memory['keeping.total']",
        lambda state, *_: state.memory.pop("keeping.total"),
    ),
    "a field": (
        "plan", "state.models", lambda state, _: vars(state).update(models=state.models.clone()),
    ),
    "homes": ("score before", "state.membership.home", lambda s, *_: s.membership.home.add_(0)),
    "shares": (
        "aggregate", "state.membership.weights", lambda s, u, m, c: m.weights.div_(2),
    ),
    "uploads": ("aggregate", "upload.params", lambda s, upload, *_: upload.selected().clamp_(0, 1)),
    "reports": (
        "aggregate", "upload.extras['mean']", lambda s, upload, *_: upload.extras["mean"].neg_(),
    ),
    "losses": ("score after", "upload.loss", lambda s, upload, ctx: upload.loss.detach().zero_()),
    "scores": ("cluster", "scores.values", lambda state, s: s.values[0].zero_() if s else None),
    "the stage": ("dispatch", "stage.clients", lambda state, stage: stage.clients[0].sub_(0)),
    "clients": ("personalise", "clients", lambda state, clients: clients.sub_(0)),
    "initial weights": ("setup", "ctx.initial", lambda ctx: ctx.initial.view(-1)[:2].zero_()),
    "labels": ("plan", "ctx.label_counts", lambda state, ctx: ctx.label_counts.clamp_(max=1)),
    "samples": ("aggregate", "ctx.samples", lambda s, u, m, ctx: ctx.samples.fill_(1)),
    "the cohort": ("plan", "ctx.cohort", lambda state, ctx: ctx.cohort.zero_()),
    "a mask": (
        "aggregate", "ctx.layout.head", lambda s, u, m, ctx: ctx.layout.head.logical_not_(),
    ),
    "a mask that is made for it": (
        "plan", "ctx.layout.norm", lambda state, ctx: ctx.layout.norm.fill_(True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRITES)
def test_what_a_hook_writes_to_its_arguments_ends_the_run(play_toy: Play, what: str) -> None:
    place, path, write = WRITES[what]
    said = refused(play_toy, keeping(**{place.replace(" ", "_"): write}), rounds=1)
    when = "" if place == "setup" else "round 1: "
    hook = place.partition(" ")[0]
    advice = "which is not its own: write to a copy (`clone()`) and return that"
    assert said == f"{when}mine.{hook}: wrote to {path}, {advice}"


FUNCTIONS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "a term": ("term", "state.models", lambda state, module: state.models[0].zero_()),
    "a term, by what it received": (
        "term", "start.extras['told']", lambda state, module: module.received["told"].add_(1),
    ),
    "a report": (
        "report", "state.memory['keeping.seen']",
        lambda state: state.memory["keeping.seen"].zero_(),
    ),
    "a coder": ("coder", "upload.params", lambda message: message.params.mul_(0.5)),
    "a coder, by what the client keeps": (
        "coder", "state.memory['keeping.seen']",
        lambda message: message.memory["keeping.seen"].add_(1),
    ),
    "a coder, by the start": ("coder", "start.params", lambda message: message.start.zero_()),
    "a predictor": (
        "predictor", "state.memory['keeping.total']",
        lambda state: state.memory["keeping.total"].add_(1),
    ),
}  # fmt: skip
WHILE = {"term": "local training", "report": "local training", "coder": "encode",
         "predictor": "evaluation"}  # fmt: skip


@pytest.mark.parametrize("what", FUNCTIONS)
def test_what_a_function_of_a_hook_writes_ends_the_run(play_toy: Play, what: str) -> None:
    place, path, write = FUNCTIONS[what]
    said = refused(play_toy, keeping(**{place: write}), rounds=1)
    assert said.startswith(f"round 1: mine: {WHILE[place]} wrote to {path}, which is not its own: ")


def test_a_wrapper_that_writes_is_named_before_and_after_the_others(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Wraps:
        early: bool

        @fl.hookimpl(wrapper=True)
        def aggregate(self, state: Any, upload: Any) -> Generator[None, Any, Any]:
            if self.early:
                upload.params.clamp_(-0.1, 0.1)
            models = yield
            state.membership.home.zero_()
            return models

    for early, path in ((True, "upload.params"), (False, "state.membership.home")):
        layers = (*keeping().layers, ("wraps", Wraps(early)))
        said = refused(play_toy, composition(*layers), rounds=1)
        assert said.startswith(f"round 1: wraps.aggregate: wrote to {path}, ")


def test_a_hook_that_does_not_ask_for_the_state_cannot_write_to_it_either(play_toy: Play) -> None:
    """It wraps the answer of another, which is the bank itself."""

    @dataclass(frozen=True)
    class Same:
        @fl.hookimpl
        def aggregate(self, state: Any) -> fl.Models:
            return fl.Models(state.models)

    @dataclass(frozen=True)
    class Halves:
        @fl.hookimpl(wrapper=True)
        def aggregate(self) -> Generator[None, Any, Any]:
            models = yield
            models.rows.mul_(0.5)
            return models

    said = refused(play_toy, composition(("same", Same()), ("halves", Halves())), rounds=1)
    assert mentions(said, "round 1", "halves.aggregate", "state.models")


def test_reading_and_writing_copies_is_free(play_toy: Play) -> None:
    def reads(state: Any, upload: Any, membership: Any, ctx: Any) -> None:
        for row in (0, 3):
            assert state.models[row].sum() == state.models.read(row).sum()
        state.models.clone()[1].zero_()
        state.models[[0, 1]].zero_()
        state.models.numpy().fill(0)
        state.models.sort(dim=1)
        state.memory["keeping.seen"].clone().add_(1)
        upload.params[torch.arange(len(upload.ids))].zero_()
        membership.home.numpy().sum()
        assert ctx.layout.head is ctx.layout.head, "made when it is asked for"

    plain, read = play_toy(keeping(), rounds=2), play_toy(keeping(aggregate=reads), rounds=2)
    same_numbers(plain.state, read.state)


def test_marks_do_not_see_what_goes_round_the_counter() -> None:
    """The page says so; `inputs-untouched` of the kit compares the numbers."""
    one = torch.zeros(2)
    marks = Marks({"x": [one]})
    one.data.add_(1)
    one.numpy().fill(3)
    assert marks.written() == ""
    one[:1].detach().add_(1)
    assert marks.written() == "x[0]"


def test_a_table_of_inference_has_no_counter_and_needs_none() -> None:
    with torch.inference_mode():
        made = torch.zeros(2)
    marks = Marks({"x": made})
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        made.add_(1)
    assert marks.written() == ""


@pytest.fixture
def every_round() -> Iterator[None]:
    """Nothing is written between the first round and the end of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flbench.run.checkpoint.pause", lambda writing: 1e9)
        yield


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.usefixtures("every_round")
def test_a_round_that_was_written_to_is_not_kept(play_toy: Play, writes: bool) -> None:
    """The last whole round would be kept when an error ends the run, but it is no longer whole."""

    def third(state: Any, ctx: Any) -> None:
        if ctx.round == 3 and writes:
            state.models[0].add_(1)
        elif ctx.round == 3:
            raise ValueError("enough")

    with pytest.raises(PluginError, match="wrote to" if writes else "enough"):
        play_toy(keeping(plan=third))
    (job,) = (play_toy(keeping(), rounds=3, seed=1).job,)
    job = replace(job, seed=0, resume=True)
    _, state = prepare(job, toy_dataset())
    assert state.round == (1 if writes else 2)
