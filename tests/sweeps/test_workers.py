"""Worker processes: the results of one process, whatever becomes of a worker or of the sweep."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import Command
from grids import GRID, QUICK, alive, begun, results, stable
from mentions import mentioning, mentions
from rich.console import Console as Terminal
from toy import Typed, install

from flbench.cli.interruption import AGAIN
from flbench.engine.options import EngineOptions
from flbench.results.events import RoundRecord, RunInfo
from flbench.run.checkpoint_file import read_content
from flbench.sweeps import workers
from flbench.sweeps.launchers import FAILED, RETRIES
from flbench.sweeps.request import Cell, RunRequest
from flbench.sweeps.workers import Crew, Worker, at_once, fitting
from flbench.terminal.console import RunBar, SweepProgress

SLOW_CELLS = (
    "sweep", "-p", "fedavg,local-only", "-s", "iid", "--seeds", "2", "--rounds", "400",
    "--set", "clients=10", "--workers", "2",
)  # fmt: skip
"""Cells that nobody waits for."""


def crew(*seeds: int, workers: int = 4, measured: bool = False, **engine: Any) -> Crew:
    """A crew that has started nobody, with a cell for each seed."""
    request = RunRequest(("fedavg",), ("iid",), engine=EngineOptions(**engine))
    specs: list[Any] = [
        SimpleNamespace(
            title=f"seed {k}",
            path=Path("of", str(k)),
            engine=request.engine,
            sinks=[("console", None)],
        )
        for k in seeds
    ]
    cells = [Cell(request, spec) for spec in specs]
    return Crew(cells, SweepProgress(), workers, measured=measured)


def member(found: Crew, cell: Cell | None = None) -> Worker:
    """A worker of a crew that is no process, with what it runs."""
    found.workers.append(Worker(None, None, RunBar(found.progress), cell))  # type: ignore[arg-type]
    return found.workers[-1]


# --- how many -----------------------------------------------------------------------------------


def test_as_many_as_there_are_cpus_or_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)

    def most(cells: int, **engine: Any) -> int:
        one = SimpleNamespace(spec=SimpleNamespace(engine=EngineOptions(**engine)))
        return at_once([one] * cells)  # type: ignore[list-item]

    assert most(20) == 8
    assert most(3) == 3
    assert most(20, threads=3) == 2
    assert most(20, threads=16) == 1
    assert most(20, accelerator="cuda") == 1, "a device is not shared unless it is asked for"


def test_as_many_as_the_memory_holds() -> None:
    assert fitting(8, peak=100, free=125 * 3 + 1) == 4
    assert fitting(8, peak=100, free=10**6) == 8
    assert fitting(8, peak=100, free=-5) == 1, "one runs already"
    assert fitting(8, peak=100, free=None) == 8


def test_what_was_chosen_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "free_memory", lambda: 3 * 2**30)
    found = crew(*range(9), measured=True)
    assert found.wanted == 1
    found.settle(2**30)
    found.settle(2**20)
    assert found.wanted == 3
    line = "workers: 3 of at most 4 (one takes 1.0 GB, 3.0 GB of memory free)\n"
    assert capsys.readouterr().err == line


def test_all_workers_together_keep_models_in_half_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "half_of_free", lambda: 1000)

    def budget(**engine: Any) -> int | None:
        found = crew(0, **engine)
        (cell,) = found.waiting
        return RunRequest.from_json(found.request_of(cell)).engine.bank_budget

    assert budget() == 250
    assert budget(bank_budget=4096) == 4096
    assert budget(accelerator="cuda") is None, "it is of the device's memory"


def test_what_a_worker_says_is_said_by_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    found = crew(0)
    worker, pipe = member(found), SimpleNamespace(recv=lambda: ("say", "it starts over"))
    worker.pipe = pipe  # type: ignore[assignment]
    assert list(found.heard(worker)) == []
    assert capsys.readouterr().err == "  note: it starts over\n"


# --- a worker that dies -------------------------------------------------------------------------


def test_the_cell_of_a_dead_worker_goes_on_and_fails_in_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = crew(0, 1)
    cell = found.waiting.popleft()
    for _ in range(RETRIES):
        assert list(found.lost(member(found, cell), -signal.SIGSEGV)) == []
        assert found.waiting.popleft() is cell, "before the others"
    told = capsys.readouterr().err.splitlines()
    assert told == [mentioning("seed 0", "died", "signal 11")] * RETRIES
    ((lost, outcome),) = found.lost(member(found, cell), 3)
    assert lost is cell
    assert (outcome.what, outcome.code, outcome.path) == (FAILED, 1, Path("of/0"))
    assert outcome.why == mentioning("died", "code 3", "4")
    assert found.wanted == 4
    assert not found.workers


def test_a_worker_that_the_system_kills_is_not_replaced() -> None:
    """Memory was not there; of one worker there is always another."""
    found = crew(0)
    for expected in (3, 2, 1, 1):
        assert list(found.lost(member(found), -signal.SIGKILL)) == []
        assert found.wanted == expected


Act = Callable[[Worker, Any], None]


@pytest.fixture
def on_message(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Act], None]:
    """Do something in the sweep whenever a worker sends a kind of message."""

    def do(kind: str, act: Act) -> None:
        hear = Worker.message

        def message(worker: Worker) -> tuple[str, Any]:
            said = hear(worker)
            if said[0] == kind:
                act(worker, said[1])
            return said

        monkeypatch.setattr(Worker, "message", message)

    return do


def kill(worker: Worker) -> None:
    assert worker.process.pid is not None
    os.kill(worker.process.pid, signal.SIGKILL)


def kill_one() -> Act:
    """Kills the worker that comes first, and no other."""
    victims: list[Worker] = []

    def strike(worker: Worker, _: object) -> None:
        if not victims:
            victims.append(worker)
            kill(worker)

    return strike


@pytest.mark.slow
def test_a_worker_that_is_killed_is_one_line(
    typed: Typed, tmp_path: Path, on_message: Callable[[str, Act], None]
) -> None:
    assert typed("sweep", *GRID, "--out", "whole")[0] == 0
    on_message("peak", kill_one())
    code, _, err = typed("sweep", *GRID, "--workers", "2")
    assert code == 0, err
    _, *lines, last = err.splitlines()
    died = [line for line in lines if not line.startswith("cell ")]
    assert len(died) == 1
    assert mentions(died[0], "iid", "died", "signal 9")
    assert (len(lines), last) == (5, "4 cells: 4 done")
    assert stable(tmp_path / "flbench-results") == stable(tmp_path / "whole")
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.long
def test_a_cell_that_kills_its_workers_fails_and_stops_no_other(
    typed: Typed, tmp_path: Path, on_message: Callable[[str, Act], None]
) -> None:
    def strike(worker: Worker, _: object) -> None:
        if worker.cell is not None and worker.cell.spec.seed == 0:
            kill(worker)

    on_message("run_started", strike)
    grid = ("-p", "fedavg", "-s", "iid", "--seeds", "2", "--rounds", "40", "--set", "clients=10")
    code, _, err = typed("sweep", *grid, "--workers", "2")
    assert code == 1
    assert sum(mentions(one, "died", "signal 9", "another") for one in err.splitlines()) == RETRIES
    assert mentions(err, "fedavg", "iid", "digits", "seed 0", "failed", "died", "signal 9")
    assert err.splitlines()[-2] == "2 cells: 1 done, 1 failed"
    assert [path.name for path in results(tmp_path)] == ["seed-1.json"]


# --- the same as in one process -----------------------------------------------------------------


@pytest.mark.slow
def test_two_workers_give_the_results_of_one(typed: Typed, tmp_path: Path) -> None:
    grid = (
        "-p", "fedavg,local-only,fedprox,flis-hc", "-s", "iid", *QUICK,
        "--set", "mu=1e30", "--set", "server_samples=0",
    )  # fmt: skip
    code, here, alone = typed("sweep", *grid, "--out", "here")
    assert code == 3
    code, there, err = typed("sweep", *grid, "--out", "there", "--workers", "2")
    assert code == 3
    lines = err.splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == [f"cell {k}/4" for k in range(1, 5)]
    assert len(lines) == len(alone.splitlines())
    assert (lines[0], lines[5]) == (alone.splitlines()[0], alone.splitlines()[5])
    assert {re.split(r"seed 0:? +|  ", line)[1] for line in lines[1:5]}
    assert there.replace("there", "here").split()[-2:] == here.split()[-2:], "in the same order"
    assert len(stable(tmp_path / "there")) == 2
    assert stable(tmp_path / "there") == stable(tmp_path / "here")
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.long
def test_seeds_in_lanes_have_the_bytes_of_one_process_in_workers(
    typed: Typed, tmp_path: Path, on_message: Callable[[str, Act], None]
) -> None:
    """The first worker is killed: its seed goes on in another one."""
    words = "-p pfedlia -s iid --seeds 4 --accelerator cpu --rounds 3"
    grid = (*words.split(), "--set", "clients=10", "--set", "warmup=1", "--set", "probe_epochs=1")
    assert typed("sweep", *grid, "--out", "here", "--workers", "1")[0] == 0
    on_message("peak", kill_one())
    code, _, err = typed("sweep", *grid, "--out", "there", "--workers", "2")
    assert code == 0, err
    assert sum(mentions(one, "died", "signal 9", "another") for one in err.splitlines()) == 1
    assert err.splitlines()[-1] == "4 cells: 4 done"
    assert len(stable(tmp_path / "there")) == 4
    assert stable(tmp_path / "there") == stable(tmp_path / "here")
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.long
def test_several_workers_are_the_default_and_one_cell_needs_none(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flbench.sweeps.workers.joblib", SimpleNamespace(cpu_count=lambda: 2))
    code, _, err = typed("sweep", *GRID)
    assert code == 0
    chosen = [line for line in err.splitlines() if line.startswith("workers: ")]
    assert len(chosen) == 1
    assert mentions(chosen[0], "workers", "2 of at most 2", "GB")
    monkeypatch.setattr(Crew, "started", None)
    code, _, err = typed("sweep", "-p", "fedprox", "-s", "iid", *QUICK)
    assert code == 0
    assert err.splitlines()[-1] == "1 cells: 1 done"


@pytest.mark.slow
@pytest.mark.long
def test_sixteen_workers_give_the_results_of_one(typed: Typed, tmp_path: Path) -> None:
    grid = ("-p", "fedavg,local-only,oracle", "-s", "iid", "--seeds", "8", *QUICK)
    assert typed("sweep", *grid, "--out", "here")[0] == 0
    code, _, err = typed("sweep", *grid, "--out", "there", "--workers", "16")
    assert code == 0, err
    assert err.splitlines()[-1] == "24 cells: 24 done"
    assert stable(tmp_path / "there") == stable(tmp_path / "here")
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.long
def test_trials_of_a_search_run_in_workers(typed: Typed, tmp_path: Path) -> None:
    search = ("tune", "fedprox", "-s", "iid", "--budget", "2", "--rounds", "1", "--threads", "1")
    assert typed(*search, "--out", "a", "--trials", "b", "--tuning-seeds", "1")[0] == 0
    two = ("--workers", "2", "--out", "c", "--trials", "d", "--tuning-seeds", "1")
    code, _, err = typed(*search, *two)
    assert code == 0, err
    assert stable(tmp_path / "c") == stable(tmp_path / "a")
    assert len(stable(tmp_path / "d")) == 2
    assert stable(tmp_path / "d") == stable(tmp_path / "b")


LOUD = """
from dataclasses import dataclass
import flbench as fl
print("imported")

@dataclass(frozen=True)
class Loud:
    @fl.hookimpl
    def plan(self, state, ctx):
        print(f"round {ctx.round}")
"""
POINT = "[flbench.methods]\n{name} = {module}:Loud\n"


def loud(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a plugin that prints; gives its file."""
    module = name.replace("-", "_")
    install(folder, name, POINT.format(name=name, module=module), **{module: LOUD})
    monkeypatch.syspath_prepend(folder)
    return folder / f"{module}.py"


@pytest.mark.slow
def test_what_plugins_print_is_printed_by_the_sweep(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud(tmp_path / "site", "loud-one", monkeypatch)
    code, out, err = typed("sweep", "-p", "loud-one", *GRID[2:], "--workers", "2")
    assert code == 0, err
    assert err.count("imported\n") == 1, "not in every worker again"
    assert err.count("round 1\n") == err.count("round 2\n") == 2
    assert "round" not in out


@pytest.mark.slow
def test_workers_with_other_code_than_the_sweep_are_refused(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = loud(tmp_path / "site", "loud-two", monkeypatch)
    start = Crew.started

    def changed(crew: Crew) -> Worker:
        file.write_text(f"{LOUD}# changed\n", encoding="utf-8")
        return start(crew)

    monkeypatch.setattr(Crew, "started", changed)
    code, _, err = typed("sweep", "-p", "loud-two", *GRID[2:], "--workers", "2")
    assert code == 1
    assert sum(mentions(one, "failed", "code of loud-two") for one in err.splitlines()) == 2
    assert not results(tmp_path)


# --- stopped ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_keeps_the_last_whole_round_of_each_cell(
    number: signal.Signals,
    typed: Typed,
    tmp_path: Path,
    on_message: Callable[[str, Act], None],
) -> None:
    """Of which the sweep was told; checkpoints of themselves are written more rarely."""
    told: dict[Path, int] = {}

    def strike(worker: Worker, record: RoundRecord) -> None:
        assert worker.cell is not None
        told[worker.cell.spec.checkpoint] = record.round
        if len(told) == 2 and min(told.values()) >= 20:
            os.kill(os.getpid(), number)

    on_message("round_finished", strike)
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    code, out, err = typed(*SLOW_CELLS)
    signal.signal(signal.SIGINT, heard)
    assert (code, out) == (130, "")
    assert mentions(err.splitlines()[-1], "0 of 4 cells", "interrupted")
    assert len(err.splitlines()) == 2
    assert not multiprocessing.active_children()
    assert sorted(path.relative_to(tmp_path) for path in begun(tmp_path)) == sorted(told)
    for path, last in told.items():
        assert json.loads(read_content(path))["round"] >= last


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "int", "int twice"])
def test_nobody_is_left_of_a_sweep_that_is_stopped_from_outside(how: str, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    (tmp_path / "runs").mkdir()
    sweep = Command(SLOW_CELLS, tmp_path / "runs", FLBENCH_TEST_MARK=mark)
    deadline = time.monotonic() + 120
    while len(begun(tmp_path)) < 2:
        assert time.monotonic() < deadline
        assert not sweep.ended()
        time.sleep(0.05)
    assert alive(mark)
    if how == "kill":
        os.kill(sweep.pid, signal.SIGKILL)
    for _ in range({"kill": 0, "int": 1, "int twice": 2}[how]):
        with suppress(ProcessLookupError):
            os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.02)
    code, _, err = sweep.finish(60)
    while alive(mark):
        assert time.monotonic() < deadline, alive(mark)
        time.sleep(0.05)
    assert "Traceback" not in err
    if how == "kill":
        assert code == -signal.SIGKILL
        return
    assert code == 130
    ends = ("flbench: interrupted; 0 of 4 ", AGAIN.decode().strip())
    last = ends[:1] if how == "int" else ends  # it may be over when the second comes
    assert err.splitlines()[-1].startswith(last)


# --- the view -----------------------------------------------------------------------------------


def test_in_a_terminal_every_worker_has_a_bar() -> None:
    view = SweepProgress()
    view._terminal = Terminal(file=io.StringIO(), force_terminal=True, width=120)
    view.open({}, 3)
    bar = view._bar
    assert bar is not None
    one, other = RunBar(view), RunBar(view)
    for number, run in enumerate((one, other)):
        run.run_started(RunInfo("fedavg", {}, "toy", "digits", number, 4, 1, {}, "0"))
    other.round_finished(RoundRecord(2, 4, {"accuracy": 0.5}))
    assert [task.completed for task in bar.tasks] == [0, 0, 2]
    assert bar.tasks[2].fields["note"].startswith("accuracy 0.500  ")
    one.close()
    one.close()
    assert [task.description for task in bar.tasks] == ["all", "fedavg on toy, seed 1"]
    view.close()
    other.round_finished(RoundRecord(3, 4, {}))
    other.close()
