"""What a part is given (`PartRequest`), and the programs that several parts measure."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flbench.engine.machine import portable

from . import interleaved, peers
from .interleaved import Program, Row
from .workload import Workload

LIMIT = "matrix products"
"""The name of the program that no other can beat."""


@dataclass(frozen=True)
class PartRequest:
    """How a part is to be measured.

    Attributes:
        folder: a temporary folder, removed after the part.
        env_root: the folder of the other frameworks' environments.
        quick: measure a smaller workload; the numbers are no benchmark.
        peers: measure other frameworks as well.
        say: reports progress.
    """

    folder: Path
    env_root: Path
    quick: bool = False
    peers: bool = True
    say: Callable[[str], None] = print


def flbench_program(
    work: Workload, request: PartRequest, name: str = "flbench", **engine: object
) -> Program:
    """A workload in flbench; `engine` are fields of `flbench.engine.options.EngineOptions`."""
    module = "flbench_benchmarks.speed.flbench_rounds"
    out = request.folder / name.replace(" ", "-")
    command = [sys.executable, "-m", module, work.text(), json.dumps(engine), str(out)]
    return Program(name, command, portable.SETTINGS if engine.get("portable") else {})


def floor_program(work: Workload, processes: int = 1, device: str = "cpu") -> Program:
    """The hand-written loop (`floor`) on a workload."""
    module = "flbench_benchmarks.speed.floor"
    return Program("floor", [sys.executable, "-m", module, work.text(), str(processes), device])


def limit_program(work: Workload, processes: int = 1) -> Program:
    """As many floating-point operations as a round has, and nothing else (`limit`)."""
    from .limit import round_operations

    module = "flbench_benchmarks.speed.limit"
    note = f"{round_operations(work) / 1e9:.3g} GFLOP per round"
    return Program(LIMIT, [sys.executable, "-m", module, work.text(), str(processes)], note=note)


def peer_programs(
    work: Workload, request: PartRequest, processes: int, rounds: int, names: Sequence[str]
) -> list[Program]:
    """The programs of the frameworks `names`; none with `--no-peers`."""
    if not request.peers:
        return []
    from .floor import network

    net = request.folder / f"{work.model}.pt"
    torch.save(network(work), net)
    return [
        program
        for name in names
        for program in peers.programs(name, work, processes, net, rounds, request.env_root)
    ]


def compare_with_peers(
    work: Workload, rounds: int, request: PartRequest, names: Sequence[str]
) -> list[Row]:
    """flbench, the floor, the frameworks `names` and the limit, in one process and in two."""
    rows: list[Row] = []
    for processes in (1, 2):
        programs = [
            flbench_program(work, request, devices=processes, accelerator="cpu"),
            floor_program(work, processes),
            *peer_programs(work, request, processes, rounds, names),
            limit_program(work, processes),
        ]
        rows += compare(programs, rounds, request, processes=processes)
    return rows


def compare(
    programs: Sequence[Program],
    rounds: int,
    request: PartRequest,
    *,
    inverse: bool = False,
    **same: object,
) -> list[Row]:
    """Measure programs alternately and compare them with the first; all rows begin with `same`."""
    request.say(f"{', '.join(map(str, same.values()))}: {', '.join(p.name for p in programs)}")
    rows = interleaved.comparison_rows(
        interleaved.measure_interleaved(programs, rounds),
        programs[0].name,
        same,
        inverse=inverse,
        limit=LIMIT,
    )
    notes = {program.name: program.note for program in programs}
    return [{**row, "note": row.get("note") or notes[row["program"]]} for row in rows]
