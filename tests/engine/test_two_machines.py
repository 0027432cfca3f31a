"""A run on two machines, simulated (`machines`), ends in the files of one; also after a kill."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import machines
import pytest
from forked import typed, waited
from grids import stable
from machines import Machine
from mentions import mentions

pytestmark = [pytest.mark.slow, pytest.mark.long]

ALONE = ("--accelerator", "cpu", "--executor", "sequential")
SMALL = ("-s", "iid", "--set", "clients=12", *ALONE)
PAIR = ("-p", "scaffold,ifca", *SMALL, "--rounds", "3")
LONG = ("-p", "fedavg", *SMALL, "--rounds", "400", "--set", "local.epochs=1")
TORCHRUN = (
    "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
    "--master-port", "29511", "-m", "flbench", "run",
)  # fmt: skip
TWO = ("--devices", "1", "--nodes", "2", "--out", "out")
START, END = 120.0, 120.0
Pair = tuple[Machine, Machine]


@pytest.fixture
def pair() -> Iterator[Pair]:
    if not machines.possible():
        pytest.skip("needs Linux, root and network namespaces")
    with machines.two_machines() as both:
        yield both


def torchrun(both: Pair, words: tuple[str, ...], cwd: Path, stack: ExitStack) -> list[Any]:
    """Type the same command on both machines."""
    started = []
    for rank, machine in enumerate(both):
        log = stack.enter_context((cwd / f"log-{rank}").open("w"))
        place = ("--node-rank", str(rank), "--master-addr", both[0].address)
        command = [sys.executable, *TORCHRUN[:2], *place, *TORCHRUN[2:], *words, *TWO]
        process = machine.start(command, cwd, log)
        started.append(process)
    return started


def test_two_machines_leave_the_files_of_one(pair: Pair, tmp_path: Path) -> None:
    with ExitStack() as stack:
        codes = [process.wait(START) for process in torchrun(pair, PAIR, tmp_path, stack)]
    first, second = ((tmp_path / f"log-{rank}").read_text("utf-8") for rank in (0, 1))
    assert codes == [0, 0], first + second
    assert first.count("seed-0.json") == 2
    assert "seed-0.json" not in second, "one process speaks"
    code, _, cried = typed(["run", *PAIR, "--out", "one"], tmp_path)
    assert code == 0, cried
    assert stable(tmp_path / "out") == stable(tmp_path / "one") != {}


def test_a_killed_machine_ends_the_other_with_one_line_and_the_run_goes_on(
    pair: Pair, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first, second = torchrun(pair, LONG, tmp_path, stack)
        waited(lambda: any(tmp_path.rglob("*.safetensors")), START)
        pair[1].kill()
        assert second.wait(END) != 0
        assert first.wait(END) != 0
    said = (tmp_path / "log-0").read_text("utf-8")
    lines = [line for line in said.splitlines() if line.startswith("flbench: ")]
    assert len(lines) == 1, said
    assert mentions(lines[0], "process", "whole")
    assert "--nodes 2" in lines[0]
    assert "--resume" in lines[0]
    assert not any((tmp_path / "out").rglob("*.json"))
    with ExitStack() as stack:
        again = torchrun(pair, (*LONG, "--resume"), tmp_path, stack)
        assert [process.wait(START) for process in again] == [0, 0]
    code, _, cried = typed(["run", *LONG, "--out", "one"], tmp_path)
    assert code == 0, cried
    assert stable(tmp_path / "out") == stable(tmp_path / "one") != {}
