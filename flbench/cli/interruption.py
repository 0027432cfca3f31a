"""Ctrl-C: the first ends a command in order, as SIGTERM does; the second at once; none is lost."""

from __future__ import annotations

import os
import signal
from types import FrameType

from flbench.engine.processes.workers import is_rank_zero
from flbench.errors import Interrupted
from flbench.sweeps.launchers import raise_lost_interruptions

AGAIN = b"flbench: interrupted again; ended at once\n"


def heed_interruptions() -> None:
    """Let the first Ctrl-C raise `KeyboardInterrupt` and the second end the process.

    Python would print the second one as an ignored exception where it hits the end of the
    interpreter, and drop one that hits a callback of the garbage collector. Nothing is changed
    where SIGINT is ignored, as in the background. SIGTERM, as batch systems send it, does what the
    first Ctrl-C does, in the first process of a run, which ends the others.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _first)
        raise_lost_interruptions()
    if is_rank_zero() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _asked_to_end)
        raise_lost_interruptions()


def _first(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _second)
    raise KeyboardInterrupt


def _asked_to_end(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing interrupts what keeps the last round
    raise KeyboardInterrupt


def _second(number: int, frame: FrameType | None) -> None:
    if is_rank_zero():
        os.write(2, AGAIN)
    os._exit(Interrupted.exit_code)
