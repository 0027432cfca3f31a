"""Run for long in one process, and see whether anything grows: memory, threads, files, processes.

While a long command runs, samples are taken after every so many rounds or cells. It is flat if,
after the first fifth, the least-squares slope of the resident memory is below a limit, and no
sample has more threads, open files or processes than those of the first fifth.

A short command comes first: what it imports is not among the objects that Python looks at for
cycles, as in the process of a command (`terminal/console.imports_stay`). If it were, Python would
look for cycles only when there are a fourth as many objects as were imported, and a thousand cells
would leave some megabytes until then.
"""

from __future__ import annotations

import gc
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from determinism import PROBE, SUITE, results
from fault_record import Fault
from typed_command import typed

from flbench.run import rounds
from flbench.sweeps import launchers

METHODS = "fedavg,pfedlia,scaffold,ifca,fedproto"
SETTINGS = [word for one in PROBE for word in ("--set", f"pfedlia.{one}")]


@dataclass(frozen=True)
class Soak:
    """A long command, or the same one many times.

    Attributes:
        unit: what is counted: "rounds" or "cells".
        words: what is typed.
        count: rounds or cells of a command.
        commands: how often it is typed, each time into an empty folder.
        limit: MB of resident memory for 1,000 rounds or cells, at most.
        every: how many rounds or cells lie between two samples.
    """

    unit: str
    words: tuple[str, ...]
    count: int
    commands: int = 1
    limit: float = 1.0
    every: int = 50


SHORT = {"rounds": ("--rounds", "25"), "cells": ("--seeds", "1")}
"""What makes a command a short one, at its end."""
LONG_RUN = ("--rounds", "5000")
SWEEP = ("sweep", "--workers", "1", "-p", METHODS, *SETTINGS, "--rounds", "2")
SOAKS: dict[str, Soak] = {
    "a run of fedavg": Soak("rounds", ("run", "-p", "fedavg", *LONG_RUN), 5000),
    "a run of pfedlia": Soak("rounds", ("run", "-p", "pfedlia", *SETTINGS, *LONG_RUN), 5000),
    "a run of scaffold with a sink": Soak(
        "rounds", ("run", "-p", "scaffold", "--sink", "csv", *LONG_RUN), 5000
    ),
    "50 sweeps": Soak("cells", (*SWEEP, "--seeds", "2"), 10, 50, limit=5, every=10),
    "50 sweeps, clients one by one": Soak(
        "cells", (*SWEEP, "--seeds", "2", "--executor", "sequential"), 10, 50, limit=5, every=10
    ),
    # The results of all cells are kept for the table at the end.
    "a sweep of 500 cells": Soak("cells", (*SWEEP, "--seeds", "100"), 500, limit=30, every=10),
}
"""Commands by name."""


@dataclass(frozen=True)
class Sample:
    """What a process has at a moment; `resident` in MB."""

    resident: float
    threads: int
    files: int
    processes: int


def sample() -> Sample:
    """What this process has now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE))
    children = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    files = len(os.listdir("/proc/self/fd")) - 1  # the one of the listing
    processes = len("".join(children).split())
    return Sample(int(found["VmRSS"]) / 1024, int(found["Threads"]), files, processes)


@dataclass(frozen=True)
class Soaked:
    """What came of a long command.

    Attributes:
        slope: MB of resident memory for 1,000 rounds or cells, after the first fifth.
        first: what there was after the first fifth, at most.
        last: what there was later, at most.
        file: bytes of the result for each round, or of each result.
    """

    count: int
    seconds: float
    slope: float
    first: Sample
    last: Sample
    file: float

    def growing(self, limit: float) -> list[str]:
        """What is not flat."""
        found = [] if self.slope <= limit else [f"memory by {self.slope:.2f} MB"]
        pairs = zip(asdict(self.first).items(), astuple(self.last), strict=True)
        return found + [
            f"{name} from {one} to {other}"
            for (name, one), other in pairs
            if name != "resident" and other > one
        ]


def soaked(samples: Sequence[Sample], every: int, seconds: float, file: float) -> Soaked:
    """Judge samples that were taken after every `every` rounds or cells."""
    table = np.array([astuple(one) for one in samples])
    warm = len(table) // 5
    at = every * np.arange(len(table)) / 1000
    slope = float(np.polyfit(at[warm:], table[warm:, 0], 1)[0])
    first, last = (
        Sample(round(float(rows[:, 0].max()), 1), *(int(n) for n in rows[:, 1:].max(axis=0)))
        for rows in (table[: warm + 1], table[warm:])
    )
    return Soaked(every * len(table), round(seconds, 1), round(slope, 3), first, last, file)


def sampling(every: int, samples: list[Sample], call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes a sample after every so many calls."""
    left = [every]

    def called(*given: Any, **named: Any) -> Any:
        found = call(*given, **named)
        left[0] -= 1
        if left[0] == 0:
            left[0] = every
            samples.append(sample())
        return found

    return called


def type_in(asked: Soak, out: str, *more: str) -> None:
    """Type the command, with more words at its end."""
    done = typed(*asked.words, "-s", "small.toml", "--out", out, *more, seconds=4 * 3600)
    assert done.code == 0, done.errors


def leave_imports() -> None:
    """Let Python look for cycles among the objects that are made from now on."""
    gc.collect()
    gc.freeze()
    gc.collect()  # the next search begins at a fourth of the objects that this one finds


def soak(asked: Soak) -> Soaked:
    """Type a long command in this process, or one many times."""
    samples: list[Sample] = []
    where, name = (rounds, "evaluate_round") if asked.unit == "rounds" else (launchers, "attempt")
    watched = patch.object(where, name, sampling(asked.every, samples, getattr(where, name)))
    with tempfile.TemporaryDirectory(prefix="flbench-faults-") as folder, chdir(folder), watched:
        Path("small.toml").write_text(SUITE, encoding="utf-8")
        type_in(asked, "out-short", *SHORT[asked.unit])
        leave_imports()
        samples.clear()
        began = time.monotonic()
        for number in range(asked.commands):
            type_in(asked, f"out-{number}")
        seconds = time.monotonic() - began
        sizes = [len(data) for data in results(Path("out-0")).values()]
    played = asked.count if asked.unit == "rounds" else len(sizes)
    return soaked(samples, asked.every, seconds, round(sum(sizes) / played, 1))


def inject(name: str) -> Fault:
    """Type a long command; its numbers are the message."""
    asked = SOAKS[name]
    found = soak(asked)
    grown = ", ".join(found.growing(asked.limit))
    message = (
        f"{found.count:,} {asked.unit} in {found.seconds:.0f} s: {found.slope} MB more memory for"
        f" 1,000 {asked.unit}, at most {asked.limit}; at the end {found.last.resident} MB,"
        f" {found.last.threads} threads, {found.last.files} files, {found.last.processes} processes"
        f"; a result has {found.file} bytes for each of the {asked.unit}"
    )
    return Fault(name, asked.unit, "grows" if grown else "flat", grown, message=message)


def names() -> list[str]:
    """The long commands."""
    return list(SOAKS)
