"""Worker processes of this machine; each plays cells, one after the other.

They are forked from a server that has imported the libraries (`engine/processes/fork_server.py`).
A worker gets the request of a cell as text, as one of a Ray cluster does, and reports through a
pipe what the console would show. A person's stop concerns the sweep alone: it asks the workers to
stop with SIGTERM, and they keep the last whole round. A worker whose sweep has died ends at once.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stderr, suppress
from dataclasses import dataclass, replace
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Lock, Thread
from typing import Any

import joblib

from flbench.core.free_memory import free_memory, half_of_free
from flbench.core.hookspecs import hookimpl
from flbench.engine.processes.fork_server import Process, fork, start_server
from flbench.results.events import RoundRecord, RunInfo
from flbench.sweeps.launchers import (
    FAILED,
    RETRIES,
    Outcome,
    OutcomeGenerator,
    on_cpu,
    raise_lost_interruptions,
    run_locally,
    run_request,
    sources_of,
    stoppable,
)
from flbench.sweeps.request import Cell
from flbench.tasks import TASKS
from flbench.terminal.console import Console, RunBar, SweepProgress

PRELOADED = ["flbench.sweeps.workers"]
"""What the server imports beside what a run needs."""
HEADROOM = 1.25
"""A cell may come to need so many times the memory that it needed for its first round."""
REFRESH = 0.1
"""Seconds between two reports of rounds."""
UNIT = 1 if sys.platform == "darwin" else 2**10
"""Bytes in which the system counts the peak memory of a process."""
GB = 2**30


def prepare_workers(workers: int | None) -> None:
    """Import in the background what workers need, if there may be several."""
    if (workers or joblib.cpu_count()) > 1:
        start_server(PRELOADED)


def run_in_workers(
    cells: Sequence[Cell], progress: SweepProgress, workers: int | None = None
) -> OutcomeGenerator:
    """Run cells in worker processes, or in this one if there would be only one worker.

    Args:
        workers: how many; None = as many as the CPUs and the memory hold.
    """
    most = at_once(cells) if workers is None else min(workers, len(cells))
    if most == 1:
        return run_locally(cells)
    return Crew(cells, progress, most, measured=workers is None).run()


def at_once(cells: Sequence[Cell]) -> int:
    """How many cells this machine may run at once, by its CPUs; one where they are not used."""
    engine = cells[0].spec.engine
    cpus = joblib.cpu_count() if on_cpu(engine.accelerator) else 1
    return max(1, min(len(cells), cpus // engine.threads))


def fitting(most: int, peak: int, free: int | None) -> int:
    """How many of `most` workers fit into memory; one has begun, and has taken `peak` bytes.

    Example:
        >>> fitting(8, peak=1000, free=2600), fitting(8, peak=1000, free=100)
        (3, 1)
    """
    return most if free is None else min(most, 1 + max(0, int(free / (HEADROOM * peak))))


def as_many_as_fit(most: int, peak: int, tell: Callable[[str], None]) -> int:
    """How many of `most` workers fit into memory (`fitting`); a line says so."""
    free = free_memory()
    wanted = fitting(most, peak, free)
    there = "unknown memory" if free is None else f"{free / GB:.1f} GB of memory"
    tell(f"workers: {wanted} of at most {most} (one takes {peak / GB:.1f} GB, {there} free)")
    return wanted


# --- the sweep ------------------------------------------------------------------------------------


@dataclass(eq=False)
class Worker:
    """A worker as the sweep sees it; `cell` is the one that it runs."""

    process: Process
    pipe: Connection
    bar: RunBar
    cell: Cell | None = None

    def message(self) -> tuple[str, Any]:
        """What it reports next; see `message`."""
        return message(self.process, self.pipe)


def message(process: BaseProcess, pipe: Connection) -> tuple[str, Any]:
    """What a process reports next; "died" and its exit code if it is no more."""
    try:
        kind, what = pipe.recv()
    except (EOFError, OSError):
        process.join()
        return "died", process.exitcode
    return kind, what


def how_it_died(code: int) -> str:
    """The exit code of a process in words.

    Example:
        >>> how_it_died(-9), how_it_died(3)
        ('signal 9', 'exit code 3')
    """
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class Crew:
    """The workers of a sweep, and the cells that wait.

    Attributes:
        waiting: cells, the next ones first.
        budget: bytes that all workers may have for models, where nothing else is asked.

    Args:
        most: how many workers there may be.
        measured: begin with one; the others follow when it has run a round, as many as its peak
            memory allows.
    """

    def __init__(
        self, cells: Sequence[Cell], progress: SweepProgress, most: int, *, measured: bool
    ) -> None:
        self.waiting = deque(cells)
        self.progress, self.most = progress, most
        self.budget = half_of_free()
        self.workers: list[Worker] = []
        self.wanted = 1 if measured else most
        self.measured = measured
        self.deaths: Counter[Cell] = Counter()

    def run(self) -> OutcomeGenerator:
        """Run the cells; those whose worker dies go on in another one, RETRIES times."""
        with stoppable():
            try:
                while self.waiting or any(one.cell for one in self.workers):
                    self.occupy()
                    pipes = {one.pipe: one for one in self.workers}
                    for pipe in connection.wait(list(pipes)):
                        yield from self.heard(pipes[pipe])  # type: ignore[index]
            finally:
                self.dismiss()

    def occupy(self) -> None:
        """Give waiting cells to idle workers; start workers while there are fewer than wanted."""
        while self.waiting:
            idle = [one for one in self.workers if one.cell is None]
            if not idle and len(self.workers) >= self.wanted:
                return
            worker = idle[0] if idle else self.started()
            worker.cell = cell = self.waiting.popleft()
            with suppress(ConnectionError):  # it has died, which is its next message
                worker.pipe.send((self.request_of(cell), sources_of(cell.spec)))

    def started(self) -> Worker:
        """A new worker."""
        ours, theirs = multiprocessing.Pipe()
        process = fork(serve, theirs, preloaded=PRELOADED)
        theirs.close()
        self.workers.append(Worker(process, ours, RunBar(self.progress)))
        return self.workers[-1]

    def request_of(self, cell: Cell) -> str:
        """The request of a cell as text; workers on CPUs have the memory for models together."""
        engine = cell.request.engine
        if engine.bank_budget is None and on_cpu(engine.accelerator):
            engine = replace(engine, bank_budget=self.budget // self.most)
        return replace(cell.request, engine=engine).to_json()

    def heard(self, worker: Worker) -> Iterator[tuple[Cell, Outcome]]:
        """Act on the next message of a worker; gives the outcome of its cell if there is one."""
        kind, what = worker.message()
        if kind == "peak":
            self.settle(what)
        elif kind == "say":
            self.progress.say(what)
        elif kind == "line":
            self.progress.tell(what)
        elif kind == "run_started":
            worker.bar.run_started(what)
        elif kind == "round_finished":
            worker.bar.round_finished(what)
        elif kind == "died":
            worker.bar.close()
            yield from self.lost(worker, what)
        else:  # "outcome"
            worker.bar.close()
            cell, worker.cell = worker.cell, None
            assert cell is not None, "it runs one"
            yield cell, what

    def settle(self, peak: int) -> None:
        """Decide how many workers there are, by the peak memory of the first in its first round."""
        if self.measured:
            self.measured = False
            self.wanted = as_many_as_fit(self.most, peak, self.progress.tell)

    def lost(self, worker: Worker, code: int) -> Iterator[tuple[Cell, Outcome]]:
        """A worker has died: its cell goes on in another one, or fails.

        SIGKILL is what the system sends if memory is not there: the next worker is one fewer.
        """
        self.workers.remove(worker)
        if code == -signal.SIGKILL:
            self.wanted = max(1, self.wanted - 1)
        cell, how = worker.cell, how_it_died(code)
        if cell is None:
            return
        self.deaths[cell] += 1
        if self.deaths[cell] > RETRIES:
            why = f"its worker died ({how}), the last of {self.deaths[cell]}"
            yield cell, Outcome(FAILED, why, 1, cell.spec.title, cell.spec.path)
            return
        self.progress.tell(f"{cell.title}: its worker died ({how}); it goes on in another one")
        self.waiting.appendleft(cell)

    def dismiss(self) -> None:
        """End all workers; those that run a cell keep its last whole round. May be interrupted."""
        try:
            for one in self.workers:
                if one.cell is not None:
                    one.process.terminate()
                one.pipe.close()
            for one in self.workers:
                one.process.join()
        finally:
            for one in self.workers:
                one.process.kill()
                one.process.join()


# --- a worker -------------------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """Run in a worker: run the cells that come, until there are no more."""
    reporter = reporting(pipe)
    raise_lost_interruptions()
    try:
        signal.signal(signal.SIGTERM, _stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        while True:
            request, sources = pipe.recv()
            reporter.send("outcome", run_request(request, sources, reporter))
    except (EOFError, ConnectionError, KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing interrupts what keeps the last round
    raise KeyboardInterrupt


def reporting(pipe: Connection) -> WorkerConsole:
    """Report all that this process prints, from now on; it ends when its parent has ended."""
    Thread(target=_end_with_parent, daemon=True).start()
    reporter = WorkerConsole(pipe)
    sys.stdout = sys.stderr = reporter.lines
    return reporter


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, however it did."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class WorkerConsole(Console):
    """The console of a worker: what it should show goes to the sweep."""

    def __init__(self, pipe: Connection) -> None:
        self.lines = Lines(self)
        self._pipe, self._sending = pipe, Lock()
        self._reported = 0.0
        self._measured = False

    def send(self, kind: str, what: object) -> None:
        """Send a message, unless nobody listens any more."""
        with self._sending, suppress(ConnectionError):
            self._pipe.send((kind, what))

    def importing(self) -> AbstractContextManager[object]:
        """Print nothing while plugins are imported: the sweep has done so before."""
        return redirect_stderr(io.StringIO())

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Pass it on."""
        self._measured = False
        self.send("run_started", info)

    @hookimpl
    def round_finished(self, record: RoundRecord) -> None:
        """Pass on what a bar shows of a round; of short rounds, not all."""
        now = time.monotonic()
        if not self._measured:
            self._measured = True
            self.send("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT)
        if now - self._reported >= REFRESH:
            self._reported = now
            headlines = {task.headline for task in TASKS.values()}
            shown = {k: v for k, v in record.metrics.items() if k in headlines}
            self.send("round_finished", RoundRecord(record.round, record.rounds, shown))

    @hookimpl
    def run_finished(self, result: object) -> None:
        """Do nothing; the outcome follows."""

    def say(self, message: str) -> None:
        """Pass a message on."""
        self.send("say", message)

    def close(self) -> None:
        """Do nothing: it shows nothing itself."""


class Lines(io.TextIOBase):
    """Standard output and error of a worker: the sweep prints its lines."""

    def __init__(self, reporter: WorkerConsole) -> None:
        self._reporter, self._rest = reporter, ""

    def write(self, text: str) -> int:
        """Send the lines that are complete."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._reporter.send("line", line)
        return len(text)

    def fileno(self) -> int:
        """That of standard error, for processes that a plugin starts."""
        return 2
