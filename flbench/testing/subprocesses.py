"""Call functions in fresh processes.

Each is forked from a server process that has imported the libraries of a run already, so it starts
at once.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from flbench.engine.processes.fork_server import Process, fork

PRELOADED = ["flbench.testing.small_run"]
"""What the server imports beside what a run needs."""

TIMEOUT = 120.0
"""Seconds to wait for a process."""


class ProcessFailed(Exception):
    """A process ended without a result; the text says how."""


def in_fresh_process(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - the result of the function
    """Call a module-level function in a fresh process; its result must be plain data.

    Raises:
        ProcessFailed: the function raised, the process died, or it took too long.
    """
    return _results([(function, arguments, {})])[0]


def in_process_group(function: Callable[..., Any], processes: int, *arguments: object) -> list[Any]:
    """Call a function in several processes that can join one process group, as under torchrun.

    Raises:
        ProcessFailed: one of the processes raised, died, or took too long.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    ranks = [{**address, "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return _results([(function, arguments, environment) for environment in ranks])


Call = tuple[Callable[..., Any], tuple[object, ...], dict[str, str]]


def _results(calls: Sequence[Call]) -> list[Any]:
    started: list[tuple[Process, Connection]] = []
    try:
        for call in calls:
            receiver, sender = multiprocessing.Pipe(duplex=False)
            process = fork(_work, sender, *call, preloaded=PRELOADED)
            sender.close()
            started.append((process, receiver))
        return [_result(process, receiver) for process, receiver in started]
    finally:
        for process, _ in started:
            process.kill()
            process.join()


def _result(process: Process, receiver: Connection) -> Any:  # noqa: ANN401 - any result
    if not receiver.poll(TIMEOUT):
        raise ProcessFailed(f"a process sent no result for {TIMEOUT:.0f} s")
    try:
        succeeded, result = receiver.recv()
    except EOFError:
        process.join(TIMEOUT)
        raise ProcessFailed(f"a process died (exit code {process.exitcode})") from None
    if not succeeded:
        raise ProcessFailed(result)
    return result


def _work(
    sender: Connection,
    function: Callable[..., Any],
    arguments: Sequence[object],
    environment: dict[str, str],
) -> None:
    """Run in a fresh process: call the function and send its result."""
    os.environ.update(environment)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    try:
        sender.send((True, function(*arguments)))
    except BaseException as error:
        sender.send((False, f"{type(error).__name__}: {error}"))
    sender.close()
