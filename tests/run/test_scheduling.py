"""Seeds that train together: the same numbers as alone, and one call for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mentions import mentioning, mentions
from simulated_device import simulated_device
from torch import nn
from toy import Typed, composition, toy_dataset, toy_suite

from flbench import ClientModule, LocalTraining, hookimpl
from flbench.core.model_bank import plain
from flbench.core.state import State
from flbench.engine.lanes import step as lane_step
from flbench.engine.lanes import training as lane_training
from flbench.engine.lanes import vectorised
from flbench.engine.lanes.vectorised import TogetherExecutor
from flbench.engine.options import EngineOptions
from flbench.errors import Diverged, Undefined
from flbench.results.files import read_result
from flbench.results.schema import VOLATILE
from flbench.run import context, scheduling, setup
from flbench.run.composition import MethodStack, compose
from flbench.run.rounds import Run, running_rounds
from flbench.run.runner import executing
from flbench.run.scheduling import Training, alone, together
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.sweeps.launchers import DONE, FAILED, CellInterrupted, attempting, run_together
from flbench.sweeps.request import Cell
from flbench.terminal.console import Console

SEEDS = range(3)
DATA = toy_dataset()
LANES = EngineOptions("vectorised", "cpu")


@pytest.fixture(autouse=True)
def recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorised, "USES", 1)


def spec(method: str | MethodStack, seed: int, **changes: Any) -> RunSpec:
    stack = compose(method) if isinstance(method, str) else method
    engine = changes.pop("engine", LANES)
    folder = Path(changes.pop("folder", "unused"))
    sinks, say = changes.pop("sinks", ()), changes.pop("say", print)
    given = {"rounds": 3, "local": {"epochs": 2, "batch_size": 4, "lr": 0.1}, **changes}
    return RunSpec(toy_suite(**given), stack, seed, folder, folder, engine, sinks=sinks, say=say)


def prepared(method: str | MethodStack, folder: Path, **changes: Any) -> list[tuple[Run, State]]:
    return [
        prepare(spec(method, seed, folder=folder, **changes), toy_dataset(seed=seed))
        for seed in SEEDS
    ]


def ends(
    method: str | MethodStack, folder: Path, **changes: Any
) -> tuple[list[State], list[State], list[str]]:
    """The last states of seeds that run alone and of the same that run together; what is said."""
    single = [alone(running_rounds(*one)) for one in prepared(method, folder, **changes)]
    said: list[str] = []
    runs = [running_rounds(*one) for one in prepared(method, folder, **changes)]
    shared = dict(together(runs, said.append))
    return single, [shared[number] for number in SEEDS], said


def agree(ones: list[State], others: list[State]) -> None:
    for one, other in zip(ones, others, strict=True):
        torch.testing.assert_close(one.models, other.models, rtol=0, atol=5e-6)
        assert torch.equal(one.membership.home, other.membership.home)
        for name, value in one.memory.items():
            torch.testing.assert_close(value, other.memory[name], rtol=0, atol=1e-5, equal_nan=True)


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each training of lanes has."""
    found: list[int] = []
    real = lane_training.LaneTraining.run

    def run(training: lane_training.LaneTraining) -> Any:
        found.append(len(training.jobs))
        return real(training)

    monkeypatch.setattr(lane_training.LaneTraining, "run", run)
    return found


METHODS = ["fedprox", "ifca", "fedavg+qsgd"]
LONG = ["fedrep", "apfl", "fedproto"]


@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS),
        *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.long]) for name in LONG),
    ],
)
def test_seeds_have_their_numbers_in_company(
    method: str, tmp_path: Path, widths: list[int]
) -> None:
    single, shared, said = ends(method, tmp_path)
    agree(single, shared)
    assert said == []
    assert max(widths) == len(SEEDS)
    models = [state.models for state in shared]
    assert not torch.equal(models[0], models[1]), "they are different seeds"


@pytest.mark.slow
@pytest.mark.long
def test_seeds_share_lanes_on_a_device(tmp_path: Path, widths: list[int]) -> None:
    with simulated_device():
        _, others, said = ends("ditto", tmp_path)
        models = [plain(state.models).cpu() for state in others]
    assert not said
    assert set(widths) == {1, len(SEEDS)}, "alone, and together"
    _, expected, _ = ends("ditto", tmp_path)
    assert all(
        torch.equal(model, plain(state.models))
        for model, state in zip(models, expected, strict=True)
    )


def test_seeds_have_the_batches_of_clients_one_by_one(tmp_path: Path) -> None:
    one_by_one = EngineOptions("sequential", "cpu")
    usual = [alone(running_rounds(*one)) for one in prepared("fedavg", tmp_path, engine=one_by_one)]
    agree(usual, ends("fedavg", tmp_path)[1])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_ragged_clients_share_lanes(optimizer: str, tmp_path: Path, widths: list[int]) -> None:
    local = {"epochs": 2, "batch_size": 5, "lr": 0.01, "optimizer": optimizer}
    agree(*ends("fedavg", tmp_path, local=local, partition="iid", participation=1.0)[:2])
    assert set(widths) == {1, 3}


def test_one_call_makes_the_step_of_all_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes: list[int] = []
    real = lane_training.LaneStep.__call__

    def call(step: Any, sizes: Any, count: int, *rest: Any) -> Any:
        lanes.append(count)
        return real(step, sizes, count, *rest)

    monkeypatch.setattr(lane_training.LaneStep, "__call__", call)
    ends("fedavg", tmp_path, rounds=4)
    assert max(lanes) == 9, "three clients of each of three seeds"


def by_lanes(monkeypatch: pytest.MonkeyPatch, usual: set[int]) -> list[int]:
    """Let recorded steps give other numbers for unusual numbers of lanes; those of all calls."""
    calls: list[int] = []
    real = lane_step.with_graphs

    def changed(*recorded: Any) -> Any:
        program = real(*recorded)

        def call(lanes: int, inputs: Any) -> list[torch.Tensor]:
            calls.append(lanes)
            return [tensor * (1 + 0.01 * (lanes not in usual)) for tensor in program(lanes, inputs)]

        return call

    monkeypatch.setattr(lane_step, "with_graphs", changed)
    return calls


@pytest.mark.parametrize("local", [{"batch_size": 4}, {"batch_size": 5, "optimizer": "adam"}])
def test_seeds_have_the_bits_that_they_have_alone(
    local: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = by_lanes(monkeypatch, {1, 2, 3})
    given = {"epochs": 2, "lr": 0.05, **local}
    single, shared, said = ends("fedavg", tmp_path, local=given, partition="iid", rounds=4)
    assert said == []
    assert max(calls) > 3, "lanes of several seeds are tried in one call"
    for one, other in zip(single, shared, strict=True):
        assert torch.equal(one.models, other.models)


def test_lanes_of_a_seed_are_divided_as_they_are_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = by_lanes(monkeypatch, {4, 2})
    monkeypatch.setattr(lane_training, "most_lanes", lambda place: 4)
    single, shared, _ = ends("fedavg", tmp_path, rounds=4, participation=1.0)
    assert max(calls) == 4, "not more than fit, of one seed or of several"
    for one, other in zip(single, shared, strict=True):
        assert torch.equal(one.models, other.models)


def test_seeds_share_the_calls_of_recorded_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = by_lanes(monkeypatch, {3, 9})
    dict(together([running_rounds(*one) for one in prepared("fedavg", tmp_path, rounds=6)]))
    assert set(calls[-12:]) == {9}, "three clients of each of three seeds"


@dataclass(frozen=True)
class Pulled:
    """A term that is another one for each seed, and that no message carries."""

    @hookimpl
    def local_term(self, ctx: Any) -> Any:
        strength = 0.1 * (1 + ctx.seed)
        return lambda module: strength * sum(p.square().sum() for p in module.net.parameters())


@pytest.mark.slow
def test_seeds_whose_steps_differ_part(tmp_path: Path, widths: list[int]) -> None:
    single, shared, said = ends(composition(("pulled", Pulled())), tmp_path, rounds=3)
    agree(single, shared)
    assert said == [mentioning("seeds", "together")]
    assert widths[-1] == 1


def test_each_seed_has_lanes_of_its_own_when_they_part(tmp_path: Path) -> None:
    prepared_runs = prepared(composition(("pulled", Pulled())), tmp_path, rounds=4)
    dict(together([running_rounds(*one) for one in prepared_runs]))
    executors: list[Any] = [run.executor for run, _ in prepared_runs]
    assert [executor.reason for executor in executors] == [None] * 3
    assert len({id(executor.programs) for executor in executors}) == 3, "recorded by itself"


def test_seeds_that_were_not_asked_use_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is recorded by the second seed, before the third one makes it."""
    monkeypatch.setattr(vectorised, "USES", 2)
    local = {"epochs": 1, "batch_size": 32, "lr": 0.1}
    single, shared, _ = ends(
        composition(("pulled", Pulled())), tmp_path, rounds=1, local=local, participation=1.0
    )
    agree(single, shared)


@dataclass(frozen=True)
class Growing:
    """A term that is the same for all seeds, and another one from a round on."""

    @hookimpl
    def local_term(self, ctx: Any) -> Any:
        strength = 0.01 if ctx.round < 3 else 0.02
        return lambda module: strength * module.flat().square().sum()


@pytest.mark.slow
def test_seeds_whose_steps_change_alike_stay_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if not the first of them has recorded the step."""
    monkeypatch.setattr(vectorised, "USES", 2)
    local = {"epochs": 1, "batch_size": 4, "lr": 0.1}
    single, shared, said = ends(composition(("growing", Growing())), tmp_path, local=local)
    agree(single, shared)
    assert said == []


def test_a_run_that_trains_a_stage_alone_records_its_step_anew(tmp_path: Path) -> None:
    """Another run has recorded the steps that they share, and is not there in this stage."""
    said: list[str] = []
    runs = prepared(composition(("growing", Growing())), tmp_path, say=said.append)
    executors = [run.executor for run, _ in runs[:2]]
    for number, (run, state) in enumerate(runs[:2]):
        run.executor.programs = executors[0].programs
        alone(running_rounds(run, state, last=2 + number))
    assert [executor.reason for executor in executors] == [None, None]
    assert said == []


class Slow(ClientModule):
    """Trains longer in some runs."""

    def __init__(self, net: nn.Module, local: LocalTraining, seed: int) -> None:
        super().__init__(net, replace(local, batch_size=3 + seed))


@dataclass(frozen=True)
class Uneven:
    """Its clients' batches have another size in each run."""

    @hookimpl
    def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
        return Slow(net, ctx.local, ctx.seed)


@pytest.mark.slow
def test_gradients_are_clipped_in_company_as_alone(tmp_path: Path, widths: list[int]) -> None:
    local = {"epochs": 2, "batch_size": 4, "lr": 0.1}
    single, shared, said = ends("fedavg", tmp_path, local={**local, "clip_norm": 0.1})
    assert said == []
    assert max(widths) == len(SEEDS)
    for one, other in zip(single, shared, strict=True):
        assert torch.equal(one.models, other.models)
    plain_ends, *_ = ends("fedavg", tmp_path, local=local)
    assert not torch.allclose(plain_ends[0].models, single[0].models, atol=1e-3)


class Falls(ClientModule):
    """Has a scheduler."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


@dataclass(frozen=True)
class Falling:
    """Its learning rate falls within a stage."""

    @hookimpl
    def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
        return Falls(net, ctx.local)


def test_seeds_whose_learning_rates_are_scheduled_part(tmp_path: Path) -> None:
    single, shared, said = ends(composition(("falling", Falling())), tmp_path)
    agree(single, shared)
    assert said == [mentioning("optimisers", "schedulers")]


def test_seeds_that_train_otherwise_part(tmp_path: Path) -> None:
    single, shared, said = ends(composition(("uneven", Uneven())), tmp_path)
    agree(single, shared)
    assert said == [mentioning("together", "training")]


@dataclass(frozen=True)
class Broken:
    """The training of one seed fails."""

    @hookimpl
    def local_term(self, ctx: Any) -> Any:
        def term(module: ClientModule) -> Any:
            if ctx.seed == 1:
                raise ValueError("no\nterm")
            return module.flat().sum() * 0

        return term


def test_an_error_of_one_seed_is_its_own(tmp_path: Path) -> None:
    said: list[str] = []
    runs = [
        attempting(spec(composition(("broken", Broken())), seed, folder=tmp_path), lambda *_: DATA)
        for seed in SEEDS
    ]
    found = dict(together(runs, said.append))
    assert [found[seed].what for seed in SEEDS] == [DONE, FAILED, DONE]
    assert "ValueError: no" in found[1].why
    assert [line.count("\n") for line in said] == [0]


@dataclass(frozen=True)
class Stopped:
    """Ctrl-C is pressed in C code, which makes another error of it."""

    @hookimpl
    def score(self) -> None:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()


def test_an_interruption_of_c_code_stops_a_cell(tmp_path: Path) -> None:
    run = attempting(spec(composition(("odd", Stopped())), 0, folder=tmp_path), lambda *_: DATA)
    with pytest.raises(CellInterrupted):
        alone(run)


def test_samples_that_are_too_many_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_training, "POOL", 100)
    single, shared, said = ends("fedavg", tmp_path)
    agree(single, shared)
    assert said == [mentioning("0 MiB", "together")]


@dataclass(frozen=True)
class Fails:
    """Ends the run of one seed in its second round."""

    error: Exception

    @hookimpl
    def aggregate(self, ctx: Any) -> None:
        if ctx.seed == 1 and ctx.round == 2:
            raise self.error


@pytest.mark.parametrize("error", [Undefined("not here"), Diverged("too far")])
def test_a_seed_that_fails_stops_no_other(error: Exception, tmp_path: Path) -> None:
    method = composition(("fails", Fails(error)))
    single, *_ = ends("fedavg", tmp_path)
    found: dict[int, Any] = {}

    def caught(number: int, running: Any) -> Any:
        try:
            return (yield from running)
        except type(error) as raised:
            return raised

    runs = [
        caught(number, running_rounds(*one))
        for number, one in enumerate(prepared(method, tmp_path))
    ]
    found |= together(runs)
    assert isinstance(found[1], type(error))
    agree([single[0], single[2]], [found[0], found[2]])


@pytest.mark.slow
def test_seeds_that_are_ahead_wait_for_the_others(tmp_path: Path, widths: list[int]) -> None:
    """As where a command was stopped while one of them had a round less."""
    single, *_ = ends("fedavg", tmp_path, rounds=4)
    runs, states = map(list, zip(*prepared("fedavg", tmp_path, rounds=4), strict=True))
    for run, last in zip(runs, (1, 3, 1), strict=True):
        number = runs.index(run)
        states[number] = alone(running_rounds(run, states[number], last))
    widths.clear()
    said: list[str] = []
    left = [running_rounds(run, state) for run, state in zip(runs, states, strict=True)]
    found = dict(together(left, said.append))
    assert (widths, said) == ([2, 2, 3], [])
    agree(single, [found[number] for number in SEEDS])


class Stop:
    """Stands for a person who presses Ctrl-C after the second round of the last seed."""

    @hookimpl
    def round_finished(self, record: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


def test_all_seeds_keep_their_last_round_when_they_are_stopped(tmp_path: Path) -> None:
    jobs = [
        spec("fedavg", seed, folder=tmp_path, rounds=4, sinks=(("stop", Stop()),) * (seed == 2))
        for seed in SEEDS
    ]

    def load(name: str, root: Path) -> Any:
        return toy_dataset()

    with pytest.raises(KeyboardInterrupt):
        dict(together([executing(job, load) for job in jobs]))
    assert all(job.checkpoint.is_file() for job in jobs)
    resumed = [replace(job, resume=True, sinks=()) for job in jobs]
    found = dict(together([executing(job, load) for job in resumed]))
    for number, job in enumerate(jobs):
        whole = replace(job, out=tmp_path / "whole", sinks=())
        expected = alone(executing(whole, load)).model_dump(exclude=set(VOLATILE))
        assert found[number].model_dump(exclude=set(VOLATILE)) == expected
        assert not job.checkpoint.exists()


def test_what_others_took_is_not_a_runs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = prepared("fedavg", tmp_path)[0]
    times = iter([0.0, 7.0])
    monkeypatch.setattr(context.time, "perf_counter", lambda: next(times))
    with run.services.timed("train"):
        run.services.elsewhere += 5.0
    assert run.services.seconds["train"] == 2.0


def test_what_a_run_waits_for_others_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling.time, "perf_counter", lambda: 10.0)
    nothing: Any = None
    waited = Training(nothing, nothing, nothing, nothing, 1, seconds=2.0, asked=3.0)
    assert waited.elsewhere() == 5.0
    assert replace(waited, seconds=None).elsewhere() == 0.0, "nobody else was trained"


def test_seeds_share_the_memory_for_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[int] = []
    real = setup.RowStore.__init__

    def init(store: Any, *given: Any) -> None:
        real(store, *given)
        budgets.append(store.budget)

    monkeypatch.setattr(setup.RowStore, "__init__", init)
    engine = replace(LANES, bank_budget=9000)
    console = (("console", Console()),)
    request: Any = None
    cells = [
        Cell(request, spec("fedavg", seed, folder=tmp_path, engine=engine, sinks=console))
        for seed in SEEDS
    ]
    dict(run_together(cells, [lambda *_: DATA] * 3))
    assert budgets == [3000] * 3


def test_processes_of_a_machine_share_the_memory_for_models(tmp_path: Path) -> None:
    engine = EngineOptions(devices=3, bank_budget=9000)
    asked = replace(spec("fedavg", 0, folder=tmp_path, engine=engine), together=2)
    assert setup.build_store(asked, torch.device("cpu")).budget == 1500
    assert setup.build_store(asked, torch.device("cuda")).budget == 4500, "each has a GPU"


@pytest.mark.slow
def test_the_command_trains_seeds_together(typed: Typed) -> None:
    words = "run -p pfedlia -s pathological-noniid --rounds 3 --set warmup=1 --set probe_epochs=1"
    words += " --executor vectorised --accelerator cpu"
    code, printed, said = typed(*words.split(), "--seeds", "3", "--out", "together")
    assert code == 0
    assert mentions(said, "note", "3 seeds")
    assert said.count("round 3/3") == 1
    assert printed.count("seed-") == 3
    for seed in SEEDS:
        assert typed(*words.split(), "--seed", str(seed), "--out", "alone")[0] == 0
    for path in Path("alone").rglob("seed-*.json"):
        one = read_result(path)
        other = read_result(Path("together", *path.parts[1:]))
        leave = set(VOLATILE)
        assert one.model_dump(exclude=leave) == other.model_dump(exclude=leave)


def test_samples_of_all_seeds_are_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    real = lane_training.Pool.__init__

    def count(pool: lane_training.Pool, jobs: Any) -> None:
        made.append(len(jobs))
        real(pool, jobs)

    runs = [running_rounds(*one) for one in prepared("fedavg", tmp_path, rounds=4)]
    monkeypatch.setattr(lane_training.Pool, "__init__", count)
    dict(together(runs))
    assert made == [3]


@pytest.mark.slow
def test_an_interrupted_command_says_how_all_seeds_go_on(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "run -p fedavg -s pathological-noniid --rounds 4 --seeds 2 --executor vectorised"
    real, made = TogetherExecutor.fit, []

    def interrupted(executor: Any, fits: Any) -> Any:
        made.append(len(fits))
        if len(made) == 3:
            raise KeyboardInterrupt
        return real(executor, fits)

    monkeypatch.setattr(TogetherExecutor, "fit", interrupted)
    code, out, said = typed(*words.split(), "--accelerator", "cpu")
    assert (code, out) == (130, "")
    assert mentions(said, "flbench run", "whole")
    assert "--seeds 2" in said.splitlines()[-1]
    assert "--resume" in said.splitlines()[-1]
    monkeypatch.undo()
    assert len(list(Path().rglob("*checkpoint*"))) >= 2
    code, out, _ = typed(*words.split(), "--accelerator", "cpu", "--resume")
    assert (code, out.count("seed-")) == (0, 2)


@pytest.mark.slow
def test_other_sinks_and_executors_hear_of_one_seed_at_a_time(typed: Typed) -> None:
    words = "run -p fedavg -s pathological-noniid --rounds 1 --seeds 2 --accelerator cpu --force"
    for more in (["--sink", "csv", "--executor", "vectorised"], ["--executor", "sequential"]):
        code, _, said = typed(*words.split(), *more)
        assert code == 0
        assert "seeds run together" not in said
        assert said.count("round 1/1") == 2
