"""Starting the processes of a run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning_utilities.core import rank_zero

from flbench.engine.options import EngineOptions
from flbench.engine.processes import fabric
from flbench.errors import UserError


@pytest.mark.parametrize(("processes", "started"), [(16, True), (17, False), (10**6, False)])
def test_more_processes_than_a_machine_can_hold_are_refused(
    processes: int, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Exception):
        pass

    def start(launcher: fabric.Launcher) -> None:
        raise Started

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(fabric.Launcher, "_call_children_scripts", start)
    launcher = fabric.Launcher(LightningEnvironment(), processes, 1)
    with pytest.raises(Started if started else UserError):
        launcher.launch(print)


def test_several_machines_need_to_know_where_the_first_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*fabric.MACHINES, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "first")
    with pytest.raises(UserError, match=r"--nodes 3: .*MASTER_ADDR, MASTER_PORT, NODE_RANK"):
        fabric.Launcher(LightningEnvironment(), 1, 3).launch(print)


WAITS = """
import signal, threading, time
from flbench.engine.processes import fabric
from lightning.fabric.plugins.environments import LightningEnvironment
signal.signal(signal.SIGTERM, lambda *_: None)  # it never runs, as nothing of Python does there
# the main thread gets no signal, as where libraries have threads of their own
other = threading.Thread(target=time.sleep, args=(60,), daemon=True)
other.start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
fabric.Launcher(LightningEnvironment(), 1, 2).launch(time.sleep, 60)
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_signal_ends_the_wait_for_other_machines() -> None:
    first = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], env={**os.environ, **first}, stderr=subprocess.PIPE
    ) as waiting:
        assert waiting.stderr is not None
        assert b"2 machines" in waiting.stderr.readline()
        time.sleep(0.5)
        waiting.terminate()
        assert waiting.wait(30) == 130
        assert waiting.stderr.read() == b"flbench: interrupted\n"


@pytest.mark.parametrize(("used", "launched"), [("1", 0), ("0", 1)])
def test_what_fabric_run_has_launched_is_not_launched_again(
    used: str, launched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(fabric.Fabric, "launch", lambda self: calls.append(self))
    monkeypatch.setenv("LT_CLI_USED", used)
    fabric.open_fabric(EngineOptions(accelerator="cpu"))
    assert len(calls) == launched


def test_lightning_gives_no_advice(caplog: pytest.LogCaptureFixture) -> None:
    """It would advise to round to TF32, which changes results."""
    for name in fabric.LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(caplog.handler)
    try:
        rank_zero.rank_zero_info("heard")
        fabric.open_fabric(EngineOptions(accelerator="cpu", precision="bf16-mixed"))
        rank_zero.rank_zero_info("not heard")
    finally:
        for name in fabric.LOGGERS:
            logging.getLogger(name).removeHandler(caplog.handler)
    assert [record.message for record in caplog.records] == ["heard"]
