"""The protocol between a timed program and the process that measures it.

A program works only between two calls of `report_and_wait`; in between it waits for a byte on its
standard input, and ends when that is closed. Programs that are compared therefore play their
rounds alternately, each in a process of its own, and a machine that becomes slower slows all of
them alike. This module needs nothing but Python, because the environments of other frameworks
import it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress


def pin(number: int) -> None:
    """Bind this process, one of several, to a core of its own where the system allows it.

    Without this, processes that wake at the same moment often share one core.
    """
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # a core that this process may not use
            os.sched_setaffinity(0, {number % (os.cpu_count() or 1)})


class Turns:
    """The program's side of the protocol. From now on, prints go to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        sys.stdout.flush()
        os.dup2(2, 1)
        self._began = time.perf_counter()

    def report_and_wait(self, **report: object) -> None:
        """Report the time since the last call and `report`, and wait for the next turn.

        The first call reports that the program is ready for its first round. What a CUDA device has
        still to do belongs to the round.
        """
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        spent = time.perf_counter() - self._began
        print(json.dumps({**report, "seconds": spent}), file=self._out, flush=True)
        if not os.read(0, 1):
            os._exit(0)
        self._began = time.perf_counter()
