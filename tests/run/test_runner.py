"""The data that are there: parts of a data set, data sets that need no files, where files lie."""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from mentions import mention, mentioning, mentions
from small import resumed
from toy import Play, bad, composition, refused, toy_dataset, toy_suite

from flbench import ClientModule, Context
from flbench.cli.main import main
from flbench.core.dataset import Dataset
from flbench.core.hookspecs import hookimpl
from flbench.engine.options import EngineOptions
from flbench.errors import (
    BadParameter,
    Diverged,
    MachineError,
    MissingData,
    PluginError,
    Undefined,
    UserError,
)
from flbench.federation import loading
from flbench.federation.loading import load_dataset
from flbench.results.files import read_result, result_path, skip_path
from flbench.results.schema import VOLATILE, Result
from flbench.run import checkpoint, rounds, runner, setup
from flbench.run.checkpoint_file import generations, previous
from flbench.run.composition import MethodStack, compose
from flbench.run.result import refuse_unfit
from flbench.run.runner import execute, resolve_dataset
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.suite import load_suite
from flbench.terminal.tables import print_rows, print_table

PART = "toy[a,b]"
NOT_DEFINED = "not defined on toys"


def domains(count: int, name: str = PART) -> Dataset:
    """The toy data set, in so many domains (0 = none), under the name of a part."""
    data, places = toy_dataset(), torch.arange(72)
    return Dataset(name, data.x, data.y, 4, domains=places % count if count else None)


def job_of(folder: Path, said: list[str] | None = None, **changes: Any) -> RunSpec:
    """A run of fedavg on the toy suite; `method` and `force` are the job's."""
    method: MethodStack = changes.pop("method", compose("fedavg"))
    return RunSpec(
        suite=toy_suite(**{"partition": "iid", "rounds": 1, **changes}),
        method=method,
        seed=0,
        data_root=folder,
        out=folder / "out",
        engine=EngineOptions(accelerator="cpu"),
        say=[].append if said is None else said.append,
    )


def giving(data: Dataset) -> Callable[[str, Path], Dataset]:
    return lambda name, root: data


@pytest.fixture
def toy_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set `toy` is installed, and its files give the part PART."""
    monkeypatch.setattr(loading, "find", lambda group, name: (group, name))
    monkeypatch.setattr(
        loading, "load_entry", lambda entry: {("datasets", "toy"): lambda root: domains(2)}[entry]
    )


def lacking(name: str, root: Path) -> Dataset:
    raise MissingData(f"data set '{name}' expects a file in {root}")


# --- parts --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy_parts")
def test_a_part_can_be_asked_for_by_its_name(tmp_path: Path) -> None:
    said: list[str] = []
    asked = job_of(tmp_path, said, dataset=PART, clients=2)
    job, load = resolve_dataset(asked, load_dataset)
    assert (job.suite.dataset, job.suite.clients, said) == (PART, 2, [])
    assert load(PART, tmp_path).name == PART
    with pytest.raises(MissingData, match=mention("toy[a]", "asked")):
        load_dataset("toy[a]", tmp_path)


@pytest.mark.parametrize(
    ("count", "clients", "expected"), [(2, 6, 2), (3, 6, 3), (9, 6, 6), (0, 6, 6)]
)
def test_a_part_runs_under_its_own_name_with_a_client_per_domain(
    tmp_path: Path, count: int, clients: int, expected: int
) -> None:
    said: list[str] = []
    asked = job_of(tmp_path, said, clients=clients)
    job, load = resolve_dataset(asked, giving(domains(count)))
    assert (job.suite.dataset, job.suite.clients) == (PART, expected)
    assert said == [f"toy runs on {PART} with {expected} clients"]
    assert load("anything", Path("anywhere")).name == PART
    assert job.fingerprint != asked.fingerprint
    assert job.suite.hash() != asked.suite.hash()
    assert job.path.parents[2].name == "toy-a,b"
    assert asked.path.parents[2].name == "toy"


def test_parts_of_different_domains_never_meet(tmp_path: Path) -> None:
    asked = job_of(tmp_path)
    jobs = [
        resolve_dataset(asked, giving(domains(2, name)))[0] for name in ("toy[a,b]", "toy[a,c]")
    ]
    assert len({job.fingerprint for job in jobs}) == len({job.path for job in jobs}) == 2


def test_what_is_derived_from_a_part_has_domains_of_its_own(tmp_path: Path) -> None:
    name, said = f"rotated:{PART}", list[str]()
    asked = job_of(tmp_path, said, dataset="rotated:toy")
    job, _ = resolve_dataset(asked, giving(domains(4, name)))
    assert (job.suite.dataset, job.suite.clients) == (name, asked.suite.clients)
    assert said == [f"toy runs on {name} with {asked.suite.clients} clients"]


def test_a_whole_data_set_runs_as_the_suite_says(tmp_path: Path) -> None:
    said: list[str] = []
    asked = job_of(tmp_path, said)
    for name in ("toy", "toys[a,b]", "other"):
        job, _ = resolve_dataset(asked, giving(domains(2, name)))
        assert job == asked
    assert said == []


def test_a_part_is_played_kept_and_not_played_again(tmp_path: Path) -> None:
    asked = job_of(tmp_path, participation=1.0)
    job, load = resolve_dataset(asked, giving(domains(3)))
    result = execute(job, load)
    assert (result.dataset, result.suite["dataset"], result.suite["clients"]) == (PART, PART, 3)
    assert len(result.clients.test) == 3
    assert not asked.path.exists()
    assert read_result(job.path) == result
    again, load = resolve_dataset(asked, giving(domains(3)))
    with patch.object(runner, "prepare", side_effect=AssertionError):
        assert execute(again, load) == result


def test_a_complete_result_needs_no_data(tmp_path: Path) -> None:
    asked = job_of(tmp_path)
    result = execute(*resolve_dataset(asked, giving(toy_dataset())))
    job, load = resolve_dataset(asked, lacking)
    assert execute(job, load) == result
    with pytest.raises(MissingData):
        resolve_dataset(replace(asked, force=True), lacking)


# --- offline data sets and what does not change a number ---------------------------------------


def test_missing_data_names_the_offline_data_set(tmp_path: Path) -> None:
    job = RunSpec(
        suite=load_suite("digit-5"), method=compose("fedavg"), seed=0, data_root=tmp_path,
        out=tmp_path,
    )  # fmt: skip
    with pytest.raises(MissingData) as caught:
        resolve_dataset(job)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("data set 'digit-5' expects")
    assert mentions(line, "--dataset", "digits-shift")
    with pytest.raises(MissingData, match=r"expects a file in [^;]*$"):
        resolve_dataset(job_of(tmp_path), lacking)


def test_what_is_only_told_changes_no_hash() -> None:
    plain = toy_suite()
    printed = {"toy": {"fedavg": {"accuracy_mean": 0.5}}}
    for told in (
        {"offline_dataset": "digits"},
        {"printed": printed},
        {"target": 0.8},
        {"summary": "other"},
    ):
        assert toy_suite(**told).hash() == plain.hash(), told
    for changed in (
        {"clients": 5},
        {"dataset": "other"},
        {"test_set": "labels"},
        {"local": {"drop_last": True}},
        {"local": {"lr_decay": 0.5}},
    ):
        assert toy_suite(**changed).hash() != plain.hash(), changed


# --- where results lie --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "folder"),
    [
        ("digits", "digits"),
        ("digit-5[mnist,usps]", "digit-5-mnist,usps"),
        ("npz:/a/b.npz", "npz-a-b.npz"),
        ("npz:../../x", "npz-..-..-x"),
        ("text:~/some folder/æ", "text-some-folder-æ"),
        ("rotated:digits", "rotated-digits"),
        ("npz:C:\\x\\y.npz", "npz-C-x-y.npz"),
    ],
)
def test_every_data_set_has_a_folder_inside_out(tmp_path: Path, dataset: str, folder: str) -> None:
    path = result_path(tmp_path, "suite", dataset, "fedavg", "01234567", 3)
    assert path == tmp_path / "suite" / folder / "fedavg" / "01234567" / "seed-3.json"
    assert path.resolve().is_relative_to(tmp_path.resolve())


@pytest.mark.parametrize("dataset", ["..", ".", "/", "../..", "[..]", "npz:.."])
def test_no_name_of_a_data_set_leads_outside(tmp_path: Path, dataset: str) -> None:
    out = tmp_path / "a" / "b"
    path = result_path(out, "suite", dataset, "fedavg", "01234567", 0)
    assert path.resolve().is_relative_to((out / "suite").resolve())


def test_tables_show_names_with_brackets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_rows("mine on x[a,b]", [{"dataset": "x[a,b]", "loss": 1.5}])
    shown = capsys.readouterr().out
    assert shown.count("x[a,b]") == 2
    job, load = resolve_dataset(job_of(tmp_path), giving(domains(2, "toy[a,/b]")))
    result = execute(job, load)
    print_table([(job.path, result)])
    shown = capsys.readouterr().out
    assert f"toy on toy[a,/b] [{result.fingerprint.suite}]" in shown


def test_a_table_wider_than_the_terminal_keeps_its_numbers_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    names = [f"column_number_{n}" for n in range(8)]
    row = {name: n + 0.1234 for n, name in enumerate(names)}
    print_rows("wide", [{**row, "column_number_7_std": 0.0101, "last": "word"}])
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "0.1234" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        *(f"{n}.1234" for n in range(7)), "7.1234 ± 0.0101", "word",
    ]  # fmt: skip


# --- loading ------------------------------------------------------------------------------------


def test_data_sets_and_doors_are_told_apart(tmp_path: Path) -> None:
    assert load_dataset("digits", tmp_path).name == "digits"
    for name, why in (
        ("npz", "data set 'npz' needs an argument, as in npz:..."),
        ("digits:1", "data set 'digits' takes no argument, got '1'"),
    ):
        with pytest.raises(BadParameter, match=f"^{re.escape(why)}$"):
            load_dataset(name, tmp_path)


# --- runs that end early ------------------------------------------------------------------------


def undefined_in_round_two() -> MethodStack:
    def aggregate(ctx: Any) -> None:
        if ctx.round == 2:
            raise Undefined(NOT_DEFINED)

    return bad(aggregate=lambda self, ctx: aggregate(ctx))


def test_an_undefined_method_leaves_its_reason_and_no_checkpoint(tmp_path: Path) -> None:
    job = job_of(tmp_path, rounds=3, method=undefined_in_round_two())
    seen: list[bool] = []
    whole = runner.play

    def watched(*given: Any) -> Any:
        try:
            return whole(*given)
        finally:
            seen.append(job.checkpoint.is_file())

    with patch.object(runner, "play", watched), pytest.raises(Undefined, match=NOT_DEFINED):
        execute(job, giving(toy_dataset()))
    assert seen == [True], "round 1 was kept until then"
    assert [path.name for path in job.path.parent.iterdir()] == ["skipped.json"]
    assert NOT_DEFINED in skip_path(job.path).read_text()


def test_a_result_takes_the_place_of_the_reason_why_there_was_none(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    skip_path(job.path).parent.mkdir(parents=True)
    skip_path(job.path).touch()
    execute(job, giving(toy_dataset()))
    assert [path.name for path in job.path.parent.iterdir()] == ["seed-0.json"]


def test_a_test_loss_that_is_no_number_ends_the_run(play_toy: Play) -> None:
    """Test samples may be what no client trains on."""
    data = toy_dataset()
    x = data.x.clone()
    x[54:] = torch.inf
    test = torch.arange(72) >= 54
    far = Dataset("toy", x, data.y, 4, test=test)
    with pytest.raises(Diverged, match=mention("round 1", "local.lr")):
        play_toy("fedavg", dataset=far, test_set="labels")


def test_a_loss_that_is_no_number_names_its_plugin(play_toy: Play) -> None:
    """A lower rate does not help."""
    lost = bad(batch_loss=lambda self: lambda batch: batch.logits.sum() * torch.nan)
    with pytest.raises(Diverged, match=mention("round 1", "local.lr", "loss", "bad")):
        play_toy(lost)


def test_a_run_of_more_rounds_says_that_the_shorter_one_has_ended(tmp_path: Path) -> None:
    said: list[str] = []
    for rounds_ in (2, 3):
        execute(job_of(tmp_path, rounds=rounds_), giving(toy_dataset()))
    execute(job_of(tmp_path, rounds=3, method=compose("fedprox")), giving(toy_dataset()))
    execute(replace(job_of(tmp_path, said, rounds=6), resume=True), giving(toy_dataset()))
    ended = job_of(tmp_path, rounds=3).path
    assert mentions(said, "--resume", "6 rounds", "round 1", "3 rounds", ended)
    said.clear()
    other = replace(job_of(tmp_path, said, rounds=6, test_fraction=0.5), resume=True)
    execute(other, giving(toy_dataset()))
    assert not mentions(said, "--resume"), "no run differs in the number of rounds alone"


@pytest.mark.slow
def test_the_total_holds_all_parts_also_after_a_resume(play_toy: Play, tmp_path: Path) -> None:
    whole = play_toy("fedavg", rounds=4)
    for played in (whole, resumed(whole, tmp_path, after=3)):
        seconds = played.run.services.seconds
        parts = [seconds[part] for part in ("dispatch", "train", "aggregate", "evaluate")]
        assert seconds["total"] >= sum(parts)
        assert played.result.seconds["total"] >= played.result.seconds["train"] > 0


def test_a_run_that_goes_on_with_another_executor_says_so(play_toy: Play, tmp_path: Path) -> None:
    whole = play_toy("fedavg", rounds=4)
    assert not whole.result.warnings
    assert not resumed(whole, tmp_path, after=2).result.warnings
    mixed = resumed(whole, tmp_path / "mixed", after=2, executor="vectorised")
    assert mixed.result.environment["executor"] == "vectorised"
    assert mixed.result.warnings == [
        mentioning("3 were computed", "executor", "sequential", "one", "vectorised")
    ]


@dataclass(frozen=True)
class DrawsLater:
    """What lanes cannot train, in one round only."""

    @hookimpl
    def local_term(self, ctx: Context) -> Callable[[ClientModule], torch.Tensor] | None:
        return (lambda module: torch.randn(()) * 0.0) if ctx.round == 2 else None


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_run_whose_lanes_failed_goes_on_one_by_one(
    after: int, play_toy: Play, tmp_path: Path
) -> None:
    """Lanes fail in round 2. One that goes on with round 4 would train in them again."""
    whole = play_toy(composition(("later", DrawsLater())), rounds=4, executor="auto")
    assert whole.said[0].startswith("round 2: clients are trained one by one: ")
    assert whole.result.environment["executor"] == "sequential, as lanes failed"
    assert whole.result.warnings == [
        "rounds before 2 were computed by another executor (vectorised) than this one (sequential,"
        " as lanes failed): equal up to the order of sums"
    ]
    again = resumed(whole, tmp_path, after=after)
    assert torch.equal(again.state.models, whole.state.models)
    assert again.result.warnings == whole.result.warnings
    assert again.result.environment == whole.result.environment


@pytest.mark.parametrize(
    ("executor", "said"),
    [
        ("sequential", []),
        (
            "vectorised",
            [
                "rounds before 3 were computed by another executor (vectorised) than this one"
                " (vectorised in 2 processes): equal up to the order of sums"
            ],
        ),
    ],
)
def test_only_in_lanes_another_number_of_processes_is_told(
    executor: str,
    said: list[str],
    play_toy: Play,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = play_toy("fedavg", rounds=4, executor=executor)
    sizes = iter([1, 1, 2, 2])
    processes = SimpleNamespace(of=lambda fabric: SimpleNamespace(size=next(sizes)))
    monkeypatch.setattr(rounds, "ProcessGroup", processes)
    assert resumed(whole, tmp_path, after=2, executor=executor).result.warnings == said


def test_a_run_that_goes_on_on_another_processor_says_so(
    play_toy: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = play_toy("fedavg", rounds=4)
    names = iter(["one", "one", "two", "two"])
    monkeypatch.setattr("flbench.run.rounds.processor", lambda device: next(names))
    assert resumed(whole, tmp_path, after=2).result.warnings == [
        mentioning("3 were computed", "processor", "one", "two")
    ]


def test_a_checkpoint_knows_the_time_until_then(play_toy: Play) -> None:
    whole = play_toy("fedavg", rounds=1)
    run, state = prepare(replace(whole.job, resume=True), toy_dataset())
    assert state.round == 1
    kept = run.services.seconds
    assert kept["total"] >= kept["train"] + kept["evaluate"] > 0
    assert kept["train"] == whole.run.services.seconds["train"]


# --- nothing is lost, nothing is left ----------------------------------------------------------


def test_a_run_that_fails_after_its_last_round_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, load = job_of(tmp_path, rounds=3), giving(toy_dataset())
    monkeypatch.setattr(checkpoint, "pause", lambda writing: torch.inf)  # only the first

    def full(path: Path, result: Result) -> None:
        raise MachineError("disk full")

    with patch.object(runner, "save_result", full), pytest.raises(MachineError, match="disk full"):
        execute(job, load)
    with patch.object(rounds, "run_round", side_effect=AssertionError):
        kept = execute(replace(job, resume=True), load)
    assert len(kept.curves["accuracy"]) == 3
    assert [path.name for path in job.path.parent.iterdir()] == ["seed-0.json"]


def test_a_damaged_checkpoint_never_takes_the_place_of_the_whole_one(tmp_path: Path) -> None:
    job, load = job_of(tmp_path, rounds=4), giving(toy_dataset())
    with pytest.raises(KeyboardInterrupt):
        execute(replace(job, sinks=(("stop", Stop(2)),)), load)
    job.checkpoint.write_bytes(b"damaged")
    left: list[list[Path]] = []

    class Seen:
        @hookimpl
        def run_started(self) -> None:
            left.append(generations(job.checkpoint))

    execute(replace(job, resume=True, sinks=(("seen", Seen()),)), load)
    assert left == [[previous(job.checkpoint)]]


def test_what_a_killed_run_left_beside_its_result_goes_when_it_is_found_complete(
    tmp_path: Path,
) -> None:
    job, load = job_of(tmp_path), giving(toy_dataset())
    with patch.object(runner, "discard"):  # killed between the two
        execute(job, load)
    (job.path.parent / ".seed-0.json.abcdefgh").touch()
    assert generations(job.checkpoint)
    execute(job, load)
    assert [path.name for path in job.path.parent.iterdir()] == ["seed-0.json"]


@dataclass(frozen=True)
class Stop:
    """Ends a run after a round, as a person would."""

    after: int

    @hookimpl
    def round_finished(self, record: Any) -> None:
        if record.round == self.after:
            raise KeyboardInterrupt


def test_a_forced_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    job, load = job_of(tmp_path, rounds=2), giving(toy_dataset())
    first = execute(job, load)
    os.utime(job.path, ns=(0, 0))
    with pytest.raises(KeyboardInterrupt):
        execute(replace(job, force=True, sinks=(("stop", Stop(1)),)), load)
    assert read_result(job.path) == first, "it stays until the new one is written"
    seen = Recorder()
    again = execute(replace(job, resume=True, sinks=(("seen", seen),)), load)
    assert seen.rounds == [2]
    assert stable(again) == stable(first)


@dataclass
class Recorder:
    """Listens to the rounds of a run."""

    rounds: list[int] = field(default_factory=list)

    @hookimpl
    def round_finished(self, record: Any) -> None:
        self.rounds.append(record.round)


def stable(result: Result) -> dict[str, Any]:
    return result.model_dump(exclude=set(VOLATILE))


def sourced(method: MethodStack, source: str) -> MethodStack:
    """The same method, as if its files were others."""
    plugins = [one.model_copy(update={"source": source}) for one in method.described.plugins]
    return replace(method, described=method.described.model_copy(update={"plugins": plugins}))


def test_another_core_is_refused_or_told_by_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, load = job_of(tmp_path, rounds=3), giving(toy_dataset())
    with pytest.raises(KeyboardInterrupt):
        execute(replace(job, sinks=(("stop", Stop(2)),)), load)
    before, parts = setup.core(), {**setup.core_parts(), "lanes": "0" * 12}
    monkeypatch.setattr(setup, "core", lambda: "0" * 12)
    monkeypatch.setattr(setup, "core_parts", lambda: parts)
    with pytest.raises(UserError) as refused:
        execute(replace(job, resume=True), load)
    line = str(refused.value)
    assert f"since: core ({before} then, {'0' * 12} now) (core: lanes); restore it" in line
    assert "\n" not in line
    said: list[str] = []
    result = execute(replace(job, resume=True, changed_source=True, say=said.append), load)
    (change,) = result.source_changes or ()
    assert (change.round, change.plugin, change.before) == (2, "core", before)
    assert result.environment["core"] == "0" * 12
    assert [line for line in said if "another core" in line and "from round 3 on" in line]


def test_other_threads_are_refused_by_the_option_and_lanes_are_told(tmp_path: Path) -> None:
    job, load = job_of(tmp_path, rounds=3), giving(toy_dataset())
    job = replace(job, engine=replace(job.engine, executor="sequential"))
    with pytest.raises(KeyboardInterrupt):
        execute(replace(job, sinks=(("stop", Stop(2)),)), load)
    more = replace(job, engine=replace(job.engine, threads=2), resume=True)
    try:
        with pytest.raises(UserError, match=re.escape("since: --threads (1 then, 2 now); restore")):
            execute(more, load)
    finally:
        torch.set_num_threads(1)
    lanes = replace(job, engine=replace(job.engine, executor="vectorised"), resume=True)
    result = execute(lanes, load)
    assert result.source_changes is None
    assert "another executor" in result.warnings[0]


def test_compiling_decides_bits(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    compiled = replace(job, engine=replace(job.engine, compile=True))
    found = {**setup.environment_of(job), "compile": "yes"}
    assert setup.environment_of(compiled) == found != setup.environment_of(job)


def test_a_result_names_its_core_beside_what_it_is_compared_by(play_toy: Play) -> None:
    result = play_toy("fedavg").result
    assert result.environment["core"] == setup.core()
    assert "environment" in VOLATILE


def test_changed_code_is_refused_or_told_by_the_result(tmp_path: Path) -> None:
    job, load = job_of(tmp_path, rounds=3), giving(toy_dataset())
    with pytest.raises(KeyboardInterrupt):
        execute(replace(job, sinks=(("stop", Stop(2)),)), load)
    other = replace(job, method=sourced(job.method, "0" * 12), resume=True)
    with pytest.raises(UserError, match=mention("fedavg", "computes")):
        execute(other, load)
    result = execute(replace(other, changed_source=True), load)
    (change,) = result.source_changes or ()
    assert (change.round, change.plugin, change.after) == (2, "fedavg", "0" * 12)
    assert read_result(job.path) == result
    text = result.canonical().replace("self-reported", "reproduced")
    job.path.write_text(text)
    with pytest.raises(UserError, match="'status': self-reported expected"):
        read_result(job.path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dataset": "npz:" + "x" * 200}, "'dataset': one line"),
        ({"dataset": "npz:a\nb"}, "'dataset': one line"),
        ({"name": "x" * 201}, "'suite.name': one line"),
        ({"version": 2**60}, "'suite.version': numbers up to"),
        ({"local.batch_size": 10**16}, "'suite.local': numbers up to .* in 'batch_size'"),
        (
            {"test_set": "proportional", "test_samples": 2**63 - 1},
            "'suite.test_samples': numbers up to",
        ),
        (
            {"partition": {"name": "dirichlet", "min_samples": 2**63 - 1}},
            "'suite.partition': numbers up to .* in 'min_samples'",
        ),
        ({"metrics": ["f1:average=" + "x" * 200]}, "'client_metrics.f1"),
    ],
)
def test_what_no_result_could_hold_is_refused_before_anything_runs(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    job = job_of(tmp_path, **changes)
    with pytest.raises(BadParameter, match=named) as at:
        refuse_unfit(job)
    assert "\n" not in str(at.value)


def test_a_seed_that_no_result_could_hold_is_refused(tmp_path: Path) -> None:
    refuse_unfit(job_of(tmp_path))
    with pytest.raises(BadParameter, match=mention("seed", "input")):
        refuse_unfit(replace(job_of(tmp_path), seed=10**17))


def test_a_note_that_no_result_could_hold_is_refused_when_it_is_made(play_toy: Play) -> None:
    def plan(ctx: Any) -> None:
        ctx.note("large", [2**60])

    line = refused(play_toy, bad(plan=lambda self, ctx: plan(ctx)))
    assert mentions(line, "round 1", "bad.plan", "ValueError", "note 'large': numbers up to")


PLAIN = "numbers, texts, lists or tables of them expected, got "


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda ctx: ctx.note("x", torch.tensor(1.0)), f"note 'x': {PLAIN}Tensor"),
        (lambda ctx: ctx.note("x", [torch.ones(1).numpy()[0]]), f"note 'x': {PLAIN}float32"),
        (lambda ctx: ctx.note("x", {"a": {1, 2}}), f"note 'x': {PLAIN}set"),
        (lambda ctx: ctx.note("x", {1: 2}), "note 'x': texts as keys expected, got int"),
        (lambda ctx: ctx.warn(12), "warning: input should be a valid string, got 12"),
        (lambda ctx: ctx.send("up", ctx.cohort, "x", 1, bits=-32), "bits: expected a whole number"),
        (lambda ctx: ctx.send("up", ctx.cohort, ("x", 1), 1), "item: expected a name in one line"),
        (
            lambda ctx: ctx.send("up", ctx.cohort, "x", torch.full(ctx.cohort.shape, torch.nan)),
            "whole numbers >= 0, one per client",
        ),
    ],
)
def test_what_a_method_hands_over_is_refused_when_it_does(
    act: Callable[[Any], object], said: str, play_toy: Play
) -> None:
    def plan(self: object, ctx: Any) -> None:
        act(ctx)

    assert mentions(refused(play_toy, bad(plan=plan)), "round 1", "bad.plan", said)


def test_a_note_is_what_it_was_when_it_was_made(play_toy: Play) -> None:
    seen: list[int] = []

    def plan(self: object, ctx: Any) -> None:
        seen.append(ctx.round)
        ctx.note("rounds", seen)
        seen[-1] = -1

    played = play_toy(bad(plan=plan), rounds=2)
    values = [note["value"] for note in played.result.notes if note["name"].endswith("rounds")]
    assert values == [[1], [-1, 2]]


def test_numbers_that_no_result_could_hold_are_one_line(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with (
        patch("flbench.run.result.mean_kld", return_value=1e200),
        pytest.raises(PluginError, match=mention("'summary", "result")),
    ):
        execute(job, giving(toy_dataset()))
    assert job.checkpoint.is_file()


@pytest.mark.parametrize(("method", "name"), [("clusterfl", "k"), ("dc-pfl", "t_start")])
def test_a_parameter_that_no_result_could_hold_is_refused(method: str, name: str) -> None:
    with pytest.raises(BadParameter, match=f"'params.{name}': numbers up to"):
        compose(method, {name: 2**63 - 1})


# --- the command line ---------------------------------------------------------------------------

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Run the command in this process, in an empty folder: exit code, what it printed, and said."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["flbench", *args])
        monkeypatch.setenv("FLBENCH_DATA", str(tmp_path / "empty"))
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


QUICK = ("--rounds", "1", "--set", "local.epochs=1")


@pytest.mark.slow
def test_of_several_runs_the_one_that_lacks_its_data_is_left_out(
    typed: Typed, tmp_path: Path
) -> None:
    (tmp_path / "here.toml").write_text(TOY.format(dataset="digits"), encoding="utf-8")
    (tmp_path / "lacks.toml").write_text(TOY.format(dataset="mnist"), encoding="utf-8")
    code, printed, errors = typed("run", "-p", "fedavg", "-s", "lacks.toml,here.toml", *QUICK)
    assert code == 0, errors
    assert mentions(errors, "fedavg", "lacks", "mnist", "seed 0", "skipped")
    assert "here on digits [" in printed
    assert [path.parents[3].name for path in tmp_path.rglob("seed-0.json")] == ["here"]
    code, printed, errors = typed("run", "-p", "fedavg", "-s", "lacks.toml", *QUICK)
    assert (code, printed) == (1, "")
    assert mentions(errors, "mnist", "digits")
    code, _, errors = typed("run", "-p", "fedavg,local-only", "-s", "lacks.toml", *QUICK)
    assert code == 1, "of several, all lack it"
    assert errors.count("skipped, data set 'mnist'") == 2
    assert errors.splitlines()[-1].startswith("flbench: data set 'mnist' expects")


TOY = """
version = 1
summary = "small"
dataset = "{dataset}"
offline_dataset = "digits"
partition = "iid"
model = {{ name = "mlp", hidden = 4 }}
clients = 4
rounds = 2
"""


def test_a_part_is_named_on_the_command_line(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Digit-5, the two domains that are 8x8 digits here."""
    (tmp_path / "parts.toml").write_text(TOY.format(dataset="digit-5"), encoding="utf-8")
    digits = load_dataset("digits", tmp_path)
    part = Dataset("digit-5[a,b]", digits.x, digits.y, 10, torch.arange(len(digits.y)) % 2)
    monkeypatch.setattr("flbench.datasets.digit5.digit5", lambda root: part)
    code, printed, errors = typed("run", "-p", "fedavg", "-s", "parts.toml", *QUICK)
    assert code == 0, errors
    assert mentions(errors, "digit-5[a,b]", "2 clients")
    assert "parts on digit-5[a,b] [" in printed
    (path,) = tmp_path.rglob("seed-0.json")
    assert path.parents[2].name == "digit-5-a,b"
    assert len(read_result(path).clients.test) == 2


# --- memory -------------------------------------------------------------------------------------


def test_a_data_set_is_released_before_the_first_round(tmp_path: Path) -> None:
    """The clients have copies of their samples: the pool and the data set would be two."""
    alive: list[bool] = []
    held = [domains(3)]
    data = weakref.ref(held[0])

    @dataclass(frozen=True)
    class Looks:
        @hookimpl
        def round_finished(self) -> None:
            alive.append(data() is not None)

    asked = replace(job_of(tmp_path), sinks=(("looks", Looks()),))
    execute(*resolve_dataset(asked, lambda name, root: held.pop()))
    assert alive
    assert not any(alive)
