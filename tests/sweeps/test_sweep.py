"""Grids of runs: `flbench sweep` with each of its launchers."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import typer
from forked import Command
from grids import GRID, QUICK, alive, begun, results, stable
from made_results import made
from made_tasks import as_labels, as_numbers
from mentions import mentioning, mentions
from rich.console import Console as Terminal
from toy import Typed

import flbench.run.runner
from flbench.cli.options import takes_request
from flbench.core.setting_text import parse, written
from flbench.engine.options import EngineOptions
from flbench.errors import UserError
from flbench.results.events import RoundRecord, RunInfo
from flbench.results.files import read_result
from flbench.results.kept_files import KeepOptions
from flbench.results.schema import Tuning
from flbench.run import same_data
from flbench.run.run_folder import held
from flbench.sweeps import sweep
from flbench.sweeps.launchers import (
    DONE,
    ELSEWHERE,
    FAILED,
    Outcome,
    connected,
    needs,
    received,
    run_remotely,
)
from flbench.sweeps.request import RunRequest, command, resolve
from flbench.sweeps.sweep import run_missing
from flbench.terminal.console import Console, SweepProgress


def request_of(words: Sequence[str]) -> RunRequest:
    """What `flbench run` asks for when these words are typed after it."""
    app, found = typer.Typer(add_completion=False, rich_markup_mode=None), list[RunRequest]()
    app.command()(takes_request(lambda request: found.append(request)))
    app(list(words), standalone_mode=False)
    return found[0]


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in results(folder)}


# --- a grid, cell by cell -----------------------------------------------------------------------


@pytest.mark.slow
def test_every_cell_is_played_once_and_has_one_line(typed: Typed, tmp_path: Path) -> None:
    code, out, err = typed("sweep", *GRID, "-p", "fedavg")
    assert code == 0
    assert len(results(tmp_path)) == 4
    first, *lines, last = err.splitlines()
    assert first == mentioning("4 cells", "none", "4 to run")
    assert last == "4 cells: 4 done"
    titles = [
        f"{name} on iid (digits), seed {k}" for name in ("fedavg", "local-only") for k in (0, 1)
    ]
    for number, (line, title) in enumerate(zip(lines, titles, strict=True), 1):
        shape = rf"cell {number}/4  {re.escape(title)}  accuracy 0\.\d{{3}}  \d+ s  \d+ s left"
        assert re.fullmatch(shape, line), line
    assert "±" in out
    assert out.split()[-4:] == [str(path.relative_to(tmp_path)) for path in results(tmp_path)]
    assert "\x1b" not in err


@pytest.mark.slow
def test_what_is_complete_is_not_run_again_but_stands_in_the_table(
    typed: Typed, tmp_path: Path
) -> None:
    assert typed("sweep", *GRID)[0] == 0
    results(tmp_path)[0].unlink()
    kept = times(tmp_path)
    code, out, err = typed("sweep", *GRID)
    assert code == 0
    assert err.splitlines()[0] == "4 cells: 3 were complete; 1 to run"
    assert mentions(err.splitlines()[1], "4/4", "fedavg", "iid", "digits", "seed 0")
    assert err.splitlines()[-1] == "4 cells: 1 done, 3 were complete"
    assert len([line for line in out.splitlines() if line.endswith(".json")]) == 4
    assert kept.items() <= times(tmp_path).items()
    _, _, err = typed("sweep", *GRID, "--force")
    assert err.splitlines()[-1] == "4 cells: 4 done"
    assert not kept.items() & times(tmp_path).items()


@pytest.mark.slow
@pytest.mark.long
def test_complete_cells_without_a_metric_are_told(typed: Typed, tmp_path: Path) -> None:
    assert typed("sweep", *GRID)[0] == 0
    _, _, err = typed("sweep", *GRID, "--metric", "ece")
    assert err.splitlines()[:2] == [
        "4 cells: 4 were complete; 0 to run",
        mentioning("ece", "--force"),
    ]
    _, out, err = typed("sweep", *GRID, "--metric", "ece", "--force")
    assert "metrics of clients" in out
    assert "without" not in err
    assert "without" not in typed("sweep", *GRID, "--metric", "ece")[2]


@pytest.mark.slow
def test_a_result_that_cannot_be_read_is_a_failed_cell(typed: Typed, tmp_path: Path) -> None:
    assert typed("sweep", *GRID)[0] == 0
    results(tmp_path)[0].write_text("{")
    code, _, err = typed("sweep", *GRID)
    assert code == 1
    assert "4 cells: 3 were complete, 1 failed" in err
    assert mentions(err.splitlines()[1], results(tmp_path)[0].name)
    assert mentions(err.splitlines()[-1], "failed", "fedavg", "--force")


def visits(numbers: int, others: int = 0) -> str:
    """A table of three clients with two labels each; some rows are those of another client."""
    rows = [f"{who},{at % 7},{at % numbers},{at % 2}" for who in "abc" for at in range(30)]
    rows[:others] = [f"b{row[1:]}" for row in rows[:others]]
    return "\n".join(["client,one,other,label", *rows])


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_complete_result_of_other_data_is_refused(
    verb: str, typed: Typed, tmp_path: Path
) -> None:
    table = tmp_path / "visits.csv"
    table.write_text(visits(5))
    words = (verb, "-p", "fedavg", "-s", "natural-writers", "--dataset", f"csv:{table}")
    words = (*words, "--set", "suite.clients=3", "--rounds", "1", "--out", f"{tmp_path}")
    assert typed(*words)[0] == 0
    (path,) = results(tmp_path)
    before = path.read_bytes()
    assert typed(*words)[0] == 0, "the same data"
    table.write_text(visits(6))
    code, _, err = typed(*words)
    assert (code, path.read_bytes() == before) == (1, True)
    digest = read_result(path).fingerprint.data
    assert mentions(err, str(path), f"csv:{table}", digest, "--force", "--out")
    seed = ("--seed", "1") if verb == "run" else ("--seeds", "2")
    broken = path.with_name("seed-9.json")
    broken.write_text("{")
    code, _, err = typed(*words, *seed)
    assert (code, results(tmp_path)) == (1, [path, broken]), "one row has seeds of one data set"
    assert mentions(err, str(path), digest, "--force", "--out")
    assert typed(*words, "--force")[0] == 0
    assert read_result(path).fingerprint.data != digest
    assert typed(*words, *seed)[0] == 0, "what is wrong with seed 9 is its own matter"
    broken.unlink()
    table.write_text(visits(6, others=4))
    code, _, err = typed(*words)
    assert code == 1, "the same rows of other clients"
    assert mentions(err, str(path), f"csv:{table}", "--force")
    table.unlink()
    assert typed(*words)[0] == 0, "nobody can tell"


@pytest.mark.slow
def test_a_result_in_another_s_place_is_refused(typed: Typed, tmp_path: Path) -> None:
    assert typed("sweep", *GRID)[0] == 0
    first, second, *_ = results(tmp_path)
    second.write_bytes(first.read_bytes())
    held = "/".join(first.parts[-3:])
    code, _, err = typed("sweep", *GRID)
    assert code == 1
    assert mentions(err, second.name, f"holds another run, {held}: move it there", "--force")
    assert second.read_bytes() == first.read_bytes(), "nothing is lost"
    assert typed("sweep", *GRID, "--force")[0] == 0
    assert typed("sweep", *GRID)[0] == 0


@pytest.mark.slow
def test_another_target_is_said_and_not_mixed(typed: Typed, tmp_path: Path) -> None:
    words = ("sweep", *GRID)
    assert typed(*words)[0] == 0
    _, _, told = typed(*words, "--set", "target=0.05")
    assert "complete cells are without target=0.05; --force computes them again" in told
    results(tmp_path)[-1].unlink()
    code, _, err = typed(*words, "--set", "target=0.05")
    assert code == 1
    assert mentions(err, "is a seed of this row with target=", "target=0.05", "--force")


@pytest.mark.slow
def test_each_data_set_is_looked_at_once(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed("sweep", *GRID)[0] == 0
    looked: list[str] = []

    def digests(name: str, root: Path) -> tuple[str, ...]:
        looked.append(name)
        return (read_result(results(tmp_path)[0]).fingerprint.data,)

    monkeypatch.setattr(same_data, "data_digests", digests)
    assert "4 cells: 4 were complete; 0 to run" in typed("sweep", *GRID)[2]
    assert looked == ["digits"]


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["with a result", "without"])
def test_what_another_process_computes_is_waited_for(
    ends: str, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed("sweep", *GRID)[0] == 0
    path, *_ = kept = results(tmp_path)
    data = path.read_bytes()
    for file in kept[:2]:
        file.unlink()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            if ends == "with a result":
                path.write_bytes(data)
            other.close()

    monkeypatch.setattr(sweep, "time", SimpleNamespace(sleep=sleep))
    with ExitStack() as other:
        other.enter_context(held(path))
        code, out, err = typed("sweep", *GRID)
    assert (code, waited) == (0, [sweep.LOOK] * 2)
    assert len([line for line in out.splitlines() if line.endswith(".json")]) == 4
    first, own, waits, last, end = err.splitlines()
    assert first == "4 cells: 2 were complete; 2 to run"
    assert mentions(own, "3/4", "fedavg", "iid", "digits", "seed 1", "accuracy")
    assert waits == mentioning("1", "processes")
    assert mentions(last, "4/4", "fedavg", "iid", "digits", "seed 0", "accuracy")
    assert (" by another process  " in last) == (ends == "with a result")
    done = 1 if ends == "with a result" else 2
    assert end == f"4 cells: {done} done, {4 - done} were complete"


@pytest.mark.slow
@pytest.mark.long
def test_two_sweeps_in_one_folder_share_the_cells(tmp_path: Path) -> None:
    words = ["sweep", *GRID, "--seeds", "4", "--rounds", "20", "--workers", "1"]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: forked.typed(words, tmp_path), range(2)))
    assert [code for code, _, _ in both] == [0, 0], both
    assert len(results(tmp_path)) == 8
    done = [re.findall(r"accuracy 0\.\d+  \d+ s ", err) for _, _, err in both]
    assert sum(map(len, done)) == 8, "none twice"
    assert all(done)
    assert both[0][1] == both[1][1]
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".json"]


@pytest.mark.slow
def test_a_run_of_another_process_is_one_line(typed: Typed, tmp_path: Path) -> None:
    assert typed("sweep", *GRID)[0] == 0
    path, *_ = results(tmp_path)
    path.unlink()
    with held(path):
        code, _, err = typed("run", *GRID)
    assert code == 1
    assert f"flbench: {path.relative_to(tmp_path)}: process {os.getpid()} on " in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_options_of_run_hold_for_every_cell(typed: Typed, tmp_path: Path) -> None:
    code, _, err = typed(
        "sweep", "-p", "fedavg", "-s", "iid", "--seed", "5", "--rounds=1", "--out", "there",
        "--set", "clients=7", "--executor", "sequential", "--threads", "2",
    )  # fmt: skip
    assert code == 0, err
    (path,) = results(tmp_path / "there")
    result = json.loads(path.read_text())
    assert path.name == "seed-5.json"
    assert (result["suite"]["rounds"], result["suite"]["clients"]) == (1, 7)
    assert result["environment"]["executor"] == "sequential"
    assert result["environment"]["threads"] == "2"


@pytest.mark.slow
def test_a_cell_is_given_the_settings_and_the_preset_that_concern_it(
    typed: Typed, tmp_path: Path
) -> None:
    """All cells together are what `flbench run` would do with the whole."""
    whole = (
        "-p", "pfedlia,oracle,flis-dc,fedavg,pfedlia+fedavg", "-s", "iid,rotated", "--seeds", "2",
        "--set", "warmup=3", "--set", "pfedlia.probe_epochs=2", "--set", "suite.clients=7",
        "--set", "lr=0.5", "--preset", "flis", "--rounds", "4",
    )  # fmt: skip
    code, out, err = typed("sweep", *whole, "--launcher", "print")
    assert code == 0
    cells = [shlex.split(line) for line in out.splitlines()]
    assert all(cell[:2] == ["flbench", "run"] and cell[-1] == "--resume" for cell in cells)
    alone = [cell for line in cells for cell in resolve(request_of(line[2:]), Console())]
    together = resolve(request_of(whole), Console())
    assert [cell.spec.path for cell in alone] == [cell.spec.path for cell in together]
    assert len(cells) == 16, "pfedlia+fedavg is pfedlia"
    assert "flis" in out
    assert sum(mentions(one, "note: fedavg", "flis") for one in err.splitlines()) == 1, (
        "said once, not in every cell"
    )


IID = ("-p", "fedavg", "-s", "iid")


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (("-p", "fedavgg", "-s", "iid"), 1, "unknown method 'fedavgg'; did you mean"),
        (("-p", "fedavg", "-s", "iid,idd"), 1, "unknown suite 'idd'; did you mean 'iid'?"),
        (("-p", "fedavg,cfl", "-s", "iid", "--set", "warmpu=3"), 1, "unknown parameter 'warmpu'"),
        (("-p", "oracle,fedavg", "-s", "iid", "--set", "warmup=soon"), 1, "'warmup' expects int"),
        (("-p", "cfl", "-s", "iid", "--launcher", "rya"), 1, "'rya'; did you mean 'ray'?"),
        (("-p", "fedavg", "-s", "iid", "--devices", "2"), 1, "--launcher print gives the commands"),
        (("-p", "fedavg", "-s", "iid", "--rouds", "3"), 2, "No such option: --rouds"),
        (("-p", "fedavg", "-s", "iid", "--rounds", "0"), 2, "Invalid value for '--rounds'"),
        (("-p", "fedavg", "-s", "iid", "stray"), 2, "unexpected extra argument"),
        (("-p", "fedavg", "-s", "iid", "--workers", "0"), 2, "expects a number from 1, or auto"),
        (("-p", "fedavg", "-s", "iid", "--workers", "all"), 2, "expects a number from 1, or auto"),
        (("-p", "fedavg", "-s", "iid", "--address", "auto"), 2, "belongs to --launcher ray"),
        (("-p", "fedavg", "-s", "iid", "--seed", "1", "--seeds", "2"), 2, "give one of them"),
        ((*IID, "--set", "clients=4", "--set", "clients=6"), 2, "--set clients=6: give one"),
        ((*IID, "--set", "lr=0.1", "--set", "local.lr=0.5"), 1, "one field of the suite"),
        ((*IID, "--set", "suite.clients=4", "--set", "clients=6"), 1, "one field of the suite"),
        (("-p", "fedavg", "-s", "iid", "--metric", "top-k:k=2:k=5"), 1, "'k' is there twice"),
        (("-s", "iid"), 2, "Missing option '--plugin'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_before_anything_starts(
    args: tuple[str, ...], code: int, expected: str, typed: Typed, tmp_path: Path
) -> None:
    found, out, err = typed("sweep", *args)
    assert found == code
    assert expected in err
    assert code == 2 or len(err.splitlines()) == 1
    assert out == ""
    assert not list(tmp_path.iterdir())


def test_all_options_of_run_are_taken(typed: Typed) -> None:
    code, out, _ = typed("sweep", "--help")
    assert code == 0
    options = set(re.findall(r"--[a-z-]+", typed("run", "--help")[1]))
    assert len(options) > 20
    assert options | {"--launcher"} <= set(re.findall(r"--[a-z-]+", out))


# --- the request --------------------------------------------------------------------------------


VALUES = (
    5,
    0.5,
    1e30,
    True,
    None,
    "iid",
    "5",
    "none",
    "true",
    "a b",
    [1, 0.5],
    ["x"],
    {"a": ["b"]},
)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_read_back_as_it_was(value: object) -> None:
    assert parse(written(value)) == value
    assert type(parse(written(value))) is type(value)


def test_a_request_survives_as_text_and_as_a_command() -> None:
    engine = EngineOptions("sequential", devices=2, compile=True, bank_budget=4096, threads=3)
    engine = replace(engine, energy=True)
    asked = RunRequest(
        ("fedavg", "pfedlia+fedavgm"), ("iid",), (0, 1), dict(zip("abcde", VALUES, strict=False)),
        "flis", 3, "digits", Path("a root"), Path("an out"), engine, True, True, ("csv",),
        metrics=("f1", "auroc:average=weighted"), changed_source=True,
        keep=KeepOptions(models=True, predictions=True, checkpoint=True),
    )  # fmt: skip
    assert request_of(shlex.split(command(asked))[2:]) == asked
    tuning = Tuning(budget=3, tried=2, seeds=[1000], score="accuracy_validation")
    tuned = replace(asked, tuning=tuning, seeds=(7, 3))
    assert RunRequest.from_json(tuned.to_json()) == tuned
    assert RunRequest.from_json(RunRequest().to_json()) == RunRequest()
    assert request_of(shlex.split(command(RunRequest(("x",), ("y",))))[2:]).seeds == (0,)


# --- what fails, what is skipped ----------------------------------------------------------------


@pytest.mark.slow
def test_a_cell_that_diverges_stops_no_other_and_can_be_typed_again(
    typed: Typed, tmp_path: Path
) -> None:
    grid = ("-p", "fedprox,fedavg", "-s", "iid", *QUICK, "--set", "fedprox.mu=1e30")
    code, out, err = typed("sweep", *grid)
    assert code == 3
    assert re.search(
        r"^cell 1/2  fedprox on iid \(digits\), seed 0: failed, round 1: param", err, re.M
    )
    assert err.splitlines()[-2] == "2 cells: 1 done, 1 failed"
    (path,) = results(tmp_path)
    assert str(path.relative_to(tmp_path)) in out
    again = re.fullmatch(r"  failed: flbench (run .* --resume)", err.splitlines()[-1])
    assert again is not None
    code, _, err = typed(*shlex.split(again[1]))
    assert code == 3
    assert mentions(err, "fedprox", "iid", "digits", "seed 0", "round 1")


@pytest.mark.slow
def test_a_cell_that_breaks_stops_no_other(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = flbench.run.runner.execute

    def breaks(job: Any, load: Any) -> Any:
        return execute(job, load) if job.seed else {}["no", job.seed]

    monkeypatch.setattr(flbench.run.runner, "execute", breaks)
    code, _, err = typed("sweep", *GRID)
    assert code == 1
    assert mentions(err, "fedavg", "iid", "digits", "seed 0", "failed", "KeyError", "'no', 0")
    assert "4 cells: 2 done, 2 failed" in err
    assert [path.name for path in results(tmp_path)] == ["seed-1.json"] * 2


UNDEFINED = ("-p", "flis-hc,fedavg", "-s", "iid", *QUICK, "--set", "server_samples=0")


@pytest.mark.slow
def test_a_method_that_is_not_defined_is_skipped_and_not_tried_again(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = typed("sweep", *UNDEFINED)
    assert code == 0
    reason = "skipped, flis-hc: the server owns no samples"
    assert mentions(err, "1/2", "flis-hc", "iid", "digits", "seed 0", reason)
    assert err.splitlines()[-1] == "2 cells: 1 done, 1 skipped"
    code, _, err = typed("sweep", *UNDEFINED)
    assert (code, err.splitlines()[0]) == (
        0,
        mentioning("2 cells", "1 were complete", "1 skipped", "0 to run"),
    )
    _, _, err = typed("sweep", *UNDEFINED, "--force")
    assert reason in err, "tried again"


@pytest.mark.slow
def test_a_reason_beside_a_result_of_another_seed_settles_nothing(
    typed: Typed, tmp_path: Path
) -> None:
    typed("sweep", *GRID, "--seed", "0")
    grid = ("-p", "fedavg", "-s", "iid", *QUICK)
    assert typed("sweep", *grid)[0] == 0
    (path,) = results(tmp_path)
    path.with_name("skipped.json").write_text("{}")
    _, out, _ = typed("sweep", *grid, "--seeds", "2", "--launcher", "print")
    assert len(out.splitlines()) == 1
    path.unlink()
    _, out, _ = typed("sweep", *grid, "--seeds", "2", "--launcher", "print")
    assert out == ""


def test_data_that_are_missing_skip_a_cell_for_this_time_only(typed: Typed, tmp_path: Path) -> None:
    grid = ("-p", "fedavg", "-s", "iid", *QUICK, "--dataset", "fashion-mnist")
    code, out, err = typed("sweep", *grid)
    assert code == 1, "nothing is finished"
    assert out == ""
    assert mentions(err, "seed 0", "skipped", "fashion-mnist")
    assert not list(tmp_path.iterdir())
    assert len(typed("sweep", *grid, "--launcher", "print")[1].splitlines()) == 1


# --- stopped, and typed again -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_says_what_is_kept(
    number: signal.Signals, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = flbench.run.runner.execute

    def stopped(job: Any, load: Any) -> Any:
        if job.method.described.name != "fedavg":
            os.kill(os.getpid(), number)
            time.sleep(5)
        return execute(job, load)

    monkeypatch.setattr(flbench.run.runner, "execute", stopped)
    before = signal.getsignal(signal.SIGTERM)
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    code, out, err = typed("sweep", *GRID)
    signal.signal(signal.SIGINT, heard)
    assert code == 130
    assert out == ""
    assert mentions(err.splitlines()[-1], "2 of 4 cells", "interrupted")
    assert err.splitlines()[-1].endswith("type the same again")
    assert signal.getsignal(signal.SIGTERM) == before


LONG = (
    "sweep", "-p", "fedavg,local-only", "-s", "iid", "--seeds", "2", "--rounds", "20",
    "--workers", "1",
    "--set", "clients=10", "--set", "participation=0.2", "--set", "local.epochs=1",
)  # fmt: skip


def flbench_sweep(folder: Path, *args: str) -> subprocess.Popen[str]:
    """Type the command in another process."""
    return subprocess.Popen(
        [sys.executable, "-m", "flbench", *args],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_and_ends_as_if_nothing_had_been(
    typed: Typed, tmp_path: Path
) -> None:
    assert typed(*LONG, "--out", "whole")[0] == 0
    out = tmp_path / "flbench-results"
    process = Command(LONG, tmp_path)
    deadline = time.monotonic() + 200
    while not (results(out) and begun(out)):
        assert time.monotonic() < deadline
        assert not process.ended()
        time.sleep(0.01)
    process.kill()
    kept = times(out)
    assert 1 <= len(kept) < 4
    code, _, err = typed(*LONG)
    assert code == 0, err
    assert f"4 cells: {4 - len(kept)} done, {len(kept)} were complete" in err
    assert kept.items() <= times(out).items(), "what was complete is not computed again"
    assert stable(out) == stable(tmp_path / "whole")
    assert not begun(out)


# --- printed commands ---------------------------------------------------------------------------


@pytest.mark.slow
def test_printed_commands_are_what_is_left_and_complete_it(typed: Typed, tmp_path: Path) -> None:
    grid = (*GRID, "--out", "a folder")
    code, out, err = typed("sweep", *grid, "--launcher", "print")
    assert (code, err) == (0, mentioning("4 cells", "none", "4 to run"))
    assert not list(tmp_path.iterdir()), "nothing is run"
    first, second, *others = out.splitlines()
    assert typed(*shlex.split(second)[1:])[0] == 0
    assert [path.name for path in results(tmp_path / "a folder")] == ["seed-1.json"]
    code, out, err = typed("sweep", *grid, "--launcher", "print")
    assert out.splitlines() == [first, *others]
    assert err == "4 cells: 1 were complete; 3 to run\n"
    forced = typed("sweep", *grid, "--launcher", "print", "--force")[1].splitlines()
    assert len(forced) == 4
    assert all("--force" in line for line in forced)


def test_each_suite_can_take_its_data_set_that_needs_no_files(typed: Typed) -> None:
    suites = ("-s", "nordic-text,iid,digit-5")
    code, out, _ = typed("sweep", "-p", "fedavg", *suites, "--offline-data", "--launcher", "print")
    assert code == 0
    assert out.splitlines() == [
        "flbench run --plugin fedavg --suite nordic-text --seed 0 --dataset bigrams --resume",
        "flbench run --plugin fedavg --suite iid --seed 0 --resume",
        "flbench run --plugin fedavg --suite digit-5 --seed 0 --dataset digits-shift --resume",
    ]
    code, _, err = typed("sweep", "-p", "fedavg", *suites, "--offline-data", "--dataset", "digits")
    assert code == 1
    assert mentions(err, "--offline-data", "--dataset")


def test_several_devices_can_be_printed(typed: Typed) -> None:
    code, out, _ = typed("sweep", *GRID, "--devices", "2", "--launcher", "print")
    assert code == 0
    assert all("--devices 2" in line for line in out.splitlines())


# --- Ray ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_ray_gives_the_results_of_the_local_launcher_and_goes_away(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    grid = (
        "-p", "fedavg,local-only,fedprox,flis-hc", "-s", "iid", *QUICK,
        "--set", "mu=1e30", "--set", "server_samples=0",
    )  # fmt: skip
    assert typed("sweep", *grid, "--out", "here")[0] == 3
    mark = uuid.uuid4().hex
    monkeypatch.setenv("FLBENCH_TEST_MARK", mark)
    far = ("sweep", *grid, "--launcher", "ray", "--workers", "2")
    with flbench_sweep(tmp_path, *far) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 3, err
    lines = err.splitlines()
    assert lines[0] == mentioning("4 cells", "none", "4 to run")
    assert [line.split("  ")[0] for line in lines[1:5]] == [f"cell {k}/4" for k in range(1, 5)]
    assert lines[5] == "4 cells: 2 done, 1 skipped, 1 failed"
    assert lines[6].startswith("  failed: flbench run --plugin fedprox ")
    assert len(lines) == 7, "Ray itself says nothing"
    assert out.count(".json") == 2
    found = stable(tmp_path / "flbench-results")
    assert len(found) == 2
    assert found == stable(tmp_path / "here")
    deadline = time.monotonic() + 30
    while alive(mark):
        assert time.monotonic() < deadline, alive(mark)
        time.sleep(0.2)


@pytest.mark.slow
def test_without_ray_there_is_one_line(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = typed("sweep", *GRID, "--launcher", "ray")
    assert code == 1
    assert err.splitlines()[-1] == mentioning("--launcher", "Ray", "pip install 'flbench[ray]'")
    assert not list(tmp_path.iterdir())
    assert typed("sweep", *GRID)[0] == 0
    code, _, err = typed("sweep", *GRID, "--launcher", "ray")
    assert (code, err.splitlines()[-1]) == (0, "4 cells: 4 were complete"), "nothing needs Ray"


def fake_ray(monkeypatch: pytest.MonkeyPatch, resources: Any, **more: Any) -> list[Any]:
    """Stand in for Ray; gives what it was started with."""
    started: list[Any] = []
    nodes = [
        {"Alive": True, "Resources": resources},
        {"Alive": False, "Resources": {"CPU": 8, "GPU": 8}},
    ]
    ray = SimpleNamespace(
        init=lambda **options: started.append(options),
        nodes=lambda: nodes,
        shutdown=lambda: started.append("shutdown"),
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(**{**vars(ray), **more}))
    return started


def cell(**engine: Any) -> Any:
    engine = {"threads": 1, "accelerator": "auto", **engine}
    return SimpleNamespace(spec=SimpleNamespace(engine=SimpleNamespace(**engine)))


def test_a_cluster_of_ones_own_has_room_for_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    started = fake_ray(monkeypatch, {"CPU": 6})
    connected(2, None, cell(threads=3))
    assert (started[0]["address"], started[0]["num_cpus"]) == ("local", 6)
    connected(None, None, cell(threads=1))
    assert started[1]["num_cpus"] == os.cpu_count()
    connected(2, "auto", cell())
    assert started[2]["address"] == "auto"
    assert "num_cpus" not in started[2], "it is not ours to size"
    assert not any(one["log_to_driver"] or one["include_dashboard"] for one in started)


def test_a_cell_that_no_machine_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would wait for ever."""
    started = fake_ray(monkeypatch, {"CPU": 2})
    assert needs(cell(threads=4)) == {"num_cpus": 4, "num_gpus": 0}
    for one in (cell(accelerator="cuda"), cell(threads=4)):
        with pytest.raises(UserError, match="no machine has them"):
            connected(None, "auto", one)
        assert started[-1] == "shutdown"


def test_a_cluster_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError("nobody\nthere")

    fake_ray(monkeypatch, {}, init=init)
    with pytest.raises(UserError, match=r"^Ray at 10\.0\.0\.1:1: nobody there$"):
        connected(None, "10.0.0.1:1", cell())


def test_a_worker_that_dies_is_a_failed_cell() -> None:
    class Crashed(Exception):
        pass

    def get(task: object) -> None:
        raise Crashed("the worker died\nunexpectedly")

    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=Crashed))
    outcome = received(ray, None)
    assert (outcome.what, outcome.code) == (FAILED, 1)
    assert outcome.why == "Crashed: the worker died"


@pytest.mark.slow
def test_a_worker_plays_in_the_folder_of_the_sweep_with_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("FLBENCH_DATA", "elsewhere")
    asked = request_of(("--plugin", "fedavg", "--suite", "iid", *QUICK, "--resume"))
    outcome = run_remotely(asked.to_json(), str(tmp_path), {"FLBENCH_DATA": "here"}, {})
    assert outcome.result is not None
    assert (tmp_path / str(outcome.path)).is_file()
    assert os.environ["FLBENCH_DATA"] == "here"
    missing = run_remotely(asked.to_json(), str(tmp_path / "none"), {}, {})
    assert mentions(missing.why, "machine")
    wrong = replace(asked, settings={**asked.settings, "x": 1})
    refused = run_remotely(wrong.to_json(), str(tmp_path), {}, {})
    assert (refused.what, refused.code) == (FAILED, 1)
    assert refused.why.startswith("unknown parameter 'x'")
    changed = run_remotely(asked.to_json(), str(tmp_path), {}, {"fedavg": "0" * 12})
    assert (changed.what, changed.code) == (FAILED, 1)
    assert mentions(changed.why, "fedavg", "sweep")


# --- the view -----------------------------------------------------------------------------------


def info(first: int = 1) -> RunInfo:
    return RunInfo("fedavg", {}, "toy", "digits", 4, 3, first, {}, "00000000")


def test_in_a_terminal_there_are_two_bars() -> None:
    screen = io.StringIO()
    view = SweepProgress()
    view._terminal = Terminal(file=screen, force_terminal=True, width=120)
    view.open({"were complete": 2}, 5)
    bar = view._bar
    assert bar is not None
    view.run_started(info())
    view.round_finished(RoundRecord(2, 3, {"accuracy": 0.625}))
    assert [(task.completed, task.total) for task in bar.tasks] == [(2, 5), (2, 3)]
    assert bar.tasks[1].fields["note"].startswith("accuracy 0.625  0 s left")
    view.finished("one", "failed", ": failed, why")
    assert [(task.completed, task.total) for task in bar.tasks] == [(3, 5)]
    assert bar.tasks[0].fields["note"].startswith("2 were complete, 1 failed  ")
    view.run_started(info(first=3))
    assert [task.completed for task in bar.tasks] == [3, 2]
    view.run_started(info())
    assert len(bar.tasks) == 2, "one run at a time"
    view.run_finished(None)  # type: ignore[arg-type]
    view.close()
    assert bar.finished or not bar.live.is_started
    told = screen.getvalue()
    assert "cell 3/5  one: failed, why  " in told
    assert told.count("\x1b[?25l") == told.count("\x1b[?25h") == 1, "the cursor comes back"


def test_the_time_left_counts_the_cells_of_this_sweep_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [50.0]
    monkeypatch.setattr("flbench.terminal.console.time", SimpleNamespace(monotonic=lambda: now[0]))
    view = SweepProgress()
    view.open({"were complete": 7}, 10)
    now[0] += 300
    view.finished("one", "done", "  accuracy 0.500  300 s")
    assert capsys.readouterr().err == mentioning("8/10", "accuracy 0.500", "300 s", "10 min")


def test_what_several_cells_have_to_say_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = SweepProgress()
    for message in ("a", "b", "a"):
        view.say(message)
    view.run_started(info())
    view.round_finished(RoundRecord(1, 3, {"accuracy": 0.5}))
    assert capsys.readouterr().err == "  note: a\n  note: b\n", "and rounds have no lines"


def test_where_nothing_is_asked_for_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_missing([], SweepProgress(), lambda cells: iter(())) == {}  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")


def test_waiting_for_other_processes_ends_at_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As batch systems send it; `fails` is called in place of what would end these tests."""

    def fails(number: int, frame: object) -> None:
        pytest.fail("nobody heeds SIGTERM")

    cell: Any = object()
    elsewhere = Outcome(ELSEWHERE, path=Path("elsewhere"))
    monkeypatch.setattr("flbench.run.run_folder.in_progress", lambda path: True)
    monkeypatch.setattr(sweep.time, "sleep", lambda seconds: os.kill(os.getpid(), signal.SIGTERM))
    running = sweep.run_or_wait([cell], lambda cells: ((c, elsewhere) for c in cells), print)
    before = signal.signal(signal.SIGTERM, fails)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(running)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_finished_cell_shows_the_headline_of_its_task() -> None:
    for turn, shown in ((as_numbers, "RMSE 0.250"), (as_labels, "mAP 0.750"), (None, "accuracy")):
        result = made(0.75) if turn is None else turn(made(0.75))
        line = sweep.end_of_line(Outcome(DONE, result=result, seconds=12.0))
        assert line == mentioning(shown, "12 s")
