"""Starting the processes of a run."""

from __future__ import annotations

import logging
import os

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
