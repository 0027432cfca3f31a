"""Kill runs and sweeps, type what the user would type, and compare with undisturbed runs.

A fault is one signal or power cut at a random moment, at a file operation, or while a client trains
in a stage. What a run needs is imported once (`fork_server.py`), so a run takes a second.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from fault_record import Fault

from flbench.engine.processes import own_process
from flbench.results.files import files_below
from flbench.results.schema import VOLATILE

HERE = Path(__file__).resolve().parent
SUITE = """
version = 1
summary = "small, to be killed"
dataset = "digits"
clients = 8
participation = 0.5
rounds = 24
partition = {name = "label-groups", groups = 2}
model = {name = "mlp", hidden = 16}
local = {epochs = 1, batch_size = 32, lr = 0.1}
"""
TRIALS = ("t_start=2", "tau=1", "window=1", "t_obs=1", "t_sp=1", "threshold=1.0")
METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "scaffold": (),
    "pfedlia": ("warmup=8",),
    "dc-pfl": TRIALS,
    "ifca": (),
    "fedproto": (),
    "fesem": ("k=2", "fit_round=8"),
    "cfl": ("eps1=9", "eps2=0", "start_round=6"),
    "fedrep": (),
    "local-only": (),
}
"""Methods and their settings; their states have different tables and memories."""
SIGNALS = ("kill", "term", "int", "int twice", "cut", "lenient cut")
STAGES = {"pfedlia": "probe", "dc-pfl": "trial"}
MODES = ("run",) * 14 + ("sweep",) * 4 + ("again",) + ("two",)
"""How often each: a run, a sweep of four cells, a run that is forced, a run of two processes."""
SWEEPS = ("sweep", "ray")
PLAIN = {"again": "run", "four": "alone", "ray": "sweep"}
"""What they must give the same results as."""
AGAIN = {"four": "alone", "ray": "sweep"}
"""How half of them are typed again: in one process, where the number changes no bit (`alone`)."""
FURTHER = 72
"""Faults of runs of four processes, and of sweeps of two workers of Ray, which take longer."""
LANES = 60
"""Faults of runs of three seeds in lanes."""
OF_SEVERAL = ("kill", "main kill", "other kill", "term", "int", "int twice")
"""What is sent to them: to all, to the process that was typed, or to one that it started."""
AGENT = "Agent"
MARK = "FLBENCH_FAULT"
"""A variable in the environment of every process of a command."""
LINE = re.compile(r"Traceback|ignored in|Error:")


def names(count: int) -> list[str]:
    """The faults; each number has a method, a mode, a signal and a moment of its own."""
    found = []
    for number in range(count):
        rng = Random(number)
        method, mode = rng.choice(list(METHODS)), rng.choice(MODES)
        sent = rng.choice(SIGNALS[:4] if mode == "two" else SIGNALS)
        moments = ["time", "file", "file"] if mode != "two" else ["time"]
        if method in STAGES and mode in ("run", "again"):
            moments += [STAGES[method]] * 2
        found.append(f"{mode}/{method}/{sent}/{rng.choice(moments)}/{number}")
    for number in range(LANES):
        rng = Random(f"lanes {number}")
        at = rng.choice(["time", "file", "file"])
        found.append(f"lanes/{rng.choice(list(METHODS))}/{rng.choice(SIGNALS)}/{at}/{number}")
    for number in sorted(range(FURTHER), key=lambda number: number % 6 == 5):  # Ray last
        rng = Random(f"further {number}")
        method, mode = rng.choice(list(METHODS)), "ray" if number % 6 == 5 else "four"
        sent = OF_SEVERAL[(number // 6 + number) % 6]
        found.append(f"{mode}/{method}/{sent}/begun/{number}")
    return found


SEARCHED = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
"""Folders in which the server looks for modules, as this process does."""


@dataclass
class Server:
    """The process that forks; see `fork_server.py`."""

    process: subprocess.Popen[str] = field(
        default_factory=lambda: subprocess.Popen(
            [sys.executable, str(HERE / "fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(HERE), *SEARCHED]),
                "OMP_NUM_THREADS": "1",
                own_process.MARK: "1",  # as that of a command
            },
        )
    )

    def begin(self, **asked: Any) -> int:
        """Begin a command; returns its process."""
        assert self.process.stdin is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        return int(self._answer())

    def end(self) -> int:
        """Wait for the end of the command; returns its exit code, negative for a signal."""
        return int(self._answer())

    def close(self) -> None:
        """End the server, which ends when there is nothing more to read."""
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@cache
def server() -> Server:
    """The one server of this process."""
    started = Server()
    atexit.register(started.close)
    return started


@dataclass(frozen=True)
class Place:
    """Where the runs of a case are: a folder for them, and notes beside it."""

    root: Path

    @property
    def runs(self) -> Path:
        """The working directory of the commands."""
        return self.root / "runs"

    @property
    def notes(self) -> Path:
        """What was written and loaded, and beside it what was printed."""
        return self.root / "notes"

    def type(self, *arguments: str, fault: dict[str, Any] | None = None, share: int = 50) -> Ended:
        """Type a command, and let the fault happen to it."""
        fault = fault or {}
        began = time.monotonic()
        sent = True
        outside = fault.get("at") in ("time", "begun") and "cut" not in fault["signal"]
        process = server().begin(
            folder=str(self.runs), notes=str(self.notes), share=share,
            arguments=[str(Path(sys.executable).with_name("flbench")), *arguments],
            fault={**fault, "at": "outside"} if outside else fault,
        )  # fmt: skip
        if outside:
            while (
                fault["at"] == "begun" and alive(process) and not files_below(self.runs, "seed-*")
            ):
                time.sleep(0.02)
            time.sleep(fault["when"])
            sent = send(process, fault["signal"], others_of(process, str(self.notes)))
        code = server().end()
        messages = Path(f"{self.notes}.err").read_text(encoding="utf-8", errors="replace")
        return Ended(code, messages, time.monotonic() - began, process, sent)

    def noted(self, what: str) -> dict[str, int]:
        """The last round that was finished, written or loaded, by checkpoint."""
        if not self.notes.is_file():
            return {}
        rows = [json.loads(line) for line in self.notes.read_text().splitlines()]
        return {path: round_ for said, path, round_ in rows if said == what}

    def results(self) -> dict[str, dict[str, Any]]:
        """The results without what differs between equal runs, by path."""
        found = {}
        for path in sorted(self.runs.rglob("seed-*.json")):
            table = json.loads(path.read_text(encoding="utf-8"))
            found[path.relative_to(self.runs).as_posix()] = {
                key: value for key, value in table.items() if key not in VOLATILE
            }
        return found

    def others(self) -> list[str]:
        """Files that are no results."""
        kept = re.compile(r"seed-\d+\.json|toy\.toml")
        files = [path for path in self.runs.rglob("*") if path.is_file()]
        return sorted(path.name for path in files if not kept.fullmatch(path.name))


@dataclass(frozen=True)
class Ended:
    """A command that has ended; `sent` = the signal from outside met a process."""

    code: int
    messages: str
    seconds: float
    process: int
    sent: bool


def alive(process: int) -> bool:
    """Whether a process has not ended."""
    return Path(f"/proc/{process}").exists()


def others_of(process: int, mark: str) -> list[int]:
    """The processes that a command has started: by group, or the mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        one = int(path.name)
        try:
            marked = f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0")
            ended = ") Z " in (path / "stat").read_text()
            if one != process and not ended and (marked or os.getpgid(one) == process):
                found.append(one)
        except OSError:  # it has ended
            continue
    return found


def working(processes: list[int]) -> list[int]:
    """Those that compute: not the processes of Ray beside its workers."""
    return [one for one in processes if re.search(r"--devices|ray::run", title_of(one))]


def left_by(process: int, mark: str, seconds: float = 30) -> list[str]:
    """Wait for the processes of a command that has ended; those that stay are killed and named.

    Agents of Ray that collect statistics may stay if Ray was killed while it began.
    """
    end, left = time.monotonic() + seconds, {0: ""}
    while any(AGENT not in title for title in left.values()) and time.monotonic() < end:
        time.sleep(0.1)
        left = {one: title_of(one) for one in others_of(process, mark)}
    for one in filter(alive, left):
        os.kill(one, signal.SIGKILL)
    return [title for title in left.values() if AGENT not in title]


def title_of(process: int) -> str:
    """The words of a process."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text().strip("\0")
    except OSError:  # it has ended
        return AGENT


def send(process: int, name: str, others: list[int]) -> bool:
    """Send a signal to a process and those that it started, to one of them, or twice to all.

    Returns:
        Whether there was a process to send it to, or the command has ended.
    """
    if name in ("main kill", "other kill"):
        chosen = [process] if name == "main kill" else working(others)[:1]
        for one in chosen:
            os.kill(one, signal.SIGKILL)
        return bool(chosen) or not alive(process)
    number = {"kill": signal.SIGKILL, "term": signal.SIGTERM}.get(name, signal.SIGINT)
    for _ in range(2 if name == "int twice" else 1):
        try:
            os.killpg(process, number)
        except ProcessLookupError:  # it has ended
            return True
        time.sleep(0.003)
    return True


def begun(place: Place, what: str) -> dict[str, int]:
    """The last round that was finished or written, of each run that has no result yet."""
    found = place.noted(what)
    return {path: r for path, r in found.items() if not result_of(Path(path)).is_file()}


def result_of(checkpoint: Path) -> Path:
    """Where the result of a checkpoint lies."""
    return checkpoint.with_name(f"{checkpoint.name.partition('.')[0]}.json")


def command(mode: str, method: str) -> list[str]:
    """What is typed."""
    words = ["sweep" if mode in SWEEPS else "run", "-s", "toy.toml"]
    if mode in SWEEPS:
        words += ["-p", f"{method},oracle", "--seeds", "2"]
        launcher = ["--launcher", "ray", "--workers", "2"] if mode == "ray" else ["--workers", "1"]
        words += launcher  # of local workers see tests/sweeps/test_workers.py
    else:
        words += ["-p", method]
        words += ["--seeds", "3", "--executor", "vectorised"] if mode == "lanes" else []
        words += ["--executor", "sequential"] if mode in ("alone", "four") else []
    for setting in METHODS[method]:
        words += ["--set", f"{method}.{setting}"]
    processes = {"two": "2", "four": "4"}.get(mode)
    return words + (["--devices", processes, "--accelerator", "cpu"] if processes else [])


def fresh(root: Path) -> Place:
    """A place with the suite."""
    place = Place(root)
    place.runs.mkdir()
    (place.runs / "toy.toml").write_text(SUITE, encoding="utf-8")
    return place


@cache
def undisturbed(mode: str, method: str) -> tuple[Path, float]:
    """A folder with the results of a command that nothing happens to, and how long it takes."""
    root = Path(tempfile.mkdtemp(prefix="flbench-faults-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    place = fresh(root)
    ended = place.type(*command(mode, method))
    assert ended.code == 0, ended.messages
    return root, ended.seconds


def inject(name: str) -> Fault:
    """Kill a command, type it again, and compare with the undisturbed results."""
    mode, method, sent, at, number = name.split("/")
    rng = Random(crc32(name.encode()))
    whole, seconds = undisturbed(PLAIN.get(mode, mode), method)
    when = {"time": rng.uniform(0, 1.1 * seconds), "file": float(rng.randint(1, 60))}
    fault = {"signal": sent, "at": at, "number": int(number)}
    fault["when"] = rng.uniform(0, 1) if at == "begun" else when.get(at, float(rng.randint(1, 12)))
    with tempfile.TemporaryDirectory(prefix="flbench-faults-", ignore_cleanup_errors=True) as root:
        place = fresh(Path(root))
        if mode == "again":
            shutil.copytree(whole / "runs", place.runs, dirs_exist_ok=True)
        words = command(mode, method)
        forced = ["--force"] if mode == "again" else []
        killed = place.type(*words, *forced, fault=fault, share=rng.choice([0, 50]))
        kept, finished = begun(place, "written"), begun(place, "finished")
        running = left_by(killed.process, str(place.notes))
        before = set(place.others())
        words = command(rng.choice([mode, AGAIN.get(mode, mode)]), method)
        ended = place.type(*words, *([] if mode in SWEEPS else ["--resume"]))
        running += left_by(ended.process, str(place.notes))
        loaded = place.noted("loaded")
        results, expected = place.results(), Place(whole).results()
        left = place.others()
    lost = sum(
        len(str(expected.get(path, {}).get(key)))
        for path in {*results, *expected}
        for key in {*expected.get(path, {}), *results.get(path, {})}
        if expected.get(path, {}).get(key) != results.get(path, {}).get(key)
    )
    wrong, message = "", killed.messages[-400:]
    if LINE.search(killed.messages):
        wrong = "more than one line"
    elif not killed.sent:
        wrong = "nothing was killed"
    elif ended.code != 0 or LINE.search(ended.messages):
        wrong, message = "not resumed", ended.messages[-400:]
    elif running:
        wrong, message = "processes are left", str(running)
    elif mode == "ray" and sent == "other kill" and killed.code != 0:
        wrong = "not retried"
    elif lost:
        wrong = "another result"
    elif left:
        wrong, message = "something is left", f"{left}, before {sorted(before)}"
    elif behind := {path: r for path, r in kept.items() if loaded.get(path, 0) < r}:
        wrong, message = "a checkpoint is lost", str(behind)
    outcome = "complete before" if killed.code == 0 else "resumed" if loaded else "from the start"
    rounds = sum(round_ - loaded.get(path, 0) for path, round_ in finished.items())
    return Fault(name, f"{mode}, {sent}", outcome, wrong, lost, rounds, message if wrong else "")
