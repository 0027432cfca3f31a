"""Plugins that misbehave: one line with plugin, hook and round, and nobody else is disturbed."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from toy import CLIENTS, Play, composition, toy_dataset, toy_suite

from flbench import (
    ClientModule,
    Membership,
    Memory,
    Models,
    Partition,
    Personal,
    Scores,
    Setup,
    Stage,
    Start,
    UserError,
    hookimpl,
    methods,
    registry,
)
from flbench.errors import Diverged, PluginError, Undefined, UnknownName
from flbench.methods import compose
from flbench.plugins import Hooks
from flbench.registry import Entry, entries, find
from flbench.runner import run_job

HOME = torch.zeros(CLIENTS, dtype=torch.int64)
EVERYBODY = torch.arange(CLIENTS)
WIDTH = 3 * 3 + 3 + 3 * 4 + 4  # the toy's perceptron: 3 -> 3 -> 4


def bad(**hooks: Callable[..., Any]) -> Any:
    """A method named `bad` whose hooks are the given functions."""
    body = {name: hookimpl(function) for name, function in hooks.items()}
    return composition(("bad", dataclass(frozen=True)(type("Bad", (), body))()))


def refused(play_toy: Play, method: Any, **changes: Any) -> str:
    with pytest.raises((PluginError, Undefined)) as caught:
        play_toy(method, **changes)
    return str(caught.value)


# --- what a plugin raises ---------------------------------------------------------------------


def test_a_plugin_that_raises_is_named_with_hook_and_round(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Raises:
        @hookimpl
        def aggregate(self, ctx: Any) -> None:
            if ctx.round == 2:
                raise ValueError("no such group")

    with pytest.raises(PluginError) as caught:
        play_toy(composition(("bad", Raises())))
    assert str(caught.value) == "round 2: bad.aggregate raised ValueError: no such group"
    assert isinstance(caught.value.__cause__, ValueError), "the cause is kept"
    assert caught.value.exit_code == 1


def test_what_raises_before_round_1_names_no_round(play_toy: Play) -> None:
    said = refused(play_toy, bad(setup=lambda self, ctx: {}["gone"]))
    assert said == "bad.setup raised KeyError: 'gone'"


@pytest.mark.parametrize(
    "hook",
    ["plan", "dispatch", "local_term", "score", "cluster", "aggregate", "personalise"],
)
def test_every_hook_of_a_round_is_guarded(play_toy: Play, hook: str) -> None:
    said = refused(play_toy, bad(**{hook: lambda self: 1 / 0}))
    assert said == f"round 1: bad.{hook} raised ZeroDivisionError: division by zero"


@pytest.mark.parametrize("hook", ["partition", "setup", "client_module"])
def test_every_hook_before_the_rounds_is_guarded(play_toy: Play, hook: str) -> None:
    said = refused(play_toy, bad(**{hook: lambda self: 1 / 0}))
    assert said == f"bad.{hook} raised ZeroDivisionError: division by zero"


def test_what_a_plugin_says_to_the_person_is_passed_on(play_toy: Play) -> None:
    def cluster(self: Any, ctx: Any) -> None:
        raise UserError("expected at least 7 clients; raise `clients`")

    said = refused(play_toy, bad(cluster=cluster))
    assert said == "round 1: bad.cluster: expected at least 7 clients; raise `clients`"


def test_divergence_keeps_its_own_exit_code(play_toy: Play) -> None:
    def score(self: Any) -> None:
        raise Diverged("lower local.lr")

    with pytest.raises(Diverged, match=r"^lower local\.lr$"):
        play_toy(bad(score=score))


def test_a_term_that_raises_names_plugin_and_round(play_toy: Play) -> None:
    def term(module: ClientModule) -> torch.Tensor:
        raise ValueError("no start")

    said = refused(play_toy, bad(local_term=lambda self: term))
    assert "round 1" in said
    assert "ValueError: no start" in said
    assert "bad.local_term" in said


def test_a_client_module_that_raises_names_client_stage_and_round(play_toy: Play) -> None:
    class Broken(ClientModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            raise ValueError("no labels")

    def client_module(self: Any, net: Any, ctx: Any) -> ClientModule:
        return Broken(net, ctx.local)

    played = bad(client_module=client_module)
    said = refused(play_toy, played, participation=1.0)
    assert said == "round 1: client 0 failed in stage 'train': ValueError: no labels"


# --- what a plugin returns --------------------------------------------------------------------


def test_a_wrong_shape_is_one_line_with_plugin_hook_and_round(play_toy: Play) -> None:
    def cluster(self: Any, ctx: Any) -> Membership | None:
        return Membership(home=torch.zeros(10, dtype=torch.int64)) if ctx.round == 2 else None

    said = refused(play_toy, bad(cluster=cluster))
    assert said == (
        "round 2: bad.cluster returned shape (10,), expected (6,): one group per client"
    )


def scores(values: torch.Tensor, **memory: torch.Tensor) -> Scores:
    n, m = values.shape
    named = {name.replace("__", "."): value for name, value in memory.items()}
    return Scores(values, torch.arange(n), "clients", torch.arange(m), named)


WRONG: list[tuple[str, Callable[[], Any], str]] = [
    ("cluster", lambda: [0] * CLIENTS, "bad.cluster returned list, expected Membership"),
    (
        "cluster",
        lambda: Membership(home=[0] * CLIENTS),  # type: ignore[arg-type]
        "bad.cluster returned list, expected (6,): one group per client",
    ),
    (
        "cluster",
        lambda: Membership(home=HOME + 1),
        "bad.cluster sent clients to row 1, expected -1..0",
    ),
    (
        "cluster",
        lambda: Membership(home=HOME - 2),
        "bad.cluster sent clients to row -2, expected -1..0",
    ),
    (
        "cluster",
        lambda: Membership(home=HOME, weights=-torch.ones(1, CLIENTS)),
        "bad.cluster returned negative shares, expected >= 0",
    ),
    (
        "cluster",
        lambda: Membership(home=HOME, weights=torch.full((1, CLIENTS), torch.nan)),
        "bad.cluster returned negative shares, expected >= 0",
    ),
    (
        "cluster",
        lambda: Membership(home=HOME, weights=torch.ones(CLIENTS, 1)),
        "bad.cluster returned shape (6, 1), expected (1, 6): share of each client in each row",
    ),
    (
        "cluster",
        lambda: Membership(home=HOME, parent=torch.tensor([0, 1])),
        "bad.cluster: parent expects old rows in 0..0, got [0, 1]",
    ),
    (
        "cluster",
        lambda: Membership(home=HOME, parent=torch.tensor([], dtype=torch.int64)),
        "bad.cluster: parent expects old rows in 0..0, got []",
    ),
    ("score", lambda: torch.zeros(6, 6), "bad.score returned Tensor, expected Scores"),
    (
        "score",
        lambda: scores(torch.full((6, 6), torch.inf)),
        "bad.score returned infinite scores, expected finite or NaN (= not asked)",
    ),
    (
        "score",
        lambda: replace(scores(torch.zeros(6, 6)), row_ids=torch.arange(3)),
        "bad.score returned shape (6, 6), expected (3, 6): judging clients x judged",
    ),
    ("aggregate", lambda: torch.zeros(1, WIDTH), "bad.aggregate returned Tensor, expected Models"),
    (
        "aggregate",
        lambda: Models(torch.zeros(2, WIDTH)),
        f"bad.aggregate returned shape (2, {WIDTH}), expected (1, {WIDTH}): one row per model",
    ),
    (
        "aggregate",
        lambda: Models(torch.zeros(1, WIDTH), {"bad.velocity": torch.zeros(1)}),
        "bad.aggregate: memory 'bad.velocity' was not declared in setup",
    ),
    ("personalise", lambda: HOME, "bad.personalise returned Tensor, expected Personal"),
    ("personalise", lambda: Personal(), "bad.personalise must give either `row` or `params`"),
    (
        "personalise",
        lambda: Personal(row=HOME, params=torch.zeros(CLIENTS, WIDTH)),
        "bad.personalise must give either `row` or `params`",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME[:2]),
        "bad.personalise returned shape (2,), expected (6,): one row per client",
    ),
    (
        "personalise",
        lambda: Personal(row=torch.tensor([0, 0, 0, 5, 0, -1])),
        "bad.personalise names no row for clients [3, 5]",
    ),
    (
        "personalise",
        lambda: Personal(params=torch.zeros(CLIENTS, 4)),
        f"bad.personalise returned shape (6, 4), expected (6, {WIDTH}): one model per client",
    ),
    ("plan", lambda: [], "bad.plan returned [], expected a sequence of Stage"),
    ("plan", lambda: ["train"], "bad.plan returned ['train'], expected a sequence of Stage"),
    (
        "plan",
        lambda: [Stage("train", torch.tensor([3, 1]), 1)],
        "bad.plan: stage 'train' expects ascending client ids in 0..5, at least one, got [3, 1]",
    ),
    (
        "plan",
        lambda: [Stage("train", torch.tensor([1, 1]), 1)],
        "bad.plan: stage 'train' expects ascending client ids in 0..5, at least one, got [1, 1]",
    ),
    (
        "plan",
        lambda: [Stage("train", torch.tensor([1, 6]), 1, "late")],
        "bad.plan: stage 'late' expects ascending client ids in 0..5, at least one, got [1, 6]",
    ),
    (
        "plan",
        lambda: [Stage("train", EVERYBODY, 1), Stage("train", EVERYBODY, 2)],
        "bad.plan: two stages of one round need different names, got ['train', 'train']",
    ),
    ("dispatch", lambda: {}, "bad.dispatch returned dict, expected Start"),
    (
        "dispatch",
        lambda: Start(extras={"told": torch.zeros(CLIENTS)}),
        "bad.dispatch: extras 'told' is (6,), expected 3 rows: one per acting client",
    ),
    (
        "dispatch",
        lambda: Start(own={"kept": 7}),  # type: ignore[dict-item]
        "bad.dispatch: own 'kept' is int, expected 3 rows: one per acting client",
    ),
]


@pytest.mark.parametrize(
    ("hook", "answer", "message"), WRONG, ids=[f"{hook}: {text}" for hook, _, text in WRONG]
)
def test_a_wrong_answer_is_one_line(
    play_toy: Play, hook: str, answer: Callable[[], Any], message: str
) -> None:
    said = refused(play_toy, bad(**{hook: lambda self: answer()}))
    assert said == f"round 1: {message}"


def remembered(name: str, shape: tuple[int, ...], scope: Any) -> Setup:
    return Setup(memory={name: Memory(torch.zeros(shape), scope)})


def dealt(*clients: Iterable[int], groups: Any = None) -> Partition:
    return Partition(tuple(np.asarray(list(rows), dtype=np.int64) for rows in clients), groups)


BEFORE: list[tuple[str, Callable[[], Any], str]] = [
    ("setup", lambda: {}, "bad.setup returned dict, expected Setup"),
    (
        "setup",
        lambda: Setup(models=torch.zeros(1, 4)),
        f"bad.setup returned shape (1, 4), expected (any, {WIDTH}): one row per model",
    ),
    (
        "setup",
        lambda: remembered("velocity", (1,), "run"),
        "bad.setup: memory 'velocity' must be named '<method>.<name>'",
    ),
    (
        "setup",
        lambda: remembered("bad.control", (5, 2), "client"),
        "bad.setup: memory 'bad.control' has 5 entries, expected 6: one per client",
    ),
    ("client_module", lambda: 3, "bad.client_module returned int, expected ClientModule"),
    ("partition", lambda: [[0]], "bad.partition returned list, expected Partition"),
    (
        "partition",
        lambda: dealt([0, 1, 2]),
        "bad.partition returned 1 lists, expected 6: one per client",
    ),
    (
        "partition",
        lambda: dealt(*[range(9 * i, 9 * i + 9) for i in range(5)], range(70, 73)),
        "bad.partition gave client 5 a sample outside 0..71",
    ),
    (
        "partition",
        lambda: dealt([-1, 2, 3], *[range(9 * i, 9 * i + 9) for i in range(1, 6)]),
        "bad.partition gave client 0 a sample outside 0..71",
    ),
    (
        "partition",
        lambda: dealt(*[range(9 * i, 9 * i + 9) for i in range(4)], [40, 40, 41], range(60, 70)),
        "bad.partition gave client 4 a sample twice",
    ),
    (
        "partition",
        lambda: dealt(*[range(9 * i, 9 * i + 9) for i in range(6)], groups=np.zeros(5, int)),
        "bad.partition returned groups of shape (5,), expected (6,): one true group per client",
    ),
]


@pytest.mark.parametrize(
    ("hook", "answer", "message"), BEFORE, ids=[f"{hook}: {text}" for hook, _, text in BEFORE]
)
def test_a_wrong_answer_before_round_1_is_one_line(
    play_toy: Play, hook: str, answer: Callable[[], Any], message: str
) -> None:
    assert refused(play_toy, bad(**{hook: lambda self: answer()})) == message


def test_a_first_membership_that_does_not_fit_names_the_plugin(play_toy: Play) -> None:
    said = refused(play_toy, bad(setup=lambda self: Setup(membership=Membership(HOME + 3))))
    assert said == "bad.setup sent clients to row 3, expected -1..0"


def test_a_memory_that_does_not_fit_the_bank_names_the_plugin(play_toy: Play) -> None:
    said = refused(play_toy, bad(setup=lambda self: remembered("bad.control", (2, 1), "model")))
    assert said == "bad.setup: memory 'bad.control' has 2 entries, expected 1: one per model"


def test_models_to_train_of_a_wrong_shape_name_the_plugin(play_toy: Play) -> None:
    said = refused(play_toy, bad(dispatch=lambda self: Start(params=torch.zeros(3, WIDTH))))
    assert said == (
        f"round 1: bad.dispatch returned shape (3, {WIDTH}), expected (3, any, {WIDTH}):"
        " clients, candidates, scalars"
    )


@pytest.mark.parametrize(
    "start",
    [
        Start(crosses=torch.ones(4, dtype=torch.bool)),
        Start(returns=torch.ones(2, WIDTH, dtype=torch.bool)),
        Start(active=torch.ones(1, 7, dtype=torch.bool)),
        Start(rows=torch.tensor([0, 0, 0])),
        Start(rows=torch.tensor([4])),
    ],
    ids=["crosses", "returns", "active", "rows: too many", "rows: none such"],
)
def test_every_field_of_a_start_is_checked(play_toy: Play, start: Start) -> None:
    said = refused(play_toy, bad(dispatch=lambda self: start))
    assert said.startswith("round 1: bad.dispatch")


def test_a_plan_that_is_no_sequence_is_one_line(play_toy: Play) -> None:
    said = refused(play_toy, bad(plan=lambda self: Stage("train", EVERYBODY, 1)))
    assert said.startswith("round 1: bad.plan returned Stage(")
    assert said.endswith("expected a sequence of Stage")


def test_a_term_that_is_no_function_is_one_line(play_toy: Play) -> None:
    said = refused(play_toy, bad(local_term=lambda self: 0.5))
    assert said.startswith("round 1: bad.local_term returned float")


def test_home_rows_that_are_no_integers_are_refused(play_toy: Play) -> None:
    said = refused(play_toy, bad(cluster=lambda self: Membership(home=HOME.float())))
    assert said.startswith("round 1: bad.cluster")


def test_personal_rows_that_are_no_integers_are_refused(play_toy: Play) -> None:
    said = refused(play_toy, bad(personalise=lambda self: Personal(row=HOME.float())))
    assert said.startswith("round 1: bad.personalise")


def test_a_bank_that_is_not_finite_is_refused(play_toy: Play) -> None:
    rows = torch.full((1, WIDTH), torch.nan)
    said = refused(play_toy, bad(aggregate=lambda self: Models(rows)))
    assert said.startswith("round 1: bad.aggregate")


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        ("score", lambda self: scores(torch.zeros(6, 6), bad__influence=torch.zeros(6, 6))),
        ("cluster", lambda self: Membership(HOME, memory={"bad.influence": torch.zeros(6, 6)})),
    ],
    ids=["score", "cluster"],
)
def test_memory_that_was_not_declared_is_refused(
    play_toy: Play, hook: str, answer: Callable[..., Any]
) -> None:
    said = refused(play_toy, bad(**{hook: answer}))
    assert said == f"round 1: bad.{hook}: memory 'bad.influence' was not declared in setup"


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        ("aggregate", lambda self, state: Models(state.models, {"bad.control": torch.zeros(2)})),
        ("score", lambda self: scores(torch.zeros(6, 6), bad__control=torch.zeros(2))),
        ("cluster", lambda self: Membership(HOME, memory={"bad.control": torch.zeros(2)})),
    ],
    ids=["aggregate", "score", "cluster"],
)
def test_memory_per_client_keeps_one_entry_per_client(
    play_toy: Play, hook: str, answer: Callable[..., Any]
) -> None:
    declared = remembered("bad.control", (CLIENTS,), "client")
    said = refused(play_toy, bad(setup=lambda self: declared, **{hook: answer}))
    assert said.startswith(f"round 1: bad.{hook}: memory 'bad.control' has 2 entries, expected 6")


def test_a_memory_declared_twice_is_an_error(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Keeps:
        @hookimpl
        def setup(self) -> Setup:
            return remembered("mine.velocity", (1,), "run")

    said = refused(play_toy, composition(("one", Keeps()), ("two", Keeps())))
    assert said == "one.setup: memory 'mine.velocity' is declared twice"


def test_two_memories_of_two_plugins_add_up(play_toy: Play) -> None:
    def keeps(name: str) -> Any:
        body = {"setup": hookimpl(lambda self: remembered(f"{name}.kept", (1,), "run"))}
        return dataclass(frozen=True)(type("Keeps", (), body))()

    played = play_toy(composition(("one", keeps("one")), ("two", keeps("two"))), rounds=1)
    assert set(played.state.memory) == {"one.kept", "two.kept"}
    assert dict(played.state.scopes) == {"one.kept": "run", "two.kept": "run"}


# --- hooks that do not exist ------------------------------------------------------------------


def test_a_misspelt_hook_is_an_error_that_names_plugin_and_hook(play_toy: Play) -> None:
    said = refused(play_toy, bad(agregate=lambda self, state: None))
    assert said.startswith("bad: ")
    assert "agregate" in said
    assert "\n" not in said


def test_a_wrong_hook_argument_is_an_error_that_names_plugin_and_argument(play_toy: Play) -> None:
    said = refused(play_toy, bad(cluster=lambda self, score: None))
    assert said.startswith("bad: ")
    assert "cluster" in said
    assert "'score'" in said
    assert "\n" not in said


def test_a_method_that_is_called_like_the_suite_runs(play_toy: Play) -> None:
    """A person's own suite file may have any name, a method's or a sink's included."""
    played = play_toy("oracle", settings={"warmup": 1}, name="oracle")
    assert played.result.summary["groups"] == 2


def test_a_suite_called_defaults_runs(play_toy: Play) -> None:
    assert play_toy("fedavg", name="defaults", rounds=1).state.round == 1


class Everything:
    """Answers every hook, each with another subset of its arguments; remembers what it got."""

    def __init__(self, seen: dict[str, Any]) -> None:
        self.seen = seen

    @hookimpl
    def partition(self, rng: Any, labels: Any) -> Partition:  # swapped, two left out
        self.seen["partition"] = (len(labels), type(rng))
        rows = rng.permutation(len(labels))
        return Partition(tuple(np.array_split(rows, CLIENTS)), np.zeros(CLIENTS, dtype=np.int64))

    @hookimpl
    def setup(self) -> None:
        self.seen["setup"] = True

    @hookimpl
    def plan(self, ctx: Any) -> None:
        self.seen["plan"] = ctx.round

    @hookimpl
    def dispatch(self, stage: Any) -> None:
        self.seen["dispatch"] = stage.label

    @hookimpl
    def client_module(self, ctx: Any, net: Any) -> ClientModule:  # swapped
        self.seen["client_module"] = True
        return ClientModule(net, ctx.local)

    @hookimpl
    def local_term(self) -> Any:
        def term(module: ClientModule) -> torch.Tensor:
            self.seen["local_term"] = tuple(module.start.shape)
            return torch.zeros(())

        return term

    @hookimpl
    def score(self, upload: Any, phase: str) -> None:
        self.seen[f"score {phase}"] = None if upload is None else upload.ids.tolist()

    @hookimpl
    def cluster(self, scores: Any) -> None:
        self.seen["cluster"] = scores

    @hookimpl
    def aggregate(self, membership: Any, state: Any) -> None:
        self.seen["aggregate"] = membership is state.membership

    @hookimpl
    def personalise(self, clients: Any) -> None:
        self.seen["personalise"] = clients.tolist()

    @hookimpl
    def run_started(self) -> None:
        self.seen["run_started"] = True

    @hookimpl
    def round_finished(self, state: Any) -> None:
        self.seen["round_finished"] = state.round

    @hookimpl
    def run_finished(self, path: str) -> None:
        self.seen["run_finished"] = Path(path).is_file()


def test_hooks_take_any_subset_of_their_arguments_in_any_order(play_toy: Play) -> None:
    seen: dict[str, Any] = {}
    played = play_toy(composition(("all", Everything(seen))), rounds=2)
    played.job.checkpoint.unlink(missing_ok=True)
    run_job(played.job, lambda name, root: toy_dataset())
    cohort = seen.pop("score after")
    assert len(cohort) == 3
    assert seen == {
        "partition": (72, np.random.Generator),
        "setup": True,
        "plan": 2,
        "dispatch": "train",
        "client_module": True,
        "local_term": (WIDTH,),
        "score before": None,
        "cluster": None,
        "aggregate": True,
        "personalise": list(range(CLIENTS)),
        "run_started": True,
        "round_finished": 2,
        "run_finished": True,
    }


def test_a_hook_may_be_answered_under_another_name(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Renamed:
        @hookimpl(specname="aggregate")
        def keep_the_bank(self, state: Any, ctx: Any) -> Models | None:
            if ctx.round == 2:
                raise ValueError("enough")
            return Models(state.models)

    said = refused(play_toy, composition(("bad", Renamed())))
    assert said == "round 2: bad.aggregate raised ValueError: enough"


# --- sinks ------------------------------------------------------------------------------------


class Boom:
    """A sink that fails at everything."""

    @hookimpl
    def run_started(self, info: Any) -> None:
        raise OSError("disk full")

    @hookimpl
    def round_finished(self, record: Any) -> None:
        raise OSError("disk full")

    @hookimpl
    def run_finished(self, result: Any) -> None:
        raise OSError("disk full")


class Hears:
    """A sink that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    @hookimpl
    def run_started(self, info: Any) -> None:
        self.heard.append(info.rounds)

    @hookimpl
    def round_finished(self, record: Any) -> None:
        self.heard.append(round(record.metrics["accuracy"], 6))

    @hookimpl
    def run_finished(self, result: Any, path: str) -> None:
        self.heard.append((result.summary["round"], Path(path).name))


def test_a_sink_that_raises_is_reported_and_the_run_goes_on(play_toy: Play) -> None:
    hears = Hears()
    played = play_toy("fedavg", sinks=(("hears", hears), ("boom", Boom())))
    text = "boom.round_finished failed (OSError: disk full); the run goes on"
    assert played.said == [text] * 3
    assert played.state.round == 3
    assert hears.heard == played.run.history.curves["accuracy"]
    assert played.run.history.last == play_toy("fedavg").run.history.last


def test_a_sink_that_fails_leaves_no_trace_in_the_result(play_toy: Play) -> None:
    played, quiet = play_toy("fedavg", sinks=(("boom", Boom()),)), play_toy("fedavg")
    assert len(played.said) == 3
    assert played.result.warnings == quiet.result.warnings == []


def test_a_sink_that_raises_at_both_ends_stops_nothing(play_toy: Play) -> None:
    first, last = Hears(), Hears()
    sinks = (("first", first), ("boom", Boom()), ("last", last))
    played = play_toy("fedavg", rounds=1, sinks=sinks)
    played.job.checkpoint.unlink(missing_ok=True)
    played.said.clear(), first.heard.clear(), last.heard.clear()
    result = run_job(played.job, lambda name, root: toy_dataset())
    assert played.job.path.is_file()
    assert first.heard == last.heard == [1, *result.curves["accuracy"], (1, "seed-0.json")]
    assert [text.partition(" ")[0] for text in played.said] == [
        "boom.run_started",
        "boom.round_finished",
        "boom.run_finished",
    ]


# --- the truth and the test samples stay hidden -----------------------------------------------


def test_true_groups_are_hidden_unless_declared(play_toy: Play) -> None:
    said = refused(play_toy, bad(cluster=lambda self, ctx: ctx.true_groups))
    assert said == (
        "round 1: bad.cluster: true groups are hidden; a method asks with `uses_true_groups = True`"
    )


def test_true_groups_that_do_not_exist_are_one_line(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class NoGroups:
        @hookimpl
        def partition(self, labels: Any) -> Partition:
            return Partition(tuple(np.arange(len(labels)).reshape(CLIENTS, -1)))

    told = composition(
        ("oracle", compose("oracle", {"warmup": 0}).layers[0][1]), ("nogroups", NoGroups())
    )
    assert refused(play_toy, told) == (
        "oracle: this partition has no true groups: choose another suite or method"
    )


_LEAVES = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.CodeType)


def _parts(thing: Any) -> Iterator[Any]:
    """Everything one step away: items, closures, bound objects, attributes, slots."""
    if isinstance(thing, Mapping):
        yield from thing.keys()
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from thing
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, weakref.ref):
        yield thing()
    elif isinstance(thing, types.GeneratorType) and thing.gi_frame is not None:
        yield thing.gi_frame.f_locals
    elif isinstance(thing, types.CellType):
        try:
            yield thing.cell_contents
        except ValueError:
            return
    for name in ("__self__", "__func__", "__wrapped__", "__closure__", "__defaults__"):
        yield getattr(thing, name, None)
    yield getattr(thing, "__kwdefaults__", None)
    yield getattr(thing, "__dict__", None)
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in [slots] if isinstance(slots, str) else slots:
            yield getattr(thing, slot, None)


def reachable(root: Any) -> list[Any]:
    """Every object that can be walked to, modules and classes excepted."""
    seen: dict[int, Any] = {}
    todo = [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, _LEAVES):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, torch.Tensor):
            todo += [thing.grad if thing.is_leaf else None, thing._base, vars(thing)]
        elif isinstance(thing, np.ndarray):
            todo.append(thing.base)
        else:
            todo += _parts(thing)
    return list(seen.values())


def shares_memory(found: Iterable[Any], hidden: Iterable[torch.Tensor]) -> list[Any]:
    """What is, or shares memory with, one of the hidden tensors."""
    places = {tensor.untyped_storage().data_ptr() for tensor in hidden}
    tensors = [torch.as_tensor(thing) for thing in found if _is_array(thing)]
    return [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() in places]


def _is_array(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) or (
        isinstance(thing, np.ndarray) and thing.dtype.kind in "iufb" and thing.flags.writeable
    )


def holds_sample_of(found: Iterable[Any], x: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that contain a copy of one of the samples."""
    rows = [t for t in found if isinstance(t, torch.Tensor) and t.shape[1:] == x.shape[1:]]
    return [t for t in rows if len(t) and bool((t[:, None] == x).flatten(2).all(2).any())]


def equals(found: Iterable[Any], groups: torch.Tensor) -> list[Any]:
    """What says the same as the true groups."""
    plain = groups.tolist()
    lists = [t for t in found if isinstance(t, (list, tuple)) and {type(v) for v in t} == {int}]
    arrays = [t.tolist() for t in found if _is_array(t) and len(t.shape) == 1]
    return [values for values in (*map(list, lists), *arrays) if values == plain]


@dataclass(frozen=True)
class Walker:
    """Walks from everything `personalise` is given."""

    found: list[Any]
    uses_true_groups: ClassVar[bool] = False

    @hookimpl
    def personalise(self, state: Any, clients: Any, ctx: Any) -> None:
        self.found[:] = reachable((state, clients, ctx))


@dataclass(frozen=True)
class ToldWalker(Walker):
    """The same, but it asks for the truth."""

    uses_true_groups: ClassVar[bool] = True


def test_personalise_reaches_no_test_sample_and_no_true_group(play_toy: Play) -> None:  # T29
    found: list[Any] = []
    played = play_toy(composition(("walker", Walker(found))))
    run, held_out = played.run, played.run.held_out
    hidden = [held_out.x, held_out.y, *held_out.splits["test"]]
    assert run.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert sum(len(rows) for rows in held_out.splits["test"]) == len(held_out.x) == 18

    assert not shares_memory(found, hidden)
    assert not holds_sample_of(found, held_out.x)
    assert not shares_memory(found, [run.groups])
    assert not equals(found, run.groups)
    assert not any(thing is run or thing is held_out for thing in found)

    visible = run.executor.samples
    assert shares_memory(found, [visible.x]), "the walk gets as far as the samples"
    assert holds_sample_of(found, visible.x[:1])
    assert shares_memory(found, [visible.splits["validation"][5]])
    everything = reachable(run)
    for tensor in (*hidden, run.groups):
        assert shares_memory(everything, [tensor]), "the walk finds what is there to find"


def test_the_walk_looks_behind_the_door_that_is_open(play_toy: Play) -> None:  # T29
    found: list[Any] = []
    played = play_toy(composition(("walker", ToldWalker(found))), rounds=1)
    assert shares_memory(found, [played.run.groups]), "through the closure of `truth`"
    assert equals(found, played.run.groups)
    assert not shares_memory(found, [played.run.held_out.x, played.run.held_out.y])


def test_only_the_two_open_splits_can_be_evaluated(play_toy: Play) -> None:  # T29
    def score(self: Any, state: Any, ctx: Any) -> None:
        ctx.evaluate(state.models, ctx.cohort, "test")

    said = refused(play_toy, bad(score=score))
    assert said == "round 1: bad.score: split: expected 'train' or 'validation', got 'test'"

    def further(self: Any, state: Any, ctx: Any) -> None:
        ctx.services.evaluate(state.models, ctx.cohort, "test")

    assert refused(play_toy, bad(score=further)) == "round 1: bad.score raised KeyError: 'test'"


# --- method classes ---------------------------------------------------------------------------


@dataclass
class Thawed:
    """Not frozen."""

    rate: float = 0.1


class Bare:
    """No dataclass."""


def function() -> None:
    """No class."""


@dataclass(frozen=True)
class Frozen:
    """As it should be."""

    rate: float = 0.1

    @hookimpl
    def setup(self) -> None:
        return None


def offered(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Let the registry offer a class of this module as the method `mine`."""
    entry = Entry("methods", "mine", f"{__name__}:{target}", "strangers", "3.1")
    monkeypatch.setattr(registry, "entries", lambda kind: {"mine": entry})
    monkeypatch.setattr(methods, "find", registry.find)


@pytest.mark.parametrize("target", ["Thawed", "Bare", "function"])
def test_a_method_that_is_no_frozen_dataclass_is_refused(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    offered(monkeypatch, target)
    with pytest.raises(PluginError) as caught:
        compose("mine")
    assert str(caught.value) == f"method 'mine': {__name__}:{target} is not a frozen dataclass"


def test_a_method_that_is_a_frozen_dataclass_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "Frozen")
    described = compose("mine", {"rate": 0.5}).described
    assert (described.name, described.params) == ("mine", {"rate": 0.5})
    assert [(p.distribution, p.version) for p in described.plugins] == [("strangers", "3.1")]


# --- what is installed ------------------------------------------------------------------------


def install(folder: Path, name: str, points: str, **modules: str) -> None:
    """Put a distribution on a folder of sys.path, as pip would."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")


RAISES = '"""A stranger\'s method."""\nraise RuntimeError("built for another torch")\n'


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution whose method raises when it is imported."""
    folder = tmp_path / "site"
    install(
        folder,
        "flbench-stranger",
        "[flbench.methods]\nstrange = strange_method:Strange\n",
        strange_method=RAISES,
    )
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_broken_plugin_is_listed_and_hides_nobody(stranger: Path) -> None:
    listed = entries("methods")
    assert {"fedavg", "local-only", "oracle", "pfedlia", "strange"} <= set(listed)
    assert list(listed) == sorted(listed)
    assert listed["strange"].distribution == "flbench-stranger"
    assert listed["strange"].version == "1.0"
    assert listed["strange"].summary() == "A stranger's method."
    assert "strange_method" not in sys.modules


def test_a_broken_plugin_does_not_disturb_a_run_that_does_not_name_it(
    stranger: Path, play_toy: Play
) -> None:
    assert play_toy("pfedlia", settings={"warmup": 1, "probe_epochs": 1}, rounds=2).said == []
    assert "strange_method" not in sys.modules


def test_naming_a_broken_plugin_is_one_line(stranger: Path) -> None:
    with pytest.raises(PluginError) as caught:
        compose("strange")
    assert str(caught.value) == (
        "method 'strange' of flbench-stranger 1.0 cannot be imported from strange_method:Strange:"
        " RuntimeError: built for another torch"
    )
    with pytest.raises(PluginError, match="built for another torch"):
        compose("pfedlia+strange")


@pytest.mark.parametrize(
    ("points", "modules"),
    [
        ("[flbench.methods]\nodd = odd_method:Odd\n", {"odd_method": "class Odd(:\n"}),
        ("[flbench.methods]\nodd = gone_method:Odd\n", {}),
        ("[flbench.methods]\nodd = gone_package.method:Odd\n", {}),
        ("[flbench.methods]\nodd = odd_method\n", {"odd_method": ""}),
        ("[flbench.suites]\nodd = odd_suite:path\n", {"odd_suite": "path = 'elsewhere.toml'\n"}),
    ],
    ids=["syntax error", "no module", "no package", "no object", "suite kept elsewhere"],
)
def test_whatever_is_wrong_with_a_plugin_listing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: str, modules: dict[str, str]
) -> None:
    install(tmp_path / "site", "flbench-odd", points, **modules)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    kind = points.partition("flbench.")[2].partition("]")[0]
    summaries = {name: entry.summary() for name, entry in entries(kind).items()}
    assert summaries.pop("odd") == ""
    assert all(summaries.values())
    assert len(summaries) >= 2


def test_two_packages_that_offer_one_name_are_an_error(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    install(other, "flbench-rival", "[flbench.methods]\nstrange = rival_method:Strange\n")
    monkeypatch.syspath_prepend(str(other))
    with pytest.raises(UserError, match="two packages offer the method 'strange'") as caught:
        find("methods", "strange")
    assert "flbench-stranger" in str(caught.value)
    assert "flbench-rival" in str(caught.value)
    assert "pathological-noniid" in entries("suites"), "other kinds are untouched"


def test_an_unknown_name_lists_what_is_installed_and_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        find("methods", "pfedlai")
    assert str(caught.value).startswith("unknown method 'pfedlai'; did you mean 'pfedlia'?")
    for name in entries("methods"):
        assert name in str(caught.value)


def test_a_path_that_names_no_object_is_no_file() -> None:
    assert Entry("methods", "x", "gone_package.method:X", "d", "1").source() is None
    assert Entry("methods", "x", "gone_package.method:X", "d", "1").summary() == ""


def python(code: str, *folders: Path) -> str:
    """What a fresh interpreter prints."""
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path.strip(os.pathsep)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_listing_imports_nobody(stranger: Path) -> None:
    told = python(
        "import sys\n"
        "from flbench.registry import KINDS, entries\n"
        "for kind in KINDS:\n"
        "    for entry in entries(kind).values():\n"
        "        print(entry.name, '|', entry.summary())\n"
        "heavy = ('torch', 'numpy', 'lightning', 'sklearn', 'wandb', 'pluggy', 'strange_method')\n"
        "mine = ('flbench_plugins', 'flbench_benchmarks', 'flbench.datasets', 'flbench.models')\n"
        "print('IMPORTED', [name for name in (*heavy, *mine) if name in sys.modules])\n",
        stranger,
    )
    *lines, last = told.splitlines()
    assert last == "IMPORTED []"
    assert "strange | A stranger's method." in lines
    assert all(line.rpartition("| ")[2] for line in lines), "everything has a summary"


@pytest.mark.slow
def test_the_command_list_goes_on_over_a_broken_plugin(stranger: Path) -> None:
    told = python(
        "import sys; sys.argv = ['flbench', 'list', 'methods']\n"
        "from flbench.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "print('TORCH', 'torch' in sys.modules)\n",
        stranger,
    )
    assert "strange" in told
    assert "pfedlia" in told
    assert "TORCH False" in told


def test_a_wrong_method_on_the_manager_itself_is_named() -> None:
    """`Hooks` may be built by hand, as `divide` is used with it."""

    @dataclass(frozen=True)
    class Misspelt:
        @hookimpl
        def personalize(self) -> None:
            return None

    suite = toy_suite()
    with pytest.raises(PluginError, match=r"^bad: .*personalize"):
        Hooks((suite.name, suite), [("bad", Misspelt())])
