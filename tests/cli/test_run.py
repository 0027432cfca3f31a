"""What is not defined on a suite is skipped, with its reason; other runs go on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from made_results import page
from mentions import mention, mentioning, mentions
from torch import nn
from toy import Play, Typed, bad, composition, toy_dataset, toy_suite

import flbench as fl
from flbench.cli.main import main
from flbench.cli.run import how_to_go_on
from flbench.cli.run import run_all as run_cells
from flbench.engine.options import EngineOptions
from flbench.engine.sequential import Sequential
from flbench.errors import Diverged, MachineError, PluginError, Undefined, UserError
from flbench.plugin.registry import find, load_entry
from flbench.results.files import read_skips, skip_path
from flbench.results.schema import Skip
from flbench.run.composition import compose
from flbench.run.runner import execute
from flbench.run.spec import RunSpec
from flbench.sweeps.request import Cell, RunRequest


def undefined() -> None:
    raise fl.Undefined("there is no water")


NOT_HERE = bad(setup=lambda self: undefined())


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., RunSpec]:
    """A toy job that lies in the test's folder."""

    def made(method: Any, said: list[str] | None = None, **changes: Any) -> RunSpec:
        method = compose(method) if isinstance(method, str) else method
        say = [].append if said is None else said.append
        suite = toy_suite(**changes)
        return RunSpec(
            suite,
            method,
            0,
            tmp_path,
            tmp_path / "out",
            engine=EngineOptions(accelerator="cpu"),
            say=say,
        )

    return made


def run(job: RunSpec) -> Any:
    return execute(job, lambda *_: toy_dataset())


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# --- the reason is kept where the result would lie ----------------------------------------------


def test_the_reason_is_kept_where_the_result_would_lie(job: Any) -> None:
    one = job(NOT_HERE)
    with pytest.raises(Undefined, match=r"^bad: there is no water$"):
        run(one)
    assert files(one.out) == ["skipped.json"]
    path = skip_path(one.path)
    assert path == one.path.parent / "skipped.json"
    (skip,) = read_skips(one.out)
    assert skip == Skip.model_validate_json(path.read_text())
    assert skip.reason == "bad: there is no water"
    assert skip.suite_hash == one.suite.hash()
    assert skip.suite["name"] == skip.dataset == "toy"
    assert skip.suite["rounds"] == 3
    assert skip.method == one.method.described
    assert json.loads(path.read_text())["reason"] == skip.reason


@pytest.mark.parametrize(
    "hook",
    ["setup", "client_module", "plan", "dispatch", "score", "cluster", "aggregate", "personalise"],
)
def test_every_hook_may_find_that_a_method_is_not_defined(hook: str, job: Any) -> None:
    one = job(bad(**{hook: lambda self: undefined()}))
    with pytest.raises(Undefined):
        run(one)
    assert [skip.reason for skip in read_skips(one.out)] == ["bad: there is no water"]
    assert not one.path.exists()


def test_what_the_person_can_mend_leaves_no_reason(job: Any) -> None:
    def refuse(self: Any) -> None:
        raise UserError("lower alpha")

    one = job(bad(setup=refuse))
    with pytest.raises(PluginError, match="lower alpha"):
        run(one)
    assert not one.out.exists()


@dataclass(frozen=True)
class Moody:
    """Undefined until somebody flips the switch."""

    defined: ClassVar[bool] = False

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> None:
        if not self.defined:
            raise fl.Undefined("not today")


def test_a_later_success_removes_the_reason(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = job(composition(("moody", Moody())))
    with pytest.raises(Undefined):
        run(one)
    assert skip_path(one.path).is_file()
    monkeypatch.setattr(Moody, "defined", True)
    run(one)
    assert files(one.out) == ["seed-0.json"]
    monkeypatch.setattr(Moody, "defined", False)
    with pytest.raises(Undefined):
        run(replace(one, force=True))
    assert files(one.out) == ["seed-0.json", "skipped.json"], "an older result is not thrown away"


ADAM = {"epochs": 1, "batch_size": 4, "lr": 0.01, "optimizer": "adam"}
ONE = {"clients": 1, "participation": 1.0, "partition": {"name": "iid"}}


@pytest.mark.parametrize(
    ("method", "settings", "changes", "reason"),
    [
        (
            "scaffold",
            {},
            {"local": ADAM},
            "SCAFFOLD is defined for SGD",
        ),
        ("fednova", {}, {"local": ADAM}, "FedNova is defined for SGD"),
        ("fednova", {"mu": 0.1}, {}, "FedNova with mu > 0 needs local.momentum=0"),
        ("flis-dc", {}, {}, "the server owns no samples: set `server_samples` of the suite"),
        ("flis-hc", {}, {}, "the server owns no samples: set `server_samples` of the suite"),
        ("clusterfl", {"clusterer": "affinity"}, {}, "the server owns no samples"),
        ("dc-pfl", {}, ONE, "groups need at least two clients"),
        ("fedc2i", {}, ONE, "leaving one client out needs at least two"),
        ("per-fedavg", {}, {"local": {"batch_size": 64}}, "a meta-step takes 2 batches"),
        ("fedrep", {"body_epochs": 5}, {}, "body_epochs=5: expected at most local.epochs=2"),
        ("flis-dc+scaffold", {}, {"server_samples": 8}, "SCAFFOLD needs disjoint groups"),
    ],
)
def test_built_in_methods_say_where_they_are_not_defined(
    method: str, settings: Any, changes: dict[str, Any], reason: str, job: Any
) -> None:
    one = job(compose(method, settings), **changes)
    with pytest.raises(Undefined) as caught:
        run(one)
    assert str(caught.value).split(": ", 1)[1].startswith(reason)
    assert str(caught.value).split(":")[0] in method.split("+")
    assert [skip.reason for skip in read_skips(one.out)] == [str(caught.value)]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedrod", "fedc2i", "fedproto"])
def test_a_network_without_a_head_is_no_place_for_methods_that_need_one(
    method: str, play_toy: Play
) -> None:
    def headless() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 3), nn.Flatten())

    assert play_toy("fedavg", net=headless).result.summary["accuracy_mean"] > 0
    with pytest.raises(Undefined, match=rf"^{method}: the network has no head"):
        play_toy(method, net=headless)


# --- of several runs the others go on -----------------------------------------------------------


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What a command does with its jobs; gives what it said."""
    monkeypatch.setattr("flbench.federation.loading.load_dataset", lambda *_: toy_dataset())

    def ran(*jobs: RunSpec) -> list[str]:
        said: list[str] = []
        asked = RunRequest()
        console = SimpleNamespace(say=said.append, close=lambda: None)
        run_cells(asked, [Cell(asked, job) for job in jobs], console)  # type: ignore[arg-type]
        return said

    return ran


LINE = "bad on toy (toy), seed 0: skipped, bad: there is no water"


@pytest.mark.slow
@pytest.mark.parametrize("order", list(permutations((0, 1, 2)))[:4])
def test_the_others_go_on(order: tuple[int, ...], job: Any, run_all: Any) -> None:
    jobs = [job(NOT_HERE), job("fedavg"), job("local-only")]
    assert run_all(*(jobs[place] for place in order)) == [LINE]
    assert files(jobs[0].out) == ["seed-0.json", "seed-0.json", "skipped.json"]


def test_a_command_that_finished_nothing_fails(job: Any, run_all: Any) -> None:
    one = job(NOT_HERE)
    with pytest.raises(Undefined, match=r"^bad: there is no water$") as caught:
        run_all(one, job(NOT_HERE, rounds=5))
    assert caught.value.exit_code == 1
    assert files(one.out) == ["skipped.json", "skipped.json"]


@pytest.mark.slow
def test_divergence_weighs_more_than_what_is_undefined(job: Any, run_all: Any) -> None:
    diverging = job("fedavg", local={"lr": 1e30})
    with pytest.raises(Diverged):
        run_all(job(NOT_HERE), diverging, job("local-only"))
    assert files(diverging.out) == ["seed-0.json", "skipped.json"]


def test_a_mistake_stops_everything(job: Any, run_all: Any) -> None:
    wrong = job(bad(setup=lambda self: 1 / 0))
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        run_all(wrong, job("fedavg"))
    assert not wrong.out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("others", "code"), [(("-p", "fedavg"), 0), ((), 1)])
def test_the_exit_code_is_0_if_something_finished_and_1_if_nothing_did(
    others: tuple[str, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("--rounds", "1", "--set", "clients=20", "--set", "server_samples=0")
    typed = ["flbench", "run", "-p", "flis-hc", *others, "-s", "noisy-noniid", *arguments]
    monkeypatch.setattr(sys, "argv", typed)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert int(stopped.value.code or 0) == code
    said = capsys.readouterr()
    reason = "flis-hc: the server owns no samples: set `server_samples` of the suite"
    line = f"flis-hc on noisy-noniid (digits), seed 0: skipped, {reason}"
    assert (line in said.err) is (code == 0), "alone it is the error"
    assert (f"flbench: {reason}" in said.err.splitlines()) is (code == 1)
    assert ("accuracy" in said.out) is (code == 0)
    assert ("seed-0.json" in files(tmp_path)) is (code == 0)
    assert "skipped.json" in files(tmp_path)


# --- the leaderboard says so ---------------------------------------------------------------------


@pytest.mark.slow
def test_the_leaderboard_says_what_is_not_defined_where(job: Any, run_all: Any) -> None:
    dry = bad(setup=lambda self: undefined())
    scaffold = job("scaffold", local=ADAM)
    run_all(job("fedavg"), job(NOT_HERE), job(dry), job("flis-dc"))
    text = page(scaffold.out)
    lines = [line for line in text.splitlines() if line.startswith("Not defined here: ")]
    reason = "flis-dc: the server owns no samples: set \\`server_samples\\` of the suite"
    assert lines == [mentioning("defined", "water"), f"Not defined here: {reason}."]
    run_all(job("fedavg", local=ADAM), scaffold)
    first, second = page(scaffold.out).split("\n## ")[1:]
    if "SCAFFOLD" in first:
        first, second = second, first
    assert "SCAFFOLD is defined for SGD" in second
    assert "no water" not in second, "another suite"
    assert "no water" in first
    assert "SCAFFOLD" not in first


def test_a_reason_that_cannot_be_read_is_one_line(job: Any) -> None:
    one = job(NOT_HERE)
    with pytest.raises(Undefined):
        run(one)
    skip_path(one.path).write_text('{"reason": 1}')
    with pytest.raises(UserError, match=mention("skipped.json", "suite")) as caught:
        page(one.out)
    assert "\n" not in str(caught.value)


MACHINE = "the device's memory is full; close other programs that use it"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no"), "round 3: bad.aggregate raised ValueError: no; the last whole round"),
        (RuntimeError("CUDA out of memory. Tried"), f"RuntimeError: {MACHINE}"),
    ],
)
def test_a_run_that_fails_says_that_its_rounds_are_kept(
    error: Exception, said: str, job: Any, run_all: Any
) -> None:
    def fails(self: Any, ctx: Any) -> None:
        if ctx.round == 3:
            raise error

    failing = job(bad(aggregate=fails), rounds=5)
    with pytest.raises(PluginError) as caught:
        run_all(failing)
    text = str(caught.value)
    assert said in text
    assert mentions(text, "flbench run", "whole")
    assert text.endswith("--resume")


def test_a_device_that_is_full_outside_of_plugins_loses_no_rounds_either(
    job: Any, run_all: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def fit(*arguments: Any) -> Any:
        made.append(1)
        if len(made) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(*arguments)

    real = Sequential.fit
    monkeypatch.setattr(Sequential, "fit", fit)
    with pytest.raises(MachineError, match=mention("whole", "round")):
        run_all(job("fedavg", rounds=5))


def test_a_run_without_a_checkpoint_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    request, checkpoint = RunRequest(methods=("ifca",), suites=("iid",)), tmp_path / "checkpoint"
    assert "nothing is kept" in how_to_go_on(checkpoint, request)
    checkpoint.touch()
    assert "flbench run --plugin ifca --suite iid --seed 0 --resume" in how_to_go_on(
        checkpoint, request
    )


@pytest.mark.slow
def test_what_runs_keep_is_typed_and_verified(typed: Typed, tmp_path: Path) -> None:
    """`run` saves and keeps, `verify` looks at it, more rounds follow, and so does a study."""
    quick = ("--set", "clients=10", "--set", "local.epochs=1", "--executor", "sequential")
    args = ("run", "-p", "fedavg", "-s", "iid", *quick, "--rounds")
    keep = ("--save-models", "--save-predictions", "--keep-checkpoint")
    code, _, errors = typed(*args, "1", *keep)
    assert code == 0, errors
    (file,) = Path("flbench-results").rglob("seed-0.json")
    code, _, errors = typed("verify", str(file))
    assert (code, errors.count("as the run wrote it")) == (0, 2), errors
    code, _, errors = typed(*args, "2", "--resume")
    assert code == 0, errors
    assert mentions(errors, "round 2", "1 rounds")
    saved = file.with_name("seed-0.models.safetensors")
    saved.write_bytes(b"another")
    code, _, errors = typed("verify", str(file))
    assert (code, mentions(errors, saved.name, "SHA-256")) == (1, True)
    code, _, errors = typed(*args, "1", *keep)
    assert mentions(errors, "--force", "complete")
    grid = tmp_path / "mine.toml"
    grid.write_text(
        'summary = "one cell"\nsuites = ["iid"]\nmethods = ["fedavg"]\ncolumns = ["ece"]\n'
        'settings = {clients = 10, "local.epochs" = 1, rounds = 1}\n'
    )
    code, _, errors = typed("study", "mine.toml", *keep, "--out", "studied")
    assert code == 0, errors
    names = sorted(path.name for path in Path("studied").rglob("seed-0.*.safetensors"))
    assert names == [f"seed-0.{kind}.safetensors" for kind in ("last", "models", "predictions")]
    code, _, errors = typed("study", "influence-cost", "--save-models")
    assert (code, mentions(errors, "influence-cost", "--save-models")) == (1, True)


@pytest.mark.slow
def test_who_runs_or_shows_a_superseded_suite_reads_which_one_takes_its_place(
    typed: Typed, tmp_path: Path
) -> None:
    text = Path(str(load_entry(find("suites", "iid")))).read_text(encoding="utf-8")
    (tmp_path / "old.toml").write_text(f'superseded_by = "newer"\n{text}', encoding="utf-8")
    words = ["--suite", "old.toml", "--rounds", "1", "--set", "clients=10"]
    code, _, told = typed("run", "--plugin", "fedavg,local-only", *words)
    assert code == 0
    assert [line for line in told.splitlines() if mentions(line, "old", "superseded", "newer")]
    assert told.count("newer") == 1, "one line for two methods"
    _, _, told = typed("sweep", "--plugin", "fedavg", *words)
    assert told.count("newer") == 1
    _, said, _ = typed("show", "suite", "old.toml")
    assert mentions(said, "superseded by newer")


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--rounds", "3", "--set", "rounds=4"), ("--rounds 3", "rounds=4", "one of them")),
        (("--dataset", "usps", "--set", "dataset=digits"), ("--dataset usps", "dataset=digits")),
        (("--set", "optimizer=adam", "--set", "momentum=0.9"), ("'local.momentum'", "sgd")),
    ],
)
def test_what_would_be_ignored_is_refused(
    typed: Typed, words: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    code, _, err = typed("run", "--plugin", "fedavg", "--suite", "iid", *words)
    assert code != 0
    assert mentions(err, *facts)
    assert err.startswith("flbench: ")
    assert err.count("\n") == 1


def test_the_same_number_of_rounds_may_be_typed_twice(typed: Typed) -> None:
    words = ("--rounds", "1", "--set", "rounds=1", "--set", "clients=5")
    assert typed("run", "--plugin", "fedavg", "--suite", "iid", *words)[0] == 0
