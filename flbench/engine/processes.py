"""Company: one command that runs as several processes, of which one speaks.

Every process executes the same command. The first one prints, tells the sinks and writes files; the
others are silent. Nothing heavy is imported here, so that silence can begin before torch is there.
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
"""Where launchers say which process this is; the first one is 0 by all of them."""


CHILDREN: list[subprocess.Popen[bytes]] = []
"""The processes that this one started."""


GRACE = 10.0
"""Seconds a process gets to end by itself, before it is killed."""


def is_rank_zero(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is the process that speaks."""
    return all(environ.get(name, "0") == "0" for name in NUMBERS)


@contextmanager
def rank_zero_output(devices: int, nodes: int) -> Iterator[None]:
    """Surround a command that may run as several processes.

    All but the first are silent within and leave with the exit code of what was raised. None of
    the processes that were started here outlives the block.

    Args:
        devices: processes of each machine.
        nodes: machines.
    """
    if devices * nodes == 1:
        yield
    elif is_rank_zero():
        try:
            yield
            _wait_for(CHILDREN)
        finally:
            terminate_workers()
    else:
        with _silence(parent=os.getppid()):
            yield


@contextmanager
def _silence(parent: int) -> Iterator[None]:
    """Say nothing; what is raised becomes an exit code, unless nobody else is left to report it."""
    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(nowhere))
        stack.enter_context(redirect_stderr(nowhere))
        try:
            yield
        except FlbenchError as error:
            if isinstance(error, ProcessDied) and _orphaned(parent):
                raise
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(Interrupted.exit_code)


def _orphaned(parent: int, patience: float = 1.0) -> bool:
    """Whether the process that started this one is gone; it closes its sockets a little earlier."""
    end = time.monotonic() + patience
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.02)
    return os.getppid() != parent


def _wait_for(children: list[subprocess.Popen[bytes]]) -> None:
    """Let processes end by themselves."""
    end = time.monotonic() + GRACE
    for child in children:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def terminate_workers() -> None:
    """End the processes that this one started."""
    for child in CHILDREN:
        if child.poll() is None:
            child.terminate()
    _wait_for(CHILDREN)
    for child in CHILDREN:
        if child.poll() is None:
            child.kill()
            child.wait()
    CHILDREN.clear()
