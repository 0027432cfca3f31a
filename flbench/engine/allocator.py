"""How the C library keeps memory between tensors."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt(3)`."""
LARGEST = 2**31 - 1
"""Bytes up to which freed memory is kept."""


def keep_freed_memory() -> bool:
    """Keep freed memory for the next tensors; False = the C library is not glibc.

    By default it gives large blocks back to the system at once. A round frees the models of its
    clients and makes the same table again, and the system then clears every page anew.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return all(mallopt(which, LARGEST) for which in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD))
