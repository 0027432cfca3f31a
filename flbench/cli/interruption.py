"""Ctrl-C: the first ends a command in order, the second at once; none is lost."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from flbench.engine.processes import is_rank_zero
from flbench.errors import Interrupted

AGAIN = b"flbench: interrupted again; ended at once\n"
SOON = 0.01
"""Seconds after which an interruption that was lost is raised again."""


def heed_interruptions() -> None:
    """Let the first Ctrl-C raise `KeyboardInterrupt` and the second end the process.

    Python would print the second one as an ignored exception where it hits the end of the
    interpreter, and drop one that hits a callback of the garbage collector. Nothing is changed
    where SIGINT is ignored, as in the background.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _first)
        sys.unraisablehook = _raise_again


def _first(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _second)
    raise KeyboardInterrupt


def _second(number: int, frame: FrameType | None) -> None:
    if is_rank_zero():
        os.write(2, AGAIN)
    os._exit(Interrupted.exit_code)


def _raise_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise an interruption again that hit code which cannot raise; others are printed."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, SOON)
