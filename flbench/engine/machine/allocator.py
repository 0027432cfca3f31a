"""Which freed memory the C library keeps for the next tensors."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt(3)`."""
LARGE = 2**25
"""Bytes from which a tensor has pages of its own, given back at once when it is freed."""
KEPT = 2**28
"""Bytes at the end of the heap that are kept when they are free; what is beyond is given back."""


def keep_activations() -> bool:
    """Keep the memory that the activations of a step had; False = the C library is not glibc.

    By default glibc decides by what it has freed before from which size a tensor has pages of its
    own, and gives back what is free at the end of the heap, if it is twice that size. Activations
    then get new pages in every step, which the system clears, in one process and not in the other.
    Large tables, as uploads, are given back in any case: if they were kept too, free memory would
    fall into pieces that fit no other table.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    values = {M_MMAP_THRESHOLD: LARGE, M_TRIM_THRESHOLD: KEPT}
    return all(mallopt(which, value) for which, value in values.items())
