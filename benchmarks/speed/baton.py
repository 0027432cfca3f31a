"""The baton: how a timed program and the one that times it take turns.

A program works only between two calls of `lap`; in between it waits for a byte on its standard
input, and ends when that is closed. Programs that are compared therefore play their rounds in
turn, each in a process of its own, and a machine that drifts slows all of them alike. Needs nothing
but Python, as the environments of other frameworks share it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress


def pin(number: int) -> None:
    """Keep one of several processes on a core of its own, where the system has any to spare.

    Processes that wait for their turn and wake together are otherwise left on one core.
    """
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # a core that this process may not use
            os.sched_setaffinity(0, {number % (os.cpu_count() or 1)})


class Baton:
    """The program's end of it. What is printed goes to standard error from now on."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        sys.stdout.flush()
        os.dup2(2, 1)
        self._began = time.perf_counter()

    def lap(self, **told: object) -> None:
        """Report what was done since the last call, and wait for the next turn.

        The first call says that the program is ready for its first round.
        """
        spent = time.perf_counter() - self._began
        print(json.dumps({**told, "seconds": spent}), file=self._out, flush=True)
        if not os.read(0, 1):
            os._exit(0)
        self._began = time.perf_counter()
