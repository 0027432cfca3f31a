"""Output and exit codes of a command that runs as several processes.

Every process executes the same command. Rank 0 prints, calls the sinks and writes files; the others
print nothing. This module imports nothing heavy, so that the others are started, and their output
is off, before torch is imported.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout

from flbench.errors import FlbenchError, Interrupted, ProcessDied

NUMBERS = (
    "RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK",
)  # fmt: skip
"""Environment variables in which launchers give the rank; all of them are 0 for rank 0."""
CHILDREN: list[subprocess.Popen[bytes]] = []
"""The processes that this process started."""
GRACE = 10.0
"""Seconds that a process has to end before it is killed."""
LAUNCHERS = (
    "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_", "LT_CLI_", "SLURM_",
    "TORCHELASTIC_", "OMPI_", "PMI", "MPI_", "LSB_", "JSM_", "KUBERNETES_",
)  # fmt: skip
"""How environment variables begin by which a launcher may have started the other processes."""
STARTED_BY = "FLBENCH_STARTED_BY"
"""Environment variable with the number of the process that started this one."""
EACH_CORE = 8
"""Processes that may be started for each core of this machine; each has torch in its memory."""


def most_processes() -> int:
    """How many processes a run may have on this machine."""
    return EACH_CORE * (os.cpu_count() or 1)


def is_rank_zero(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process has rank 0, by the environment variables of its launcher."""
    return all(environ.get(name, "0") == "0" for name in NUMBERS)


@contextmanager
def rank_zero_output(devices: int, nodes: int) -> Iterator[None]:
    """Run a command that may have several processes, with output from rank 0 only.

    The other processes print nothing within the block, and an error ends them with its exit code.
    All processes that this process started have ended after the block.
    """
    if devices * nodes == 1:
        yield
    elif is_rank_zero():
        try:
            if nodes == 1:
                start_workers(devices)
            yield
            _wait_for_children()
        finally:
            terminate_workers()
    else:
        with _no_output(parent=os.getppid()):
            yield


def start_workers(devices: int) -> None:
    """Start the other processes of this command, which import torch while this process does.

    None is started if a launcher may have done so, if there would be too many, or if it is not the
    command line that asks for them. Fabric then starts them, or says what is wrong.
    """
    begun = any(name.startswith(LAUNCHERS) for name in os.environ)
    asked = any(word.startswith("--devices") for word in sys.argv)
    if begun or not asked or devices > most_processes():
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(devices)}
    spec = sys.modules["__main__"].__spec__
    command = ["-m", spec.name] if spec else [os.path.abspath(sys.argv[0])]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until its output is off
    try:
        for rank in range(1, devices):
            environ = {**os.environ, "LOCAL_RANK": str(rank), STARTED_BY: str(os.getpid())}
            child = subprocess.Popen([sys.executable, *command, *sys.argv[1:]], env=environ)
            CHILDREN.append(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def parent_is_gone() -> bool:
    """Whether the process that started this one has ended; False if a launcher started it."""
    parent = os.environ.get(STARTED_BY)
    return parent is not None and os.getppid() != int(parent)


@contextmanager
def _no_output(parent: int) -> Iterator[None]:
    """Print nothing and turn errors into exit codes; if the parent died, raise `ProcessDied`."""
    with ExitStack() as stack:
        devnull = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(devnull))
        stack.enter_context(redirect_stderr(devnull))
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            yield
        except FlbenchError as error:
            if isinstance(error, ProcessDied) and _parent_died(parent):
                raise
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(Interrupted.exit_code)


def _parent_died(parent: int, patience: float = 1.0) -> bool:
    """Whether the parent process is gone; wait for it, because its sockets close before it ends."""
    end = time.monotonic() + patience
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.02)
    return os.getppid() != parent


def _wait_for_children() -> None:
    """Wait until the processes that this process started end, at most GRACE seconds for all."""
    end = time.monotonic() + GRACE
    for child in CHILDREN:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def terminate_workers() -> None:
    """End the processes that this process started; kill those that do not end in time."""
    for child in CHILDREN:
        if child.poll() is None:
            child.terminate()
    _wait_for_children()
    for child in CHILDREN:
        if child.poll() is None:
            child.kill()
            child.wait()
    CHILDREN.clear()
