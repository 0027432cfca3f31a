"""Plugins that misbehave: one line with plugin, hook and round, and nobody else is disturbed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mention, mentioning
from toy import (
    CLIENTS,
    WIDTH,
    Play,
    bad,
    composition,
    refused,
    toy_dataset,
    toy_suite,
    watching,
)

from flbench import (
    ClientModule,
    Context,
    Membership,
    Models,
    Partition,
    Stage,
    Undefined,
    Upload,
    UserError,
    hookimpl,
)
from flbench.core import hookspecs
from flbench.core.hookspecs import hooks_for
from flbench.errors import Diverged, PluginError
from flbench.plugin.hooks import HookCaller
from flbench.run.composition import MethodStack, compose
from flbench.run.runner import execute
from flbench.suite import Suite

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
    assert str(caught.value) == mentioning(
        "round 2", "bad.aggregate", "ValueError", "no such group"
    )
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
    assert said == mentioning("round 1", "bad.cluster", "at least 7", "clients")


def test_divergence_keeps_its_own_exit_code(play_toy: Play) -> None:
    def score(self: Any) -> None:
        raise Diverged("lower local.lr")

    with pytest.raises(Diverged, match=r"^lower local\.lr$") as said:
        play_toy(bad(score=score))
    assert said.value.__cause__ is None, "an error that is its own cause has no end"


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
    assert said == mentioning("round 1", "client 0", "failed", "train", "ValueError", "no labels")


# --- hooks that do not exist ------------------------------------------------------------------


def test_a_misspelt_hook_is_an_error_that_names_plugin_and_hook(play_toy: Play) -> None:
    said = refused(play_toy, bad(agregate=lambda self, state: None))
    assert said.startswith("bad: ")
    assert "agregate" in said
    assert "\n" not in said


def test_an_argument_with_a_default_is_given_and_an_unknown_one_refused(play_toy: Play) -> None:
    """pluggy gives it by name, and looks at no name that has a default."""
    seen: list[object] = []

    @dataclass(frozen=True)
    class Asks:
        @hookimpl
        def plan(self, ctx: Any = None, state: Any = None) -> None:
            seen.append((ctx.round, state.round))

        @hookimpl(wrapper=True)
        def aggregate(self, state: Any = None) -> Any:
            seen.append(state.round)
            return (yield)

    play_toy(composition(("asks", Asks())), rounds=1)
    assert seen == [(1, 0), 0]

    @dataclass(frozen=True)
    class Misspells:
        @hookimpl
        def plan(self, contxt: Any = None) -> None: ...

    with pytest.raises(PluginError, match=r"plan: unknown argument 'contxt'; did you mean 'ctx'"):
        play_toy(composition(("misspells", Misspells())), rounds=1)


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
    execute(played.job, lambda name, root: toy_dataset())
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
    assert said == mentioning("round 2", "bad.aggregate", "ValueError", "enough")


def test_a_wrong_method_on_the_manager_itself_is_named() -> None:
    """`Hooks` may be built by hand, as `divide` is used with it."""

    @dataclass(frozen=True)
    class Misspelt:
        @hookimpl
        def personalize(self) -> None:
            return None

    suite = toy_suite()
    with pytest.raises(PluginError, match=r"^bad: .*personalize"):
        HookCaller((suite.name, suite), [("bad", Misspelt())])


# --- who may answer which hook ----------------------------------------------------------------

ONES = [hook for hook in hooks_for("method") if hook not in hooks_for("sink")]
FOREIGN = [("sink", hook) for hook in ONES]
FOREIGN += [("suite", hook) for hook in hooks_for("method") if hook != "partition"]


def registered(audience: str, name: str, plugin: object) -> HookCaller:
    """A plugin among the hooks of a run, as an audience."""
    suite, others = (name, plugin) if audience == "suite" else ("toy", object()), [(name, plugin)]
    methods, sinks = (others if audience == one else [] for one in ("method", "sink"))
    return HookCaller(suite, methods, sinks)


def hooked(hook: str, **options: Any) -> type:
    """A class that implements a hook and takes no argument of it."""
    return type("Hooked", (), {"any_name": hookimpl(specname=hook, **options)(lambda self: None)})


def test_each_hook_is_for_methods_and_four_for_others_too() -> None:
    hooks = [name for name, it in vars(hookspecs).items() if hasattr(it, "flbench_spec")]
    assert list(hooks_for("method")) == hooks
    assert hooks_for("suite") == ("partition",)
    assert hooks_for("sink") == ("run_started", "round_finished", "run_finished")
    for audience in ("method", "suite", "sink"):
        for hook in hooks_for(audience):
            registered(audience, "mine", hooked(hook)())


@pytest.mark.parametrize(("audience", "hook"), FOREIGN)
def test_a_hook_of_another_audience_is_refused_by_name(audience: str, hook: str) -> None:
    with pytest.raises(PluginError) as caught:
        registered(audience, "mine", hooked(hook)())
    own = ", ".join(hooks_for(audience))  # type: ignore[arg-type]
    assert str(caught.value) == mentioning(
        f"mine.{hook}", "mine", audience, hook, own, "flbench.methods"
    )


class Averages:
    """A method, and what sinks could take from it."""

    @hookimpl
    def aggregate(self, state: Any) -> Models:
        return Models(torch.zeros_like(state.models))

    @hookimpl
    def round_finished(self) -> None: ...


class Inherits(Averages):
    """Its hooks are those of the class above."""

    @hookimpl
    def run_started(self) -> None: ...


class Still:
    """A hook that needs no object."""

    @staticmethod
    @hookimpl
    def aggregate(state: Any) -> Models:
        return Models(state.models)


def module_with_a_hook() -> ModuleType:
    module = ModuleType("a_module")
    vars(module)["aggregate"] = hookimpl(lambda state: None)
    return module


@pytest.mark.parametrize(
    "plugin",
    [
        Averages(), Inherits(), Still(), module_with_a_hook(),
        hooked("aggregate", wrapper=True)(), hooked("aggregate", hookwrapper=True)(),
        hooked("aggregate", optionalhook=True)(), hooked("aggregate", tryfirst=True)(),
    ],
)  # fmt: skip
def test_a_sink_cannot_average_however_it_hides_it(play_toy: Play, plugin: object) -> None:
    with pytest.raises(PluginError, match=mention("mine.aggregate", "mine", "sink")):
        play_toy("fedavg", rounds=1, sinks=(("mine", plugin),))


def test_what_is_method_and_sink_at_once_is_a_method(play_toy: Play) -> None:
    """As a method it averages and listens; the same object among the sinks is refused."""
    both = Averages()
    assert not play_toy(composition(("mine", both)), rounds=1).state.models.any()
    with pytest.raises(PluginError, match=mention("mine.aggregate", "mine", "sink")):
        play_toy(composition(("mine", both)), rounds=1, sinks=(("mine", both),))


def test_a_suite_decides_nothing_but_the_partition(play_toy: Play) -> None:
    class Averaging(Suite):
        @hookimpl
        def aggregate(self, state: Any) -> Models:
            return Models(state.models)

    suite = Averaging(**toy_suite().model_dump())
    with pytest.raises(PluginError, match=mention("toy.aggregate", "toy")):
        play_toy("fedavg", suite=suite)


@pytest.mark.parametrize("audience", ["sink", "method"])
@pytest.mark.parametrize("hook", hooks_for("sink"))
def test_nobody_wraps_what_listeners_return(audience: str, hook: str) -> None:
    with pytest.raises(PluginError, match=f"^mine.{hook}: listeners return nothing to wrap"):
        registered(audience, "mine", hooked(hook, wrapper=True)())


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


@pytest.mark.slow
def test_a_sink_that_raises_is_reported_and_the_run_goes_on(play_toy: Play) -> None:
    hears = Hears()
    played = play_toy("fedavg", sinks=(("hears", hears), ("boom", Boom())))
    text = "boom.round_finished failed (OSError: disk full); the run goes on"
    assert played.said == [text], "the first time only"
    assert played.state.round == 3
    assert hears.heard == played.run.history.curves["accuracy"]
    assert played.run.history.last == play_toy("fedavg").run.history.last


@pytest.mark.slow
def test_a_sink_that_fails_leaves_no_trace_in_the_result(play_toy: Play) -> None:
    played, quiet = play_toy("fedavg", sinks=(("boom", Boom()),)), play_toy("fedavg")
    assert len(played.said) == 1
    assert played.result.warnings == quiet.result.warnings == []


def test_a_sink_that_raises_at_both_ends_stops_nothing(play_toy: Play) -> None:
    first, last = Hears(), Hears()
    sinks = (("first", first), ("boom", Boom()), ("last", last))
    played = play_toy("fedavg", rounds=1, sinks=sinks)
    played.job.checkpoint.unlink(missing_ok=True)
    played.said.clear(), first.heard.clear(), last.heard.clear()
    result = execute(played.job, lambda name, root: toy_dataset())
    assert played.job.path.is_file()
    assert first.heard == last.heard == [1, *result.curves["accuracy"], (1, "seed-0.json")]
    assert [text.partition(" ")[0] for text in played.said] == [
        "boom.run_started",
        "boom.round_finished",
        "boom.run_finished",
    ]


# --- wrappers ---------------------------------------------------------------------------------


def wrapping(hook: str, change: Callable[[Any], Any]) -> object:
    """A plugin that wraps a hook and changes its answer."""

    def wrapper(self: Any) -> Generator[None, Any, Any]:
        answer = yield
        return change(answer)

    return type("Wrapping", (), {hook: hookimpl(wrapper=True)(wrapper)})()


@pytest.mark.slow
def test_a_wrapper_changes_the_plan_of_any_method(play_toy: Play) -> None:
    """Twice the epochs, whoever planned, and wherever the wrapper is named."""

    def double(stages: Any) -> Any:
        return [replace(stage, epochs=2 * stage.epochs) for stage in stages]

    ifca, twice = compose("ifca").layers, ("twice", wrapping("plan", double))
    plain = play_toy(composition(*ifca), rounds=2)
    for layers in ((*ifca, twice), (twice, *ifca)):
        uploads: list[Any] = []
        play_toy(composition(*layers, ("watch", watching(uploads))), rounds=2)
        usual: list[Any] = []
        play_toy(composition(*ifca, ("watch", watching(usual))), rounds=2)
        assert (uploads[0].steps == 2 * usual[0].steps).all()
    assert plain.said == []


def test_a_wrapper_of_a_hook_that_all_answer_gets_a_list(play_toy: Play) -> None:
    seen: list[int] = []

    def counted(terms: list[Any]) -> list[Any]:
        seen.append(len(terms))
        return []

    prox = compose("fedprox", {"mu": 5.0}).layers
    played = play_toy(composition(*prox, ("none", wrapping("local_term", counted))), rounds=2)
    assert seen == [1, 1]
    assert played.state.models.equal(play_toy("fedavg", rounds=2).state.models)


def test_an_answer_that_passes_a_wrapper_keeps_its_plugin(play_toy: Play) -> None:
    wrong = bad(plan=lambda self: ["no stage"])
    layers = (*wrong.layers, ("same", wrapping("plan", lambda answer: answer)))
    with pytest.raises(PluginError, match=r"round 1: bad\.plan returned"):
        play_toy(composition(*layers), rounds=1)
    changed = (*wrong.layers, ("other", wrapping("plan", lambda answer: ["neither"])))
    with pytest.raises(PluginError, match=r"round 1: other\.plan returned"):
        play_toy(composition(*changed), rounds=1)


def test_what_a_wrapper_does_wrong_is_one_line(play_toy: Play) -> None:
    class Twice:
        @hookimpl(wrapper=True)
        def plan(self) -> Generator[None, Any, Any]:
            yield
            yield

    class Never:
        @hookimpl(wrapper=True)
        def plan(self) -> Generator[None, Any, Any]:
            if self is None:
                yield

    for plugin in (Twice(), Never()):
        with pytest.raises(PluginError, match=mention("round 1", "w.plan")):
            play_toy(composition(("w", plugin)), rounds=1)
    with pytest.raises(PluginError, match=r"round 1: w\.plan raised ZeroDivisionError"):
        play_toy(composition(("w", wrapping("plan", lambda answer: 1 / 0))), rounds=1)


def test_an_error_of_another_plugin_passes_a_wrapper(play_toy: Play) -> None:
    broken = bad(plan=lambda self: 1 / 0)
    layers = (*broken.layers, ("same", wrapping("plan", lambda answer: answer)))
    with pytest.raises(PluginError, match=r"round 1: bad\.plan raised ZeroDivisionError"):
        play_toy(composition(*layers), rounds=1)


def test_a_wrapper_that_gives_nothing_is_named_by_its_hook(play_toy: Play) -> None:
    with pytest.raises(PluginError, match=mention("plan", "answered")):
        play_toy(composition(("lost", wrapping("plan", lambda answer: None))), rounds=1)


def test_a_wrapper_that_returns_no_list_is_named(play_toy: Play) -> None:
    forgets = composition(("w", wrapping("local_term", lambda terms: None)))
    with pytest.raises(PluginError, match=mention("round 1", "w.local_term")):
        play_toy(forgets, rounds=1)


def test_an_interruption_passes_a_wrapper(play_toy: Play) -> None:
    class Interrupted:
        @hookimpl(wrapper=True)
        def plan(self) -> Generator[None, Any, Any]:
            yield
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_toy(composition(("w", Interrupted())), rounds=1)


def test_the_older_kind_of_wrapper_is_refused(play_toy: Play) -> None:
    class Older:
        @hookimpl(hookwrapper=True)
        def plan(self) -> Generator[None, Any, None]:
            yield

    said = refused(play_toy, composition(("older", Older())))
    assert said == "older.plan: use hookimpl(wrapper=True)"


def test_a_client_without_a_home_needs_a_model_from_the_method(play_toy: Play) -> None:
    home = torch.tensor([-1, *[0] * (CLIENTS - 1)])
    said = refused(
        play_toy, bad(cluster=lambda self: Membership(home)), rounds=1, participation=1.0
    )
    assert said == mentioning("round 1", "defaults.dispatch", "client 0", "dispatch")


def test_the_run_says_whose_models_clients_start_from(play_toy: Play) -> None:
    """Once, and of no method that says nothing of it."""
    two = [compose(name).layers[0] for name in ("fedala", "fedprox", "fedamp")]
    line = "dispatch: clients start from models of fedamp (named last), not of fedala"
    played = play_toy(composition(*two), participation=1.0, rounds=2)
    assert played.said.count(line) == 1
    assert not play_toy(composition(*two[:2]), rounds=1).said


# --- how much clients count --------------------------------------------------------------------


def weighing(answer: Callable[[Upload], Any]) -> MethodStack:
    def weights(self: Any, upload: Upload) -> Any:
        return answer(upload)

    return bad(weights=weights)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda upload: torch.ones(2).double(), "shape (2,), expected (3,): how much each client"),
        (lambda upload: torch.ones(3), "torch.float32, expected float64"),
        (lambda upload: torch.tensor([1.0, -1.0, 1.0]).double(), "expected finite numbers >= 0"),
        (lambda upload: torch.full((3,), torch.nan).double(), "expected finite numbers >= 0"),
        (lambda upload: [1.0, 1.0, 1.0], "returned list, expected Tensor"),
    ],
)
def test_weights_that_are_none_are_refused(play_toy: Play, answer: Any, said: str) -> None:
    line = refused(play_toy, weighing(answer))
    assert line.startswith("round 1: bad.weights returned ") and said in line


@dataclass(frozen=True)
class Twice:
    """The first client of a cohort counts twice of what others say."""

    asked: list[tuple[int, str]] = field(default_factory=list)

    @hookimpl(wrapper=True)
    def weights(self, stage: Stage, upload: Upload, ctx: Context) -> Any:
        others = yield
        self.asked.append((ctx.round, stage.label))
        return others * torch.tensor([2.0, *[1.0] * (len(upload.ids) - 1)]).double()


def test_a_wrapper_of_weights_changes_the_mean_once_a_stage(play_toy: Play) -> None:
    uploads: list[Upload] = []
    twice = Twice()
    layers = (("twice", twice), ("watch", watching(uploads)))
    models = play_toy(composition(*layers), rounds=2).state.models
    assert twice.asked == [(1, "train"), (2, "train")]
    last = uploads[-1]
    assert last.weights is not None and last.weights.dtype == torch.float64
    assert last.weights.tolist() == (last.samples * torch.tensor([2, 1, 1])).tolist()
    shares = last.weights / last.weights.sum()
    mean = (shares[:, None] * last.selected().double()).sum(dim=0)
    assert torch.allclose(models[0].double(), mean, rtol=0, atol=1e-6)


def test_importance_weights_go_with_scaffold(play_toy: Play) -> None:
    """A client that is drawn with probability p counts 1 / p of SCAFFOLD's uniform mean."""

    @dataclass(frozen=True)
    class Importance:
        @hookimpl(wrapper=True)
        def weights(self, upload: Upload) -> Any:
            others = yield
            return others / (1.0 + upload.ids)

    uploads: list[Upload] = []
    layers = (("importance", Importance()), *compose("scaffold").layers)
    unequal = {"partition": {"name": "dirichlet", "alpha": 0.5}, "participation": 1.0}
    rows = play_toy(
        composition(*layers, ("watch", watching(uploads))), rounds=1, **unequal
    ).state.models
    (upload,) = uploads
    assert upload.weights is not None and len(upload.samples.unique()) > 1
    assert upload.weights.tolist() == [1 / (1 + client) for client in range(CLIENTS)]
    mean = (upload.weights[:, None] * upload.selected()).sum(dim=0) / upload.weights.sum()
    assert torch.allclose(rows[0].double(), mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["krum", "trimmed-mean", "q-fedavg", "fltrust"])
def test_weights_that_nobody_looks_at_are_refused(play_toy: Play, method: str) -> None:
    layers = (("twice", Twice()), *compose(method).layers)
    with pytest.raises(Undefined) as caught:
        play_toy(composition(*layers), server_samples=12)
    rule = f"{method} averages by a rule of its own"
    assert str(caught.value) == mentioning(rule, "changes")


@pytest.mark.parametrize(
    "few",
    [
        lambda upload: upload.select(torch.arange(1)),
        lambda upload: replace(upload, params=upload.params + 0),
    ],
    ids=["selected", "replaced"],
)
def test_weights_that_are_read_of_some_uploads_are_read(play_toy: Play, few: Any) -> None:
    """A mean may leave clients out first (`Upload.select`)."""

    @dataclass(frozen=True)
    class First:
        @hookimpl
        def aggregate(self, upload: Upload) -> Models:
            some = few(upload)
            mean = (some.client_weights[:, None] * some.selected()).sum(dim=0)
            return Models((mean / some.client_weights.sum()).float()[None])

    played = play_toy(composition(("twice", Twice()), ("first", First())), rounds=1)
    assert played.state.round == 1


@pytest.mark.parametrize("method", ["fedprox", "fednova", "per-fedavg", "scaffold", "cfl"])
def test_a_client_that_counts_nothing_changes_no_mean(play_toy: Play, method: str) -> None:
    """Clients 0 and 1 alone; the third one trains and does not count."""

    @dataclass(frozen=True)
    class Without:
        moved: bool

        @hookimpl(wrapper=True)
        def weights(self, upload: Upload) -> Any:
            others = yield
            return torch.where(upload.ids == 2, 0.0, others)

        @hookimpl
        def encode(self) -> Any:
            def sent(message: Any) -> Any:
                far = message.update + (5.0 if self.moved and message.client == 2 else 0.0)
                return message.sending(far)

            return sent

    own, means = compose(method).layers, []
    for moved in (False, True):
        played = play_toy(
            composition(("without", Without(moved)), *own),
            rounds=1, participation=1.0, local={"epochs": 1, "batch_size": 4, "momentum": 0.0},
        )  # fmt: skip
        home = played.state.membership.home
        means.append(played.state.models[home[0]][played.run.context.layout.body])
    assert torch.equal(*means)


def test_dp_fedavg_averages_uniformly_if_a_plugin_says_so(play_toy: Play) -> None:
    """Without noise, and with a clip that clips nothing, it is the uniform mean of the uploads."""

    @dataclass(frozen=True)
    class Uniform:
        @hookimpl
        def weights(self, upload: Upload) -> Any:
            return torch.ones(len(upload.ids), dtype=torch.float64)

    private = compose("dp-fedavg", {"clip": 1e9, "noise": 0.0, "weights": "samples"}).layers
    uploads: list[Upload] = []
    layers = (*private, ("uniform", Uniform()), ("watch", watching(uploads)))
    unequal = {"partition": {"name": "dirichlet", "alpha": 0.5}}
    rows = play_toy(composition(*layers), rounds=1, participation=1.0, **unequal).state.models
    assert len(uploads[0].samples.unique()) > 1
    mean = uploads[0].selected().double().mean(dim=0)
    assert torch.allclose(rows[0].double(), mean, rtol=0, atol=1e-7)


def test_a_function_with_the_name_of_a_hook_and_no_mark_is_said(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Forgets:
        weights: float = 1.0  # a value is no function

        @hookimpl
        def plan(self) -> None: ...

        def aggregate(self, state: Any) -> Any:
            return state

    found = play_toy(composition(("forgets", Forgets())), rounds=1)
    said = "forgets.aggregate is not marked with @hookimpl: it is never called"
    assert [one for one in found.said if "never called" in one] == [said]
