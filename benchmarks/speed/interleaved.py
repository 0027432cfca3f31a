"""Measure programs, each in a process of its own, that play their rounds alternately."""

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

from flbench.engine.processes.own_process import inherited

Row = dict[str, Any]
TIMEOUT = 300.0
"""Seconds to wait for a program's next report."""


class ProgramFailed(Exception):
    """A program ended or timed out; the text is its last error."""


@dataclass(frozen=True)
class Program:
    """Something that passes a turns.

    Attributes:
        name: unique; its name in the table.
        command: its command line; empty = it cannot be run, and `note` says why.
        env: beside the environment of this process.
        note: a remark for the table.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass
class Measurement:
    """What was measured of a program.

    Attributes:
        ready: seconds from its start until it is ready for its first round.
        first: seconds of the first round.
        seconds: seconds of each further round.
        peak_mb: the sum of its processes' peaks (pages that they share count in each), MiB.
        steps: optimiser steps of the first round, of the process that reports.
        error: why nothing was measured; "" = no error.
    """

    ready: float = 0.0
    first: float = 0.0
    seconds: list[float] = field(default_factory=list)
    peak_mb: float | None = None
    steps: int | None = None
    error: str = ""

    @property
    def startup(self) -> float:
        """Seconds until it is ready, plus the extra time of the first round."""
        return self.ready + max(0.0, self.first - median(self.seconds))


def measure_interleaved(programs: Sequence[Program], rounds: int) -> dict[str, Measurement]:
    """Measure `rounds` rounds of every program after a first process; the order alternates."""
    measured = {program.name: Measurement() for program in programs}
    running: dict[str, RunningProgram] = {}
    try:
        for program in programs:
            measurement = measured[program.name]
            with _recording_failure(measurement):
                if not program.command:
                    raise ProgramFailed(program.note)
                running[program.name] = process = RunningProgram(program)
                process.read_report()
                measurement.ready = time.perf_counter() - process.began
        for number in range(rounds + 1):
            order = list(running.items())
            for name, process in order if number % 2 else reversed(order):
                if not measured[name].error:
                    with _recording_failure(measured[name]):
                        report = process.play_round()
                        if number:
                            measured[name].seconds.append(report["seconds"])
                        else:
                            measured[name].first = report["seconds"]
                            measured[name].steps = report.get("steps")
        for name, process in running.items():
            if not measured[name].error:
                measured[name].peak_mb = process.peak_mb()
    finally:
        for process in running.values():
            process.stop()
    return measured


def comparison_rows(
    measured: Mapping[str, Measurement],
    base: str,
    same: Mapping[str, object],
    *,
    inverse: bool = False,
    limit: str = "",
) -> list[Row]:
    """A row per program: seconds per round, and the ratio of `base` to it over pairs of rounds.

    Args:
        base: name of the program that all are compared with.
        same: the first columns of all rows.
        inverse: the ratio of the program to `base`, in column `ratio`.
        limit: name of the program that none can beat; the share of its time in that of a program
            is in column `share_of_limit`, if it was measured.
    """
    rows: list[Row] = []
    for name, measurement in measured.items():
        row: Row = {**same, "program": name}
        if measurement.error:
            rows.append({**row, "note": f"not run: {measurement.error}"})
            continue
        row["seconds"] = round(median(measurement.seconds), 5)
        if name != base and measured[base].seconds and not measured[base].error:
            if inverse:
                row |= paired_ratios("ratio", measurement.seconds, measured[base].seconds)
            else:
                row |= paired_ratios(
                    f"{base}_over_this", measured[base].seconds, measurement.seconds
                )
        if limit in measured and name != limit and measured[limit].seconds:
            shares = paired_ratios("share", measured[limit].seconds, measurement.seconds)
            row["share_of_limit"] = shares["share"]
        row |= {
            "startup": round(measurement.startup, 2),
            "peak_mb": measurement.peak_mb,
            "steps": measurement.steps,
            "rounds": len(measurement.seconds),
        }
        rows.append(row)
    return rows


def paired_ratios(name: str, one: Sequence[float], other: Sequence[float]) -> Row:
    """Median, lowest and highest ratio of pairs."""
    ratios = [a / b for a, b in zip(one, other, strict=False)]
    return {
        name: round(median(ratios), 3),
        f"{name}_low": round(min(ratios), 3),
        f"{name}_high": round(max(ratios), 3),
    }


def single_thread_environment(**more: str) -> dict[str, str]:
    """The environment variables of every timed process: one thread, and `more`."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **threads, **inherited(), **more}


def last_error_line(path: Path) -> str:
    """The last line of a program's standard error."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no error was printed"


class RunningProgram:
    """A started program."""

    def __init__(self, program: Program) -> None:
        handle, name = tempfile.mkstemp(prefix="flbench-speed-")
        self._errors = Path(name)
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            program.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            env=single_thread_environment(**program.env),
        )
        os.close(handle)

    def read_report(self, timeout: float | None = None) -> Row:
        """Read the next report.

        Args:
            timeout: seconds to wait for it; None = `TIMEOUT`.

        Raises:
            ProgramFailed: the program ended or timed out.
        """
        assert self._process.stdout is not None
        limit = TIMEOUT if timeout is None else max(0.0, timeout)
        if not select.select([self._process.stdout], [], [], limit)[0]:
            raise ProgramFailed(f"no report for {limit:.0f} s; {last_error_line(self._errors)}")
        line = self._process.stdout.readline()
        if not line:
            raise ProgramFailed(last_error_line(self._errors))
        report: Row = json.loads(line)
        return report

    def play_round(self, timeout: float | None = None) -> Row:
        """Let the program play a round; return its report, see `read_report`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b".")
            self._process.stdin.flush()
        except OSError:
            raise ProgramFailed(last_error_line(self._errors)) from None
        return self.read_report(timeout)

    def peak_mb(self) -> float | None:
        """Sum of the peak memory of its processes; None where /proc is missing."""
        peaks = []
        for pid in process_tree(self._process.pid):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                peaks += [int(ln.split()[1]) for ln in status.splitlines() if "VmHWM" in ln]
        return round(sum(peaks) / 1024, 1) if peaks else None

    def stop(self) -> None:
        """End the program and all processes that it started."""
        members = {pid: start_time(pid) for pid in process_tree(self._process.pid)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for pid, born in members.items():
            if start_time(pid) == born != "":  # the process id may have been reused
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._errors.unlink(missing_ok=True)


def process_tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def start_time(pid: int) -> str:
    """Start time of a process in clock ticks; "" if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


@contextlib.contextmanager
def _recording_failure(measurement: Measurement) -> Iterator[None]:
    try:
        yield
    except ProgramFailed as error:
        measurement.error = str(error)
