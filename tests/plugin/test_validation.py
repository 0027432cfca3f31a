"""What plugins answer: a wrong type, shape or value is one line with plugin, hook and round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mention, mentioning, mentions
from toy import CLIENTS, WIDTH, Play, bad, composition, refused

from flbench import Context, Partition, Undefined, hookimpl
from flbench.core.state import Membership, Memory, Models, Personal, Scores, Setup, Stage, Start
from flbench.errors import PluginError

HOME = torch.zeros(CLIENTS, dtype=torch.int64)
EVERYBODY = torch.arange(CLIENTS)


def test_a_wrong_shape_is_one_line_with_plugin_hook_and_round(play_toy: Play) -> None:
    def cluster(self: Any, ctx: Any) -> Membership | None:
        return Membership(home=torch.zeros(10, dtype=torch.int64)) if ctx.round == 2 else None

    said = refused(play_toy, bad(cluster=cluster))
    assert said == mentioning("round 2", "bad.cluster", "returned shape (10,)", "6")


def scores(values: torch.Tensor, **memory: torch.Tensor) -> Scores:
    n, m = values.shape
    named = {name.replace("__", "."): value for name, value in memory.items()}
    return Scores(values, torch.arange(n), "clients", torch.arange(m), named)


WRONG: list[tuple[str, Callable[[], Any], str]] = [
    ("cluster", lambda: [0] * CLIENTS, "bad.cluster returned list, expected Membership"),
    (
        "cluster",
        lambda: Membership(home=[0] * CLIENTS),  # type: ignore[arg-type]
        "bad.cluster: home is list, expected Tensor",
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
    (
        "cluster",
        lambda: Membership(home=HOME, models=torch.zeros(2, WIDTH)),
        f"bad.cluster: models returned shape (2, {WIDTH}), expected (1, {WIDTH}): the new bank",
    ),
    (
        "cluster",
        lambda: Membership(home=HOME, models=torch.full((1, WIDTH), torch.nan)),
        "bad.cluster: models returned models that are not finite",
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
        lambda: Personal(row=HOME, others={"validation": Personal(row=HOME)}),
        "bad.personalise: others 'validation' is the name of another number of results",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME, labels=torch.zeros_like),
        "bad.personalise gives `labels`, which only its `others` may have",
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
    (
        "personalise",
        lambda: Personal(row=HOME, others={"fine_tuned": Personal(row=HOME)}),
        "bad.personalise: others 'fine_tuned' is the name of another number of results",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME, others={"own": Personal(row=HOME)}),
        "bad.personalise: others 'own' is the name of another number of results",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME, others={"micro": Personal(row=HOME)}),
        "bad.personalise: others 'micro' is the name of another number of results",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME, others={"": Personal(row=HOME)}),
        "bad.personalise: others expect a name in one line, got ''",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME.to(torch.int16)),
        "bad.personalise returned torch.int16, expected int64: one row per client",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME, adaptation=Stage("train", EVERYBODY, 1, pooled=True)),
        "bad.personalise: adaptation pools all clients' data; a method says so with"
        " `pools_data = True`",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME, adaptation=Stage("rest", EVERYBODY, 1)),  # type: ignore[arg-type]
        "bad.personalise: adaptation.kind is 'rest', expected 'train' or 'probe' or 'trial' or"
        " 'join'",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME, adaptation=Stage("train", EVERYBODY, 1, lr=-1.0)),
        "bad.personalise: adaptation has lr of -1, expected above 0",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME, adaptation=Stage("train", EVERYBODY[:3], 1)),
        "bad.personalise: adaptation expects the 6 clients that are asked for, got 3: [0, 1, 2]",
    ),
    (
        "personalise",
        lambda: Personal(
            row=HOME,
            others={"mine": Personal(row=HOME, adaptation=Stage("train", EVERYBODY[:3], 1))},
        ),
        "bad.personalise: adaptation expects the 6 clients that are asked for, got 3: [0, 1, 2]",
    ),
    (
        "personalise",
        lambda: Personal(row=HOME, extras={"head": torch.zeros(2)}),
        "bad.personalise: extras 'head' is (2,), expected 6 rows: one per client",
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
        lambda: [Stage("rest", EVERYBODY, 1)],  # type: ignore[arg-type]
        "bad.plan: stage 'rest': kind is 'rest', expected 'train' or 'probe' or 'trial' or 'join'",
    ),
    (
        "plan",
        lambda: [Stage("train", EVERYBODY, 1, samples=-5)],
        "bad.plan: stage 'train' has samples of -5, expected a whole number above 0",
    ),
    (
        "plan",
        lambda: [Stage("train", EVERYBODY, float("inf"))],
        "bad.plan: stage 'train' has epochs of inf, expected a finite number",
    ),
    (
        "plan",
        lambda: [Stage("train", EVERYBODY, 1, steps=torch.full((CLIENTS,), 1.9))],
        "bad.plan: stage 'train' has steps of 1.9, expected a whole number",
    ),
    (
        "plan",
        lambda: [Stage("train", EVERYBODY, 1), Stage("train", EVERYBODY, 2)],
        "bad.plan: two stages of one round need different names, or no client in common, got"
        " ['train', 'train']",
    ),
    (
        "score",
        lambda: replace(scores(torch.zeros(2, 2)), row_ids=torch.tensor([0, 6])),
        "bad.score: row_ids expects each once, in 0..5, got [0, 6]",
    ),
    (
        "score",
        lambda: replace(scores(torch.zeros(2, 2)), column_ids=torch.tensor([3, 3])),
        "bad.score: column_ids expects each once, in 0..5, got [3, 3]",
    ),
    (
        "score",
        lambda: replace(scores(torch.zeros(2, 1)), columns="models", column_ids=torch.tensor([1])),
        "bad.score: column_ids expects each once, in 0..0, got [1]",
    ),
    ("dispatch", lambda: {}, "bad.dispatch returned dict, expected Start"),
    (
        "dispatch",
        lambda: Start(extras={"told": torch.zeros(CLIENTS)}),
        "bad.dispatch: extras 'told' is (6,), expected 3 rows: one per acting client",
    ),
    (
        "dispatch",
        lambda: Start(client_memory={"kept": 7}),  # type: ignore[dict-item]
        "bad.dispatch: client_memory['kept'] is 7, expected Tensor",
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
    (
        "setup",
        lambda: remembered("bad.control", (), "client"),
        "bad.setup: memory 'bad.control' has 0 entries, expected 6: one per client",
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
        lambda: Partition(clients=("few",) * 6),  # type: ignore[arg-type]
        "bad.partition gave client 0 no list of whole numbers",
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
    (
        "partition",
        lambda: dealt(*[range(9 * i, 9 * i + 9) for i in range(6)], groups=np.array([*"ababab"])),
        "bad.partition returned groups of <U1, expected whole numbers from 0, -1 = in none",
    ),
    (
        "partition",
        lambda: dealt(*[range(9 * i, 9 * i + 9) for i in range(6)], groups=np.arange(6) - 3),
        "bad.partition returned groups of int64, -3 the lowest, expected whole numbers from 0, -1 ="
        " in none",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "answer", "message"), BEFORE, ids=[f"{hook}: {text}" for hook, _, text in BEFORE]
)
def test_a_wrong_answer_before_round_1_is_one_line(
    play_toy: Play, hook: str, answer: Callable[[], Any], message: str
) -> None:
    assert refused(play_toy, bad(**{hook: lambda self: answer()})) == message


def test_groups_of_a_partition_may_be_a_list(play_toy: Play) -> None:
    split = dealt(*[range(9 * i, 9 * i + 9) for i in range(6)], groups=[0, 0, 0, 1, 1, 1])
    played = play_toy(bad(partition=lambda self: split), rounds=1)
    assert played.run.groups is not None
    assert played.run.groups.tolist() == split.groups


def test_a_first_membership_that_does_not_fit_names_the_plugin(play_toy: Play) -> None:
    said = refused(play_toy, bad(setup=lambda self: Setup(membership=Membership(HOME + 3))))
    assert said == mentioning("bad.setup", "row 3", "-1..0")


def test_a_memory_that_does_not_fit_the_bank_names_the_plugin(play_toy: Play) -> None:
    said = refused(play_toy, bad(setup=lambda self: remembered("bad.control", (2, 1), "model")))
    assert said == mentioning("bad.setup", "bad.control", "2 entries", "1")


def test_models_to_train_of_a_wrong_shape_name_the_plugin(play_toy: Play) -> None:
    said = refused(play_toy, bad(dispatch=lambda self: Start(params=torch.zeros(3, WIDTH))))
    assert said == (
        f"round 1: bad.dispatch returned shape (3, {WIDTH}), expected (3, any, {WIDTH}):"
        " clients, candidates, scalars"
    )


@pytest.mark.parametrize(
    "start",
    [
        Start(sent_mask=torch.ones(4, dtype=torch.bool)),
        Start(returned_mask=torch.ones(2, WIDTH, dtype=torch.bool)),
        Start(active=torch.ones(1, 7, dtype=torch.bool)),
        Start(rows=torch.tensor([0, 0, 0])),
        Start(rows=torch.tensor([4])),
    ],
    ids=["sent_mask", "returned_mask", "active", "rows: too many", "rows: none such"],
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
    assert mentions(said, "round 1", "bad.local_term", "returned float")


def test_a_report_of_another_type_is_one_line(play_toy: Play) -> None:
    said = refused(play_toy, bad(report=lambda self: lambda module, x, y: {"loss": 1.0}))
    assert said == mentioning("round 1", "bad.report", "returned dict", "Report")


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
    assert said == mentioning("round 1", f"bad.{hook}", "bad.influence", "setup")


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
    assert mentions(said, "round 1", f"bad.{hook}", "bad.control", "2 entries", "6")


@dataclass(frozen=True)
class Begins:
    """A method that begins with some models, and gives its clients a number."""

    models: int

    @hookimpl
    def setup(self, ctx: Context) -> Setup:
        home = torch.zeros(ctx.clients, dtype=torch.int64)
        return Setup(ctx.initial.expand(self.models, -1).clone(), Membership(home))

    @hookimpl
    def dispatch(self, stage: Stage) -> Start:
        return Start(client_memory={"number": torch.ones(len(stage.clients))})


def test_two_methods_that_begin_with_other_numbers_of_models_are_undefined(play_toy: Play) -> None:
    said = refused(play_toy, composition(("one", Begins(1)), ("two", Begins(2))))
    assert said == mentioning("two", "2 models", "one", "1")


def test_two_methods_that_give_clients_something_of_one_name_are_an_error(play_toy: Play) -> None:
    said = refused(play_toy, composition(("one", Begins(1)), ("two", Begins(1))))
    assert mentions(said, "number", "methods")


def test_what_is_undefined_in_a_function_of_a_hook_is_undefined(play_toy: Play) -> None:
    def batch_loss(self: Any) -> Any:
        def loss(batch: Any) -> torch.Tensor:
            raise Undefined("the features are not known")

        return loss

    with pytest.raises(Undefined, match=mention("bad.batch_loss", "features")):
        play_toy(bad(batch_loss=batch_loss))


def test_a_memory_declared_twice_is_an_error(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Keeps:
        @hookimpl
        def setup(self) -> Setup:
            return remembered("mine.velocity", (1,), "run")

    said = refused(play_toy, composition(("one", Keeps()), ("two", Keeps())))
    assert said == mentioning("one.setup", "mine.velocity")


def test_two_memories_of_two_plugins_add_up(play_toy: Play) -> None:
    def keeps(name: str) -> Any:
        body = {"setup": hookimpl(lambda self: remembered(f"{name}.kept", (1,), "run"))}
        return dataclass(frozen=True)(type("Keeps", (), body))()

    played = play_toy(composition(("one", keeps("one")), ("two", keeps("two"))), rounds=1)
    assert set(played.state.memory) == {"one.kept", "two.kept"}
    assert dict(played.state.scopes) == {"one.kept": "run", "two.kept": "run"}


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_a_loss_without_gradient_is_refused_by_both_executors(
    executor: str, play_toy: Play
) -> None:
    """Where clients are lanes, the gradient of a loss that is detached would be zero."""

    def batch_loss(self: Any) -> Any:
        return lambda batch: batch.logits.square().mean().detach()

    with pytest.raises(PluginError, match=r"bad: client \d failed .* does not require grad"):
        play_toy(bad(batch_loss=batch_loss), rounds=1, executor=executor)
