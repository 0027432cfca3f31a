"""Races: programs in processes of their own that play their rounds in turn."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
PATIENCE = 300.0
"""Seconds after which a program that says nothing is given up."""


class Failed(Exception):
    """A program ended, or said nothing for too long; its last words."""


@dataclass(frozen=True)
class Program:
    """Something that passes a baton.

    Attributes:
        name: in the table, once.
        command: its command line; empty = it cannot be run, and `note` says why.
        env: beside the environment of this process.
        note: what should be known about it.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass
class Ran:
    """What a program did.

    Attributes:
        ready: seconds from its start until it could begin its first round.
        first: seconds of the first round.
        laps: seconds of the others.
        peak_mb: the sum of its processes' peaks (pages that they share count in each), MiB.
        steps: optimiser steps of the first round, of the process that reports.
        error: why there is nothing of this.
    """

    ready: float = 0.0
    first: float = 0.0
    laps: list[float] = field(default_factory=list)
    peak_mb: float | None = None
    steps: int | None = None
    error: str = ""

    @property
    def startup(self) -> float:
        """Seconds from its start to its first round, and what that costs more than the others."""
        return self.ready + max(0.0, self.first - median(self.laps))


def race(programs: Sequence[Program], rounds: int) -> dict[str, Ran]:
    """Let every program play `rounds` rounds after a first one; in turn, to and fro."""
    found = {program.name: Ran() for program in programs}
    running: dict[str, _Running] = {}
    try:
        for program in programs:
            ran = found[program.name]
            with _noting(ran):
                if not program.command:
                    raise Failed(program.note)
                running[program.name] = one = _Running(program)
                one.hear()
                ran.ready = time.perf_counter() - one.began
        for number in range(rounds + 1):
            order = list(running.items())
            for name, one in order if number % 2 else reversed(order):
                if not found[name].error:
                    with _noting(found[name]):
                        told = one.turn()
                        if number:
                            found[name].laps.append(told["seconds"])
                        else:
                            found[name].first, found[name].steps = (
                                told["seconds"],
                                told.get("steps"),
                            )
        for name, one in running.items():
            if not found[name].error:
                found[name].peak_mb = one.peak_mb()
    finally:
        for one in running.values():
            one.stop()
    return found


def compared(
    found: Mapping[str, Ran], base: str, same: Mapping[str, object], *, inverse: bool = False
) -> list[Row]:
    """A row per program: seconds per round, and how many times as long `base` takes, in pairs.

    Args:
        base: the program that all are compared with.
        same: what all rows begin with.
        inverse: how many times as long as `base` it takes, in column `ratio`.
    """
    rows: list[Row] = []
    for name, ran in found.items():
        row: Row = {**same, "program": name}
        if ran.error:
            rows.append({**row, "note": f"not run: {ran.error}"})
            continue
        row["seconds"] = round(median(ran.laps), 5)
        if name != base and found[base].laps:
            if inverse:
                row |= paired("ratio", ran.laps, found[base].laps)
            else:
                row |= paired(f"{base}_over_this", found[base].laps, ran.laps)
        row |= {
            "startup": round(ran.startup, 2),
            "peak_mb": ran.peak_mb,
            "steps": ran.steps,
            "rounds": len(ran.laps),
        }
        rows.append(row)
    return rows


def paired(name: str, one: Sequence[float], other: Sequence[float]) -> Row:
    """Median, lowest and highest ratio of pairs."""
    ratios = [a / b for a, b in zip(one, other, strict=False)]
    return {
        name: round(median(ratios), 3),
        f"{name}_low": round(min(ratios), 3),
        f"{name}_high": round(max(ratios), 3),
    }


def quiet(**more: str) -> dict[str, str]:
    """The environment of every timed process: one thread, nothing told to anybody."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}


def last_words(path: Path) -> str:
    """The last line of a program's standard error."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


class _Running:
    """A program at work."""

    def __init__(self, program: Program) -> None:
        handle, name = tempfile.mkstemp(prefix="flbench-speed-")
        self._words = Path(name)
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            program.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            env=quiet(**program.env),
        )
        os.close(handle)

    def hear(self) -> Row:
        """Its next line.

        Raises:
            Failed: there is none.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise Failed(f"nothing for {PATIENCE:.0f} s; {last_words(self._words)}")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(last_words(self._words))
        told: Row = json.loads(line)
        return told

    def turn(self) -> Row:
        """Let it play a round."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b".")
            self._process.stdin.flush()
        except OSError:
            raise Failed(last_words(self._words)) from None
        return self.hear()

    def peak_mb(self) -> float | None:
        """Sum of the peaks of its processes; None where the system does not tell."""
        peaks = []
        for pid in family(self._process.pid):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                peaks += [int(ln.split()[1]) for ln in status.splitlines() if "VmHWM" in ln]
        return round(sum(peaks) / 1024, 1) if peaks else None

    def stop(self) -> None:
        """End it and what it started."""
        members = {pid: birth(pid) for pid in family(self._process.pid)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for pid, born in members.items():
            if birth(pid) == born != "":  # a number may be another process's by now
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._words.unlink(missing_ok=True)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def birth(pid: int) -> str:
    """When a process began, in the system's ticks; empty if it is none any more."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


@contextlib.contextmanager
def _noting(ran: Ran) -> Iterator[None]:
    try:
        yield
    except Failed as error:
        ran.error = str(error)
