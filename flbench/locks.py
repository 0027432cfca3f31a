"""Locks (`flock`) on files that live as long as a process writes them."""

from __future__ import annotations

import fcntl
import os


def lock_new(handle: int, name: str) -> bool:
    """Lock what was just made, as long as it is open; False = another process is removing it.

    One that looks for what killed processes left may come between the making and the lock.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # there are no locks
        pass
    return os.path.exists(name)
