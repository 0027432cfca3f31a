"""Running many result files again: what came of each is in a log at once, so that nothing is lost.

Several at once are each run in a process of its own. These are forked from a server that has
imported the libraries (`engine/processes/fork_server.py`), and report through a pipe, as the
workers of a sweep do (`sweeps/workers.py`). A process for a file that was computed portably, or
without instructions that this processor has, begins anew, as libraries are limited when they are
loaded.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import joblib

from flbench.engine.machine.instructions import limited
from flbench.engine.processes.fork_server import fork, spawn
from flbench.errors import FlbenchError, text_of
from flbench.results.audits import Audit, append_audit, name_of, read_audits
from flbench.results.files import read_result
from flbench.results.schema import Result
from flbench.submission.auditing import AuditAnswer, AuditTask, Checked, known, play
from flbench.submission.verification import engine_of, limits_of
from flbench.sweeps.launchers import on_cpu
from flbench.sweeps.workers import (
    PRELOADED,
    as_many_as_fit,
    how_it_died,
    message,
    reporting,
)
from flbench.terminal.console import Console


def verify_many(
    paths: Sequence[Path],
    audits: Sequence[Audit],
    logs: Sequence[Path],
    root: Path | None,
    *,
    rounds: Callable[[Result], int],
    tolerance: float,
    data_root: Path,
    console: Console,
    workers: int | None = 1,
    executor: str | None = None,
    opened: Sequence[str] = (),
) -> Generator[Checked, None, None]:
    """Run result files again, and append what came of each to logs.

    A file that an audit answers already is not run again; that audit is in the logs, too. What
    differs, or cannot be run, does not stop the others.

    Args:
        paths: result files.
        audits: what is known already.
        logs: where lines are appended.
        root: files are named below this folder in the logs; None = as they are given.
        rounds: how many of a result's rounds to play.
        tolerance: allowed distance of numbers.
        data_root: where data sets are.
        console: shows the progress.
        workers: how many are run at once, each in a process of its own if they are several; None =
            as many as the CPUs and the memory hold.
        executor: by which clients are trained, in place of the files'.
        opened: what a person lets the files open, see `trust.refuse_outside`.
    """
    there = {log: read_audits(log) for log in logs}  # also that each of them is a log

    def asked() -> Iterator[AuditTask | Checked]:
        for path in paths:
            try:
                result = read_result(path)
                wanted = rounds(result)
                earlier = known(audits, result, wanted, tolerance, executor)
            except FlbenchError as error:
                yield Checked(path, None, text_of(error), None)
                continue
            if earlier is None:
                name = name_of(path if root is None else path.relative_to(root))
                engine = engine_of(result, executor)
                limits = limits_of(result, engine)
                yield AuditTask(path, name, wanted, tolerance, data_root, executor, limits, opened)
            else:
                for log in logs:
                    if earlier not in there[log]:
                        append_audit(log, earlier)
                yield Checked.of(path, earlier, None)

    most = at_once(len(paths)) if workers is None else min(workers, len(paths))
    if most > 1:
        answers = play_apart(asked(), most, console, measured=workers is None)
    else:
        answers = play_here(asked(), console)
    for path, answer in answers:
        if isinstance(answer, Audit):
            for log in logs:
                append_audit(log, answer)
            answer = Checked.of(path, answer, answer.seconds)
        yield answer


def play_here(
    tasks: Iterable[AuditTask | Checked], console: Console
) -> Iterator[tuple[Path, AuditAnswer]]:
    """Run files again in this process, if they can be; the path of each with its answer."""
    for task in tasks:
        if isinstance(task, Checked):
            yield task.path, task
        elif limited(task.limits):
            yield task.path, play(task, console)
        else:
            yield from play_apart(iter([task]), 1, console, measured=False)


def at_once(files: int) -> int:
    """How many files this machine may run at once, by its CPUs; one where they are not used."""
    return max(1, min(files, joblib.cpu_count() if on_cpu("auto") else 1))


def play_apart(
    tasks: Iterator[AuditTask | Checked], most: int, console: Console, *, measured: bool
) -> Iterator[tuple[Path, AuditAnswer]]:
    """Run files again, several processes at once; the path of each with its answer, as they come.

    Args:
        tasks: files that are to be played, or are answered already.
        most: how many processes there are at once.
        console: prints what they have to say, and the rounds where there is one at a time.
        measured: begin with one; the others follow when it has run a round, as many as its peak
            memory allows.
    """
    running: dict[Connection, tuple[BaseProcess, Path]] = {}
    wanted, more = 1 if measured else most, True
    try:
        while more or running:
            while more and len(running) < wanted:
                task = next(tasks, None)
                if task is None:
                    more = False
                elif isinstance(task, Checked):
                    yield task.path, task
                else:
                    ours, theirs = multiprocessing.Pipe()
                    call = _play, theirs, os.getcwd(), task
                    if limited(task.limits):
                        process: BaseProcess = fork(*call, preloaded=PRELOADED)
                    else:  # its libraries must be limited before they are loaded
                        process = spawn(*call, variables=task.limits)
                    theirs.close()
                    running[ours] = process, task.path
            for pipe in wait(list(running)) if running else ():  # of none it would wait for ever
                assert isinstance(pipe, Connection)
                process, path = running[pipe]
                kind, what = message(process, pipe)
                if kind == "say":
                    console.say(what)
                elif kind == "line":
                    console.tell(what)
                elif kind == "run_started" and most == 1:  # of several the rounds would mix
                    console.run_started(what)
                elif kind == "round_finished" and most == 1:
                    console.round_finished(what)
                elif kind == "peak" and measured:
                    measured, wanted = False, as_many_as_fit(most, what, console.tell)
                elif kind in ("answer", "died"):
                    pipe.close()
                    process.join()
                    del running[pipe]
                    console.close()
                    how = "" if kind == "answer" else f"its process died ({how_it_died(what)})"
                    yield path, Checked(path, None, how, None) if how else what
    finally:
        console.close()
        for process, _ in running.values():
            process.kill()
            process.join()


def _play(pipe: Connection, folder: str, task: AuditTask) -> None:
    """Run in the new process: run a file again, in the folder of the command."""
    reporter = reporting(pipe)
    os.chdir(folder)
    reporter.send("answer", play(task, reporter))
