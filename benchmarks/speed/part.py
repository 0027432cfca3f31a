"""Parts: what is asked for, the file a part writes, and programs that several parts race."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flbench import __version__
from flbench.results.files import write_atomically

from . import peers, race
from .race import Program, Row
from .work import Work


@dataclass(frozen=True)
class Asked:
    """How a part is asked for.

    Attributes:
        folder: for files that nobody keeps.
        quick: a trial: less of everything.
        peers: other frameworks too.
        env_root: where their environments lie.
    """

    folder: Path
    env_root: Path
    quick: bool = False
    peers: bool = True
    say: Callable[[str], None] = print


def ours(work: Work, asked: Asked, name: str = "flbench", **engine: object) -> Program:
    """The work in flbench; `engine` are options of `flbench.engine.options.Engine`."""
    module = "flbench_benchmarks.speed.ours"
    out = asked.folder / name.replace(" ", "-")
    command = [sys.executable, "-m", module, work.text(), json.dumps(engine), str(out)]
    return Program(name, command)


def floor(work: Work, processes: int = 1, device: str = "cpu") -> Program:
    """The loop by hand."""
    module = "flbench_benchmarks.speed.floor"
    return Program("floor", [sys.executable, "-m", module, work.text(), str(processes), device])


def others(work: Work, asked: Asked, processes: int, rounds: int) -> list[Program]:
    """The frameworks, if they are asked for."""
    if not asked.peers:
        return []
    from .floor import network

    net = asked.folder / f"{work.model}.pt"
    torch.save(network(work), net)
    return [
        peers.program(name, work, processes, net, rounds, asked.env_root) for name in peers.PEERS
    ]


def compare(
    programs: Sequence[Program], rounds: int, asked: Asked, *, inverse: bool = False, **same: object
) -> list[Row]:
    """Race, the first against the others; `same` begins all rows (`race.compared`)."""
    asked.say(f"{', '.join(map(str, same.values()))}: {', '.join(p.name for p in programs)}")
    rows = race.compared(race.race(programs, rounds), programs[0].name, same, inverse=inverse)
    notes = {program.name: program.note for program in programs}
    return [{**row, "note": row.get("note") or notes[row["program"]]} for row in rows]


def cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What a part is measured on; the load is that of the minute before."""
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flbench": __version__,
    }


def measure(name: str, module: Any, out: Path, asked: Asked) -> None:  # noqa: ANN401 - a part
    """Run a part and write its file."""
    began, on = time.time(), machine()
    table = {
        "part": name,
        "title": module.TITLE,
        "goal": module.GOAL,
        "quick": asked.quick,
        "machine": on,
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime(began)),
        "rows": module.run(asked),
        "took": round(time.time() - began),
    }
    write_atomically(out / f"{name}.json", f"{json.dumps(table, indent=1)}\n".encode())
