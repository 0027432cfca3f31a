"""`flbench.run_suite`, `flbench.run_suites`: the commands, called from Python."""

from __future__ import annotations

import asyncio
import bdb
import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mention, mentions
from torch import nn
from typer.testing import CliRunner

import flbench as fl
from flbench.cli.main import app
from flbench.errors import (
    BadParameter,
    FlbenchError,
    Interrupted,
    PluginError,
    UnknownName,
    UserError,
)
from flbench.plugin.registry import entries
from flbench.results.files import read_result
from flbench.results.schema import VOLATILE, Result
from flbench.submission.admission import gathered, problems
from flbench.submission.auditing import verify_file
from flbench.sweeps.from_python import _called, _plain, _refuse_two_values

SUITE = """
version = 1
summary = "four clients"
dataset = "digits"
clients = 4
participation = 0.5
rounds = 2
partition = { name = "iid" }
model = { name = "mlp", hidden = 4 }
local = { epochs = 1, batch_size = 32, lr = 0.05 }
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "four.toml"
    path.write_text(SUITE, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Louder:
    """Clients count by a power of their samples; every call is noted, and a debugger stops."""

    power: float = 1.0

    @fl.hookimpl
    def weights(self, upload: Any) -> Any:
        """Stop, and leave the answer to the default."""
        breakpoint()


@dataclass(frozen=True)
class Broken:
    """Fails."""

    @fl.hookimpl
    def weights(self, upload: Any) -> Any:
        """Fail."""
        raise ValueError("not today")


@dataclass(frozen=True)
class Left:
    """Raises what `q` at a breakpoint raises."""

    @fl.hookimpl
    def weights(self, upload: Any) -> Any:
        """Leave the debugger."""
        raise bdb.BdbQuit


class Frame:
    """Has what a data frame has."""

    def to_csv(self) -> None:
        """Do nothing."""


def points(shift: float = 0.0) -> fl.Dataset:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    return fl.Dataset("my points", x + shift, (x[:, 0] > 0).long(), 2)


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Process and thread of every breakpoint."""
    found: list[tuple[int, int]] = []

    def hook(*args: object, **more: object) -> None:
        found.append((os.getpid(), threading.get_ident()))

    monkeypatch.setattr(sys, "breakpointhook", hook)
    return found


def stable(result: Result) -> dict[str, Any]:
    return {name: value for name, value in result.model_dump().items() if name not in VOLATILE}


def files(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        str(path.relative_to(folder)): stable(read_result(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_the_files_are_those_of_the_command(tmp_path: Path, suite: Path) -> None:
    words = ["run", "-p", "fedavg,fedprox", "-s", str(suite), "--seeds", "2", "--set", "mu=0.5"]
    words += ["--accelerator", "cpu", "--metric", "f1", "--out", str(tmp_path / "command")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    called = fl.run_suites(
        ["fedavg", ("fedprox", {"mu": 0.5})],
        [suite],
        seeds=2,
        metrics=["f1"],
        accelerator="cpu",
        out=tmp_path / "call",
    )
    assert files(tmp_path / "call") == files(tmp_path / "command")
    assert len(called) == 4
    one = fl.run_suite("fedprox", suite, seed=1, metrics=["f1"], settings={"mu": 0.5}, rounds=2)
    assert stable(one) == stable(called[3])
    table = called.table()
    assert "fedprox" in table and "fedavg" in table


@pytest.mark.slow
def test_a_setting_concerns_the_methods_that_have_it(suite: Path) -> None:
    found = fl.run_suites(
        ["fedavg", ("fedprox", {"mu": 0.1}), ("fedprox", {"mu": 2.0}), "fedprox"],
        [suite],
        settings={"mu": 2.0, "local.lr": 0.01},
        rounds=1,
    )
    assert [one.method.params for one in found] == [{}, {"mu": 0.1}, {"mu": 2.0}]
    assert {one.suite["local"]["lr"] for one in found} == {0.01}
    with pytest.raises(UnknownName, match="mus"):
        fl.run_suites(["fedavg", "fedprox"], [suite], settings={"mus": 1})


@pytest.mark.slow
def test_objects_of_ones_own_run_and_say_so(
    tmp_path: Path, suite: Path, stops: list[tuple[int, int]]
) -> None:
    before = {kind: entries(kind) for kind in ("methods", "datasets", "models")}
    result = fl.run_suite(
        Louder(power=2.0), suite, dataset=points(), model=network, out=tmp_path / "out"
    )
    assert {kind: entries(kind) for kind in before} == before
    assert set(stops) == {(os.getpid(), threading.get_ident())}
    assert result.method.params == {"power": 2.0}
    method, dataset, model = result.unpublished
    assert [method, dataset] == [result.method.name, result.dataset]
    assert model == result.suite["model"]["name"]
    assert method.startswith("Louder-own-") and method.endswith(result.plugins[0].source)
    (path,) = (tmp_path / "out").rglob("seed-0.json")
    assert read_result(path) == result
    with pytest.raises(UserError, match=mention(method, dataset, model)):
        verify_file(path, result, None, tmp_path, print, object())
    lines = problems(path, gathered(tmp_path / "out", [path]))
    assert all(mentions(lines, name) for name in (method, dataset, model))
    shown = CliRunner().invoke(app, ["show", "result", str(path)])
    assert mentions(shown.output, method, dataset, model)


@pytest.mark.slow
def test_fingerprints_change_with_the_samples(suite: Path, stops: object) -> None:
    one, other = (
        fl.run_suite(Louder(), suite, dataset=points(shift), rounds=1) for shift in (0, 1)
    )
    assert one.fingerprint.suite != other.fingerprint.suite
    assert one.method.name == other.method.name


@pytest.mark.slow
def test_it_runs_within_an_event_loop_and_in_other_threads(
    suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def within() -> list[Result]:
        here = fl.run_suite("fedavg", suite)
        return [here, await asyncio.to_thread(fl.run_suite, "fedavg", suite)]

    one, other = asyncio.run(within())
    assert stable(one) == stable(other)
    said = capsys.readouterr()
    assert said.out == "", "what a call prints is progress, on standard error"
    assert said.err.count("cell 1/1  fedavg on four") == 2


@pytest.mark.slow
def test_nothing_stays_unless_it_is_asked_for(
    tmp_path: Path, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fl.run_suite("fedavg", suite, rounds=1)
    assert list(tmp_path.iterdir()) == [suite]
    with pytest.raises(BadParameter, match=mention("save_models", "out")):
        fl.run_suite("fedavg", suite, save_models=True)


@pytest.mark.slow
@pytest.mark.long
def test_a_script_needs_no_guard(tmp_path: Path, suite: Path) -> None:
    script = tmp_path / "script.py"
    code = f"""
        import flbench as fl
        print("begins")
        found = fl.run_suites(["fedavg"], [{str(suite)!r}], seeds=2, workers=2, rounds=1)
        print(len(found), found.missing)
    """
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n") == ["begins", "2 {}", ""], done.stderr


@pytest.mark.slow
def test_a_run_without_a_result_stops_no_other(suite: Path) -> None:
    found = fl.run_suites(["fedavg", Broken()], [suite], rounds=1)
    assert [one.method.name for one in found] == ["fedavg"]
    ((title, why),) = found.missing.items()
    assert mentions(found.table(), title, why) and mentions(why, "not today")
    with pytest.raises(PluginError, match="not today") as caught:
        fl.run_suites([Broken()], [suite], rounds=1)
    assert len(caught.traceback) == 2, "the call, and where it raises"
    assert caught.value.__cause__ is not None, "where the method went wrong"


@pytest.mark.slow
def test_the_example_of_the_page_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    code = text.rpartition("```python\n")[2].partition("```")[0]
    data, names = points(), dict[str, Any](__name__="__main__")
    code = code.replace("model=network", "model=network, rounds=1")
    exec(compile(code, "<page>", "exec", dont_inherit=True), {**names, "x": data.x, "y": data.y})


def test_what_cannot_be_is_refused_in_one_line(suite: Path) -> None:
    refused: list[tuple[type[FlbenchError], str, Any]] = [
        (UnknownName, "fedagv", lambda: fl.run_suite("fedagv", suite)),
        (UnknownName, "round", lambda: fl.run_suite("fedavg", suite, round=1)),  # type: ignore[call-arg]
        (BadParameter, "methods", lambda: fl.run_suites([], [suite])),
        (BadParameter, "seeds", lambda: fl.run_suites(["fedavg"], [suite], seeds=0)),
        (BadParameter, "ditto", lambda: fl.run_suite(("fedavg", 1), suite)),
        (UserError, "int", lambda: fl.run_suite(3, suite)),
        (UserError, "Linear", lambda: fl.run_suite("fedavg", suite, model=nn.Linear(1, 1))),
        (BadParameter, "workers", lambda: fl.run_suites([Louder()], [suite], workers=2)),
        (BadParameter, "power", lambda: fl.run_suite(Louder(power="much"), suite)),  # type: ignore[arg-type]
        (
            BadParameter,
            "settings={'clients': 12}",
            lambda: fl.run_suite("fedavg", suite, clients=12),
        ),  # type: ignore[call-arg]
        (BadParameter, "settings={'lr': 1}", lambda: fl.run_suite("fedavg", suite, lr=1)),  # type: ignore[call-arg]
        (UnknownName, "settings={...}", lambda: fl.run_suite("fedprox", suite, mu=1)),  # type: ignore[call-arg]
        (BadParameter, "seeds=4", lambda: fl.run_suite("fedavg", suite, seeds=2)),  # type: ignore[call-arg]
        (BadParameter, "run_suites", lambda: fl.run_suite(["fedavg", "ditto"], suite)),
        (BadParameter, "run_suites", lambda: fl.run_suite("fedavg,ditto", suite)),
        (BadParameter, "['fedavg', 'ditto']", lambda: fl.run_suites("fedavg,ditto", [suite])),
        (BadParameter, "['iid']", lambda: fl.run_suites(["fedavg"], "iid")),
        (BadParameter, "dict", lambda: fl.run_suite("fedavg", {"clients": 3})),  # type: ignore[arg-type]
        (UserError, "csv:FILE.csv", lambda: fl.run_suite("fedavg", suite, dataset=Frame())),  # type: ignore[arg-type]
        (UserError, "flbench.Dataset(", lambda: fl.run_suite("fedavg", suite, dataset=(1, 2))),  # type: ignore[arg-type]
    ]
    for kind, fact, call in refused:
        with pytest.raises(kind, match=mention(fact)) as found:
            call()
        assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("what", "given"),
    [
        *(("seed", one) for one in (1.0, True, "1", " 1", -1, None)),
        *(("seeds", one) for one in (2.5, "12", None, True, [0, 1.0], ["0"])),
        *(("workers", one) for one in (0, -1, "2", 1.5)),
        *(("threads", one) for one in (0, "1")),
        *(("rounds", one) for one in (0, 1.0)),
        *(("settings", one) for one in ([1], "a=1", {1: 2})),
        *(("metrics", "f1"), ("metrics", [max]), ("sinks", "csv"), ("out", 3), ("data_root", 3)),
        *(("out", ""), ("force", "no"), ("save_models", 1), ("compile", None)),
        *(("suites", None), ("methods", 3)),
    ],
)
def test_an_option_of_another_kind_is_named(what: str, given: Any, suite: Path) -> None:
    """A seed that is written otherwise would be another seed in one place of the run."""
    words: dict[str, Any] = {"method": "fedavg", "suite": suite, what: given}
    call: Any = fl.run_suite
    if what in ("seeds", "suites", "methods"):
        words, call = {"methods": ["fedavg"], "suites": [suite], what: given}, fl.run_suites
    with pytest.raises(BadParameter, match=rf"^{what}: expected .*, got ") as found:
        call(**words)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize("method", [("fedprox", {"mu": 1}), ("fedprox", {"fedprox.mu": 1})])
def test_a_parameter_has_one_value(suite: Path, method: Any) -> None:
    for name in ("mu", "fedprox.mu"):
        with pytest.raises(BadParameter, match=mention(f"'{name}': 2", "mu=1", "give one of them")):
            fl.run_suite(method, suite, settings={name: 2})
    with pytest.raises(BadParameter, match=mention("'local.lr': 0.2", "lr=0.1")):
        fl.run_suite(("fedavg", {"local.lr": 0.1}), suite, settings={"local.lr": 0.2})
    with pytest.raises(BadParameter, match=mention("'power': 3", "power=1.0")):
        fl.run_suites([Louder(), "fedavg"], [suite], settings={"power": 3})


@pytest.mark.slow
def test_numbers_of_numpy_and_torch_are_those_of_python(suite: Path) -> None:
    marks = {
        fl.run_suite(("fedprox", {"mu": mu}), suite, rounds=1, settings={"local.lr": lr})
        .fingerprint.config
        for mu, lr in (
            (0.1, 0.3), (np.float32(0.1), np.float32(0.3)), (torch.tensor(0.1), np.float64(0.3)),
        )
    }  # fmt: skip
    assert len(marks) == 1


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (torch.tensor(5, dtype=torch.int8), 5), (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor(True), True), (np.bool_(False), False), (np.float16(0.1), 0.1),
        ({"a": (np.int64(2), "b")}, {"a": (2, "b")}),
    ],
)  # fmt: skip
def test_a_value_of_another_library_keeps_its_kind(given: object, plain: object) -> None:
    found = _plain(given)
    assert (found, type(found)) == (plain, type(plain))


def test_equal_numbers_are_one_value(suite: Path) -> None:
    for mu, other in ((1, 1.0), (float("nan"), float("nan")), (0.5, np.float32(0.5))):
        _refuse_two_values({"mu": mu}, _called(("fedprox", {"mu": other})))
    with pytest.raises(BadParameter, match="give one of them"):
        _refuse_two_values({"mu": 1}, _called(("fedprox", {"mu": 2})))


def test_who_leaves_the_debugger_leaves_the_call(suite: Path) -> None:
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        fl.run_suites([Left()], [suite], seeds=2, rounds=1)


@pytest.mark.slow
def test_whole_numbers_of_numpy_are_whole_numbers(suite: Path) -> None:
    plain = fl.run_suites(["fedavg"], [suite], seeds=[0, 1], rounds=1)
    found = fl.run_suites(["fedavg"], [suite], seeds=np.arange(2), rounds=np.int64(1))  # type: ignore[arg-type]
    for one, other in zip(plain.results, found.results, strict=True):
        assert one.curves == other.curves and type(other.seed) is int
