"""The console: live progress bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich import progress
from rich.console import Console as Terminal
from rich.status import Status

from flbench.core.hookspecs import hookimpl
from flbench.errors import Interrupted, escaped
from flbench.results.events import RoundRecord, RunInfo
from flbench.results.schema import Result
from flbench.tasks import TASKS, Task


def terminal_of_errors() -> Terminal:
    """Standard error; it is a terminal only if a person looks at it.

    Kernels of notebooks and hosted CI set FORCE_COLOR, which rich takes for a terminal: bars would
    be drawn with codes that move a cursor.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    forced = None if is_terminal else False
    return Terminal(file=sys.stderr, force_terminal=forced, force_jupyter=False)


@contextmanager
def imports_stay(terminal: Terminal) -> Iterator[None]:
    """Import large packages, and say so in a terminal.

    Python looks for unused objects neither meanwhile nor, later on, among those of the packages.
    """
    status = terminal.status("importing torch and lightning")
    first = "torch" not in sys.modules and gc.isenabled()
    if first:
        gc.disable()
    try:
        with (
            status if terminal.is_terminal else nullcontext(),
            interruption_ends(terminal, status) if first else nullcontext(),
        ):
            yield
    finally:
        if first:
            gc.freeze()
            gc.enable()


@contextmanager
def interruption_ends(terminal: Terminal, status: Status) -> Iterator[None]:
    """Let Ctrl-C end the process at once: what torch's own code imports cannot be interrupted.

    Nothing has begun that could be lost. Nothing changes in a process that ignores Ctrl-C.
    """

    def end(number: int, frame: object) -> None:
        status.stop()
        os.write(terminal.file.fileno(), b"flbench: interrupted\n")
        os._exit(Interrupted.exit_code)

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    heeded = [one for one, handler in before.items() if callable(handler)]
    if threading.current_thread() is not threading.main_thread():
        heeded = []
    for one in heeded:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in heeded:
            signal.signal(one, before[one])


class Console:
    """Progress on standard error: round, headline (accuracy, RMSE, mAP), remaining time."""

    LINES = 10
    """Number of lines per run if standard error is not a terminal."""

    def __init__(self) -> None:
        self._terminal = terminal_of_errors()
        self._bar: progress.Progress | None = None
        self._began = 0.0
        self._first = 1
        self._headline = TASKS["classes"]
        self._shown = "-"

    def importing(self) -> AbstractContextManager[object]:
        """Import large packages, and say so in a terminal."""
        return imports_stay(self._terminal)

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Open the bar; that of a run that ended without a result is closed."""
        self.close()
        title = f"{info.method} on {info.suite} ({info.dataset}), seed {info.seed}"
        self._begin(info)
        if not self._terminal.is_terminal:
            self.tell(f"{title}: {info.rounds} rounds")
            return
        self._bar = self._progress(
            progress.TextColumn("{task.fields[headline]}"), progress.TimeRemainingColumn()
        )
        done = info.first - 1
        empty = headline_text(self._headline, "  -  ")
        self._bar.add_task(escaped(title), total=info.rounds, completed=done, headline=empty)
        self._show_bar()

    @hookimpl
    def round_finished(self, record: RoundRecord) -> None:
        """Advance the bar."""
        self._update(record)
        shown = headline_text(self._headline, self._shown)
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=record.round, headline=shown)
            return
        done, rounds = record.round * self.LINES, record.rounds
        if done // rounds == (done - self.LINES) // rounds:
            return
        self.tell(
            f"  round {record.round}/{record.rounds}  {shown}  {self._left(record):.0f} s left"
        )

    @hookimpl
    def run_finished(self, result: Result) -> None:
        """Close the bar."""
        self.close()

    def say(self, message: str) -> None:
        """Print a line above the bar."""
        self.tell(f"  note: {message}")

    def _progress(self, *columns: progress.ProgressColumn) -> progress.Progress:
        """Bars with a description, a count, and more columns."""
        first = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
        )
        return progress.Progress(*first, *columns, console=self._terminal)

    def _begin(self, info: RunInfo) -> None:
        """Remember when a run begins, and what it predicts."""
        self._began, self._first, self._shown = time.monotonic(), info.first, "-"
        self._headline = TASKS[info.task]

    def _update(self, record: RoundRecord) -> None:
        """Remember the latest headline; not every round is evaluated."""
        value = record.metrics.get(self._headline.headline)
        if value is not None:
            self._shown = f"{value:.3f}"

    def _left(self, record: RoundRecord) -> float:
        """Estimated seconds until the last round, from the mean of the rounds so far."""
        spent = time.monotonic() - self._began
        return spent / (record.round - self._first + 1) * (record.rounds - record.round)

    def tell(self, line: str) -> None:
        """Print a line without wrapping or markup; what a terminal would obey is written out."""
        line = escaped(line)
        self._terminal.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar, also when a run is interrupted."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if getattr(sys.breakpointhook, "__self__", None) is self:
            sys.breakpointhook = sys.__breakpointhook__

    def _show_bar(self) -> None:
        """Draw the bar. It is taken away when a debugger asks for the terminal (`breakpoint()`)."""
        assert self._bar is not None
        self._bar.start()
        if sys.breakpointhook is sys.__breakpointhook__ and not os.getenv("PYTHONBREAKPOINT"):
            sys.breakpointhook = self._debug

    def _debug(self, *_: object, **__: object) -> None:
        """Begin pdb where `breakpoint()` stands, without the bar and what it does to streams."""
        import pdb

        self.close()
        pdb.Pdb(stdout=self._terminal.file).set_trace(sys._getframe(1))


class SweepProgress(Console):
    """Progress of many runs: a line for each finished run, and bars in a terminal.

    The upper bar counts runs; below it, each current run has one for its rounds (`RunBar`). Where
    there is no terminal, as in a notebook, a line says from time to time how far a run is.
    """

    SILENT = 10.0
    """Most seconds without a line where there is no terminal, unless a round takes longer."""

    def __init__(self) -> None:
        super().__init__()
        self._waited = False
        self._said: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._total = self._before = 0
        self._opened = self._told = 0.0
        self._run = RunBar(self)

    def importing(self) -> AbstractContextManager[object]:
        """Import large packages, and say so the first time; later it takes no time."""
        first, self._waited = not self._waited, True
        return super().importing() if first else nullcontext()

    def say(self, message: str) -> None:
        """Print a message unless another run printed the same."""
        if message not in self._said:
            self._said.add(message)
            super().say(message)

    def tell(self, line: str) -> None:
        """Print a line, and remember when."""
        super().tell(line)
        self._told = time.monotonic()

    def is_silent(self) -> bool:
        """Whether nothing has said for some seconds how far the runs are."""
        return self._bar is None and time.monotonic() - self._told >= self.SILENT

    def open(self, counts: Mapping[str, int], total: int) -> None:
        """Show the bars; `counts` is outcome -> number of runs that are finished already."""
        self._counts, self._total, self._opened = Counter(counts), total, time.monotonic()
        self._before = self._counts.total()
        if self._terminal.is_terminal:
            self._bar = self._progress(progress.TextColumn("{task.fields[note]}"))
            self._bar.add_task("all", total=total, completed=self._before, note="")
            self._show_bar()

    def finished(self, title: str, what: str, rest: str) -> None:
        """Print a finished run's line and advance the upper bar; `what` is its outcome."""
        self._counts[what] += 1
        number = self._counts.total()
        spent = time.monotonic() - self._opened
        left = span(spent / (number - self._before) * (self._total - number))
        self.tell(f"cell {number}/{self._total}  {title}{rest}  {left} left")
        if self._bar is not None:
            self._run.close()
            counts = ", ".join(f"{count} {what}" for what, count in self._counts.items())
            self._bar.update(self._bar.task_ids[0], completed=number, note=f"{counts}  {left} left")

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Open the lower bar."""
        self._run.run_started(info)

    @hookimpl
    def round_finished(self, record: RoundRecord) -> None:
        """Advance the lower bar."""
        self._run.round_finished(record)

    @hookimpl
    def run_finished(self, result: Result) -> None:
        """Do nothing; `finished` follows."""


class RunBar(Console):
    """The bar of a run that a sweep plays; several runs have one each."""

    def __init__(self, sweep: SweepProgress) -> None:
        self._sweep = sweep
        self._task: progress.TaskID | None = None
        self._title = ""

    def run_started(self, info: RunInfo) -> None:
        """Open the bar."""
        self._begin(info)
        self.close()
        self._title = f"{info.method} on {info.suite}, seed {info.seed}"
        if (bar := self._sweep._bar) is not None:
            title = escaped(self._title)
            self._task = bar.add_task(title, total=info.rounds, completed=info.first - 1, note="")

    def round_finished(self, record: RoundRecord) -> None:
        """Advance the bar, or print a line if nothing else did for a while."""
        self._update(record)
        shown = headline_text(self._headline, self._shown)
        note = f"{shown}  {span(self._left(record))} left"
        if (bar := self._sweep._bar) is not None and self._task is not None:
            bar.update(self._task, completed=record.round, note=note)
        elif self._sweep.is_silent() and record.round < record.rounds:
            self._sweep.tell(f"  {self._title}: round {record.round}/{record.rounds}  {note}")

    def close(self) -> None:
        """Remove the bar."""
        if (bar := self._sweep._bar) is not None and self._task is not None:
            bar.remove_task(self._task)
        self._task = None


def headline_text(task: Task, number: str) -> str:
    """What a run's headline is, in words.

    Example:
        >>> headline_text(TASKS["numbers"], "0.412")
        'RMSE 0.412'
    """
    return f"{task.heading} {number}"


def span(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> span(12.4), span(200), span(7300)
        ('12 s', '3 min', '2 h 1 min')
    """
    minutes = int(seconds // 60)
    if minutes == 0:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
