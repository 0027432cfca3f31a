"""The console: a live progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flbench.hookspecs import hookimpl
from flbench.results import Result, RoundRecord, RunInfo


class Console:
    """Progress on standard error: round, accuracy, time left."""

    LINES = 10
    """Plain lines per run where there is no terminal."""

    def __init__(self) -> None:
        self._terminal = Terminal(file=sys.stderr)
        self._bar: Progress | None = None
        self._title = ""
        self._began = 0.0
        self._first = 1
        self._accuracy = "-"

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Show in a terminal what a person is waiting for."""
        return self._terminal.status(what) if self._terminal.is_terminal else nullcontext()

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Open the bar."""
        self._title = f"{info.method} on {info.suite} ({info.dataset}), seed {info.seed}"
        self._began, self._first, self._accuracy = time.monotonic(), info.first, "-"
        if not self._terminal.is_terminal:
            self._print(f"{self._title}: {info.rounds} rounds")
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TimeRemainingColumn(),
            console=self._terminal,
        )
        self._bar.add_task(
            self._title, total=info.rounds, completed=info.first - 1, accuracy="  -  "
        )
        self._bar.start()

    @hookimpl
    def round_finished(self, record: RoundRecord) -> None:
        """Move the bar."""
        accuracy = record.metrics.get("accuracy")
        if accuracy is not None:
            self._accuracy = f"{accuracy:.3f}"
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=record.round, accuracy=self._accuracy)
            return
        done, rounds = record.round * self.LINES, record.rounds
        if done // rounds == (done - self.LINES) // rounds:
            return
        spent = time.monotonic() - self._began
        left = spent / (record.round - self._first + 1) * (record.rounds - record.round)
        self._print(
            f"  round {record.round}/{record.rounds}  accuracy {self._accuracy}  {left:.0f} s left"
        )

    @hookimpl
    def run_finished(self, result: Result) -> None:
        """Close the bar."""
        self.close()

    def say(self, message: str) -> None:
        """Print a line above the bar."""
        self._print(f"  note: {message}")

    def _print(self, line: str) -> None:
        """Print one line as it is, however long."""
        self._terminal.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal clean, also when a run is stopped."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
