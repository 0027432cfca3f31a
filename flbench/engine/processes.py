"""Output and exit codes of a command that runs as several processes.

Every process executes the same command. Rank 0 prints, calls the sinks and writes files; the others
print nothing. This module imports nothing heavy, so that their output is off before torch is
imported.
"""

from __future__ import annotations

import os
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
            yield
            _wait_for_children()
        finally:
            terminate_workers()
    else:
        with _no_output(parent=os.getppid()):
            yield


@contextmanager
def _no_output(parent: int) -> Iterator[None]:
    """Print nothing and turn errors into exit codes; if the parent died, raise `ProcessDied`."""
    with ExitStack() as stack:
        devnull = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(devnull))
        stack.enter_context(redirect_stderr(devnull))
        try:
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
