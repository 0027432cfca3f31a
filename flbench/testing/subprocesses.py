"""Fresh processes that start at once: each is forked from one that has imported torch already."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from types import ModuleType
from typing import Any

PATIENCE = 120.0
"""Seconds a process may take."""


class Failed(Exception):
    """A process ended without an answer; the text says how."""


def apart(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - its answer
    """Call a module-level function in a fresh process; its answer must be plain data.

    Raises:
        Failed: it raised, died, or took too long.
    """
    return _answers([(function, arguments, {})])[0]


def together(function: Callable[..., Any], processes: int, *arguments: object) -> list[Any]:
    """Call a function in several processes that can meet one another, as under torchrun.

    Raises:
        Failed: one of them raised, died, or took too long.
    """
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    ranks = [{**place, "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return _answers([(function, arguments, environment) for environment in ranks])


Call = tuple[Callable[..., Any], tuple[object, ...], dict[str, str]]


def _answers(calls: Sequence[Call]) -> list[Any]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["flbench.testing.small_run"])
    started: list[tuple[ForkServerProcess, Connection]] = []
    try:
        for call in calls:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(theirs, *call), daemon=True)
            with _nobodys_main():
                process.start()
            theirs.close()
            started.append((process, ours))
        return [_heard(process, ours) for process, ours in started]
    finally:
        for process, _ in started:
            process.kill()
            process.join()


@contextmanager
def _nobodys_main() -> Iterator[None]:
    """Let no fresh process run the script that this one runs: it may have no `__main__` guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _heard(process: ForkServerProcess, ours: Connection) -> Any:  # noqa: ANN401 - its answer
    if not ours.poll(PATIENCE):
        raise Failed(f"a process said nothing for {PATIENCE:.0f} s")
    try:
        good, answer = ours.recv()
    except EOFError:
        process.join(PATIENCE)
        raise Failed(f"a process died (exit code {process.exitcode})") from None
    if not good:
        raise Failed(answer)
    return answer


def _work(
    theirs: Connection,
    function: Callable[..., Any],
    arguments: Sequence[object],
    environment: dict[str, str],
) -> None:
    """What a fresh process does."""
    os.environ.update(environment)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to its end
    try:
        theirs.send((True, function(*arguments)))
    except BaseException as error:
        theirs.send((False, f"{type(error).__name__}: {error}"))
    theirs.close()
