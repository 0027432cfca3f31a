"""The processes of a run are started at once, and end with it, in order or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from flbench.engine.processes import workers as processes

Started = list[tuple[list[str], dict[str, str]]]
ORDERLY = "print(flush=True); "
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {ORDERLY}"


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "by"), [(ORDERLY, "SIGTERM"), (STUBBORN, "SIGKILL")])
def test_a_process_that_does_not_end_is_killed(
    begin: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.5)
    words = [sys.executable, "-S", "-c", f"{begin}import time; time.sleep(600)"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    monkeypatch.setattr(processes, "CHILDREN", [child])
    processes.terminate_workers()
    child.stdout.close()
    assert child.returncode == -signal.Signals[by]
    assert processes.CHILDREN == []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Commands and environments of processes that would be started by a command line."""
    calls: Started = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, env: calls.append((words, env)))
    monkeypatch.setattr(processes, "CHILDREN", [])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "environ", {"PATH": "here"})
    monkeypatch.setattr(sys, "argv", ["flbench", "run", "--devices", "3"])
    return calls


def test_the_other_processes_are_started_before_the_imports(started: Started) -> None:
    processes.start_workers(3)
    (command, one), (same, other) = started
    assert command == same
    assert command[-3:] == ["run", "--devices", "3"]
    assert (one["LOCAL_RANK"], other["LOCAL_RANK"]) == ("1", "2")
    assert os.environ["LOCAL_RANK"] == "0"
    common = "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE"
    for name in common:
        assert one[name] == other[name] == os.environ[name]
    assert one["WORLD_SIZE"] == "3"
    assert one["PATH"] == "here"
    assert int(one["MASTER_PORT"]) > 1023
    assert len(processes.CHILDREN) == 2


@pytest.mark.parametrize("name", ["LOCAL_RANK", "MASTER_PORT", "SLURM_JOB_ID", "PMI_RANK"])
def test_what_a_launcher_may_have_started_is_not_started_again(
    name: str, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, name, "0")
    processes.start_workers(3)
    assert not started


def test_a_command_line_that_asks_for_one_device_is_not_run_again(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest", "run"])
    processes.start_workers(3)
    assert not started


@pytest.mark.parametrize(("devices", "number"), [(16, 15), (17, 0)])
def test_no_more_are_started_than_a_machine_can_hold(
    devices: int, number: int, started: Started
) -> None:
    processes.start_workers(devices)
    assert len(started) == number


def test_a_process_knows_that_who_started_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not processes.parent_is_gone(), "a launcher started it, or a person"
    monkeypatch.setenv(processes.STARTED_BY, str(os.getppid()))
    assert not processes.parent_is_gone()
    monkeypatch.setenv(processes.STARTED_BY, str(os.getppid() + 1))
    assert processes.parent_is_gone()
