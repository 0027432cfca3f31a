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
from itertools import groupby
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
from flbench.submission.auditing import AuditAnswer, Checked, Task, known, play
from flbench.submission.verification import engine_of, limits_of
from flbench.sweeps.launchers import LANES, SEEDS
from flbench.sweeps.workers import (
    PRELOADED,
    as_many_as_fit,
    how_it_died,
    message,
    on_cpu,
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
    there = {log: read_audits(log) for log in logs} if audits else {}

    def asked() -> Iterator[Task | Checked]:
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
                row = result.fingerprint.config if engine.executor in LANES else ""
                limits = limits_of(result, engine)
                yield Task(path, name, wanted, tolerance, data_root, executor, row, limits, opened)
            else:
                for log in logs:
                    if earlier not in there[log]:
                        append_audit(log, earlier)
                yield Checked(path, earlier.outcome, earlier.how, None, earlier.digest)

    most = at_once(len(paths)) if workers is None else min(workers, len(paths))
    if most > 1:
        answers = play_apart(in_groups(asked()), most, console, measured=workers is None)
    else:
        answers = play_here(in_groups(asked()), console)
    for path, answer in answers:
        if isinstance(answer, Audit):
            for log in logs:
                append_audit(log, answer)
            answer = Checked(path, answer.outcome, answer.how, answer.seconds, answer.digest)
        yield answer


def in_groups(asked: Iterable[Task | Checked]) -> Iterator[list[Task] | Checked]:
    """Let neighbours that may share lanes be played together: seeds of one row."""

    def together(one: Task | Checked) -> object:
        if isinstance(one, Task) and one.row:
            return one.row, one.rounds, one.limits
        return object()

    for _, same in groupby(asked, together):
        some = list(same)
        tasks = [one for one in some if isinstance(one, Task)]
        for at in range(0, len(tasks), SEEDS):
            yield tasks[at : at + SEEDS]
        yield from (one for one in some if isinstance(one, Checked))


def play_here(
    groups: Iterator[list[Task] | Checked], console: Console
) -> Iterator[tuple[Path, AuditAnswer]]:
    """Run files again in this process, if they can be; the path of each with its answer."""
    for group in groups:
        if isinstance(group, Checked):
            yield group.path, group
        elif _begins_anew(group):
            yield from play_apart(iter([group]), 1, console, measured=False)
        else:
            yield from ((group[number].path, answer) for number, answer in play(group, console))


def _begins_anew(group: Sequence[Task]) -> bool:
    """Whether files that are played together need a process in which libraries are limited."""
    return not limited(group[0].limits)


def at_once(files: int) -> int:
    """How many files this machine may run at once, by its CPUs; one where they are not used."""
    return max(1, min(files, joblib.cpu_count() if on_cpu("auto") else 1))


def play_apart(
    groups: Iterator[list[Task] | Checked], most: int, console: Console, *, measured: bool
) -> Iterator[tuple[Path, AuditAnswer]]:
    """Run files again, several processes at once; the path of each with its answer, as they come.

    Args:
        groups: what is played together, or is answered already.
        most: how many processes there are at once.
        console: prints what they have to say, and the rounds where there is one at a time.
        measured: begin with one; the others follow when it has run a round, as many as its peak
            memory allows.
    """
    running: dict[Connection, tuple[BaseProcess, dict[int, Task]]] = {}
    wanted, more = 1 if measured else most, True
    try:
        while more or running:
            while more and len(running) < wanted:
                group = next(groups, None)
                if group is None:
                    more = False
                elif isinstance(group, Checked):
                    yield group.path, group
                else:
                    ours, theirs = multiprocessing.Pipe()
                    call = _play, theirs, os.getcwd(), group
                    if _begins_anew(group):
                        process: BaseProcess = spawn(*call, variables=group[0].limits)
                    else:
                        process = fork(*call, preloaded=PRELOADED)
                    theirs.close()
                    running[ours] = process, dict(enumerate(group))
            for pipe in wait(list(running)) if running else ():  # of none it would wait for ever
                assert isinstance(pipe, Connection)
                process, tasks = running[pipe]
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
                elif kind == "answer":
                    number, answer = what
                    console.close()
                    yield tasks.pop(number).path, answer
                elif kind == "died":  # at its end, or before it
                    del running[pipe]
                    pipe.close()
                    how = f"its process died ({how_it_died(what)})"
                    for task in tasks.values():
                        yield task.path, Checked(task.path, None, how, None)
    finally:
        console.close()
        for process, _ in running.values():
            process.kill()
            process.join()


def _play(pipe: Connection, folder: str, tasks: Sequence[Task]) -> None:
    """Run in the new process: run files again, in the folder of the command."""
    reporter = reporting(pipe)
    os.chdir(folder)
    for numbered in play(tasks, reporter):
        reporter.send("answer", numbered)
