"""Locks (`flock`) on what lives as long as a process writes it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


@contextmanager
def locked_folder(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A temporary folder in a folder, locked as long as its process lives; removed at the end.

    A lock on a file would be lost where a library writes a new file in its place.
    """
    while True:
        name = tempfile.mkdtemp(suffix, prefix, parent)
        handle = os.open(name, os.O_RDONLY)
        if lock_new(handle, name):
            break
        os.close(handle)
    try:
        yield Path(name)
    finally:
        try:
            os.rmdir(name)
        except OSError:  # it is not empty
            shutil.rmtree(name, ignore_errors=True)
        os.close(handle)
