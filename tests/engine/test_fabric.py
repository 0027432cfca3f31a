"""Starting the processes of a run."""

from __future__ import annotations

import os

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment

from flbench.engine import fabric
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
