"""`flbench sync`: result files pushed to W&B, file by file, as often as one likes."""

from __future__ import annotations

import hashlib
import shutil
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from listeners import LIA, Offline, fake_wandb, nobody_logged_in, write
from mentions import mentioning
from toy import Play, player

from flbench.cli.main import main
from flbench.results.files import read_result
from flbench.sinks.rows import rows_of
from flbench.sinks.wandb import WandB
from flbench.sinks.wandb_tables import tables

pytestmark = pytest.mark.slow  # every push draws figures

Type = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def sync(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Type:
    """Types `flbench sync ...`; gives the exit code and the lines of both outputs."""

    def typed(*words: object) -> tuple[int, list[str], list[str]]:
        monkeypatch.setattr(sys, "argv", ["flbench", "sync", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        told = capsys.readouterr()
        return int(stop.value.code or 0), told.out.splitlines(), told.err.splitlines()

    return typed


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two results."""
    folder = tmp_path_factory.mktemp("played")
    for method in ("fedavg", "pfedlia"):
        settings = LIA if method == "pfedlia" else None
        write(player(folder), method, settings=settings, sinks=())
    return folder / "out"


@pytest.fixture
def results(played: Path, tmp_path: Path) -> list[Path]:
    """Two result files below one folder, `toy`, in path order."""
    shutil.copytree(played, tmp_path / "out")
    return sorted((tmp_path / "out").rglob("seed-0.json"))


def test_every_file_below_a_folder_is_pushed_once(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_wandb(monkeypatch)
    folder = results[0].parents[4]
    assert [path.name for path in folder.iterdir()] == ["toy"]
    code, out, err = sync(folder, results[1])
    assert (code, err) == (0, [])
    assert out == [
        f"{path}: written to here/run; push it with: wandb sync here/run" for path in results
    ]
    assert [given["job_type"] for given in fake.begun] == ["fedavg", "pfedlia"]
    for run, path in zip(fake.runs, results, strict=True):
        assert run.curves() == rows_of(read_result(path))
        assert [artifact.files for artifact in run.artifacts] == [[str(path)]]
        assert run.finished == 1


def test_a_result_meets_the_run_that_was_logged_live(
    play_toy: Play, sync: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_wandb(monkeypatch, logged_in=True, offline=False)
    _, played = write(play_toy, "fedavg", sinks=(("wandb", WandB()),))
    real = fake.init

    def init(**given: Any) -> Any:
        run = real(**given)
        run.starting_step, run.resumed = 4, True
        return run

    fake.init = init
    code, out, _ = sync(played.job.path)
    live, synced = fake.begun
    same = ("id", "project", "name", "group", "job_type", "tags", "resume", "mode")
    assert {key: live[key] for key in same} == {key: synced[key] for key in same}
    assert (code, out) == (0, [mentioning(played.job.path, "https://wandb/run")])
    assert fake.runs[1].logged == [], "nothing is there twice"
    assert fake.runs[0].settled == fake.runs[1].settled


def test_what_was_not_there_is_sent(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_wandb(monkeypatch, logged_in=True, offline=False)
    code, out, _ = sync(results[0], "--project", "mine")
    assert (code, out) == (0, [f"{results[0]}: sent: https://wandb/run"])
    assert (fake.begun[0]["project"], fake.begun[0]["mode"]) == ("mine", "online")


def test_offline_on_request(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    fake = fake_wandb(monkeypatch, logged_in=True)
    sync("--offline", results[0])
    assert (fake.begun[0]["project"], fake.begun[0]["mode"]) == ("theirs", "offline")


def test_a_disabled_wandb_is_no_success_in_disguise(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    monkeypatch.setenv("WANDB_MODE", "disabled")
    fake_wandb(monkeypatch, offline=False, settings=SimpleNamespace(mode="disabled"))
    code, out, _ = sync(results[0])
    assert (code, out) == (0, [mentioning(results[0], "WANDB_MODE")])


def test_what_is_no_result_is_one_line_and_the_others_go_on(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = fake_wandb(monkeypatch)
    broken, empty, absent = tmp_path / "broken.json", tmp_path / "empty", tmp_path / "absent"
    broken.write_text("{}")
    empty.mkdir()
    code, out, err = sync(broken, empty, absent, *results)
    assert code == 1
    assert len(out) == len(fake.runs) == 2
    assert [line.partition(": ")[0] for line in err] == [
        str(broken),
        str(empty),
        str(absent),
        "flbench",
    ]
    assert err[1] == mentioning(empty, "files seed-<n>.json")
    assert err[-1] == mentioning("3 of 5 could", "synced")


@pytest.mark.parametrize(
    "fails",
    [
        *("init", "finish"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("log", "log_artifact")),
    ],
)
def test_a_file_that_wandb_refuses_stops_no_other(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    fake = fake_wandb(monkeypatch)
    real, first = fake.init, iter([fails])

    def init(**given: Any) -> Any:
        word = next(first, "")
        if word == "init":
            raise OSError("init: no\nconnection")
        run = real(**given)
        run.fails = word
        return run

    fake.init = init
    code, out, err = sync(*results)
    assert code == 1
    assert [line.partition(": ")[0] for line in out] == [str(results[1])]
    assert err[0].startswith(f"{results[0]}: not sent, OSError: {fails}: no")
    assert err[1:] == [mentioning("1 of 2 could", "synced")]


def test_nothing_named_means_the_folder_runs_write_to(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_wandb(monkeypatch)
    code, _, err = sync()
    assert code == 1
    assert err[0].startswith("flbench-results: ")
    shutil.copytree(results[0].parents[4], tmp_path / "flbench-results")
    code, out, _ = sync()
    assert code == 0
    assert [line.startswith("flbench-results/toy/toy/") for line in out] == [True, True]


def test_a_copy_is_not_pushed_again(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = fake_wandb(monkeypatch)
    copy = tmp_path / "copy" / "seed-0.json"
    copy.parent.mkdir()
    shutil.copy(results[0], copy)
    code, out, _ = sync(*results, copy)
    assert code == 0
    assert len(fake.runs) == 2
    assert out[-1] == f"{copy}: the run of {results[0]}, not sent again"


def test_a_copy_stands_in_for_one_that_failed(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = fake_wandb(monkeypatch)
    real, fails = fake.init, iter(["log"])

    def init(**given: Any) -> Any:
        run = real(**given)
        run.fails = next(fails, "")
        return run

    fake.init = init
    copy = tmp_path / "seed-0.json"
    shutil.copy(results[0], copy)
    code, out, _ = sync(results[0], copy)
    assert code == 1
    assert out == [mentioning(copy, "here/run", "wandb sync here/run")]


def test_logs_beside_a_result_are_no_results(
    results: list[Path], sync: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_wandb(monkeypatch)
    folder = results[0].with_suffix("") / "csv"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("step\n1\n")
    assert sync(results[0].parent)[0] == 0


# --- W&B itself, offline ----------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with nobody_logged_in(tmp_path, monkeypatch) as folder:
        yield folder


@pytest.mark.slow
# wandb's temporary folders live until the interpreter ends, and say so when they are collected.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_syncing_twice_writes_one_run_twice(
    results: list[Path], sync: Type, offline: Path, tmp_path: Path
) -> None:
    path = results[1]
    result, told = read_result(path), []
    for project in ("one", "two"):
        code, out, err = sync(path, "--project", project)
        assert (code, err) == (0, []), "nobody is logged in, so it is offline, and wandb is silent"
        (line,) = out
        folder = Path(line.rpartition(" ")[2])
        assert line == f"{path}: written to {folder}; push it with: wandb sync {folder}"
        assert folder.parent == offline
        told.append(Offline(folder))
        assert told[-1].run.project == project
        folder.rename(tmp_path / project)  # the next one may be of the same second
    for one in told:
        assert one.curves() == rows_of(result)
        assert one.config["params"]["warmup"] == 1
        (artifact,) = one.artifacts
        (entry,) = artifact.manifest.contents
        assert b64decode(entry.digest) == hashlib.md5(path.read_bytes()).digest()
    assert told[0].run.run_id == told[1].run.run_id
    assert told[0].run.run_group == "toy/toy"
    assert told[0].rows[3].keys() == told[1].rows[3].keys()
    assert {f"tables/{name}.nrows" for name, _, _ in tables(result)} <= told[0].rows[3].keys()
