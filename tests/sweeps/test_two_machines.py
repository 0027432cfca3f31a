"""A sweep on a Ray cluster of two machines, simulated (`machines`), gives the local results."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import machines
import pytest
from forked import typed, waited
from grids import stable

pytestmark = [pytest.mark.slow, pytest.mark.long]

GRID = (
    "sweep", "-p", "fedavg,local-only,ifca", "-s", "iid", "--set", "clients=12",
    "--rounds", "2", "--seeds", "2", "--accelerator", "cpu",
)  # fmt: skip
NODE = ("-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", "--num-cpus", "1")
SECONDS = 180.0


@pytest.mark.parametrize(
    "killed", [False, True], ids=["undisturbed", "one machine is switched off"]
)
def test_two_machines_leave_the_files_of_one(
    killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    if not machines.possible():
        pytest.skip("needs Linux, root and network namespaces")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    rounds = ("--rounds", "150" if killed else "2")
    with ExitStack() as stack:
        short = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets have short names
        stack.callback(shutil.rmtree, short, ignore_errors=True)
        one, other = stack.enter_context(machines.two_machines())
        head, second, sweep = (
            stack.enter_context((tmp_path / name).open("w")) for name in ("head", "second", "sweep")
        )
        address = f"{one.address}:6379"
        place = ("--node-ip-address", one.address, "--include-dashboard", "false")
        nodes = [
            one.start(
                [sys.executable, *NODE, "--head", "--port", "6379", *place, "--temp-dir", short],
                tmp_path, head,
            )
        ]  # fmt: skip
        waited(lambda: "Ray runtime started" in (tmp_path / "head").read_text("utf-8"), SECONDS)
        join = [sys.executable, *NODE, "--address", address, "--node-ip-address", other.address]
        nodes.append(other.start(join, tmp_path, second))
        waited(lambda: "Ray runtime started" in (tmp_path / "second").read_text("utf-8"), SECONDS)
        words = [*GRID, *rounds, "--launcher", "ray", "--address", address, "--out", "ray"]
        process = one.start([sys.executable, "-m", "flbench", *words], tmp_path, sweep)
        if killed:
            waited(lambda: any((tmp_path / "ray").rglob("*.json")), SECONDS)
            other.kill()
        assert process.wait(SECONDS) == 0, (tmp_path / "sweep").read_text("utf-8")
        for machine in (one, other):
            machine.kill()
        for node in nodes:
            node.wait(SECONDS)
    said = (tmp_path / "sweep").read_text("utf-8")
    # a cell whose file was written when its machine was switched off is found complete
    counts = re.findall(r"(\d+) (done|were complete)", said.splitlines()[-1])
    assert sum(int(count) for count, _ in counts) == 6, said
    assert killed or counts == [("6", "done")]
    assert "Traceback" not in said
    code, _, cried = typed([*GRID, *rounds, "--out", "here"], tmp_path)
    assert code == 0, cried
    found = stable(tmp_path / "ray")
    assert len(found) == 6
    assert found == stable(tmp_path / "here")
