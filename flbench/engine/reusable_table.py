"""A table that is used again when nothing has a view of it any more.

A table of uploads is as large as all models of a cohort. If it is freed and made again in every
round, the system clears all its pages anew.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from flbench.core.bank_budget import RowStore


class ReusableTable:
    """A flat tensor, and whether anything but its owner has a view of it."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat
        self._unused = self._references()

    def fits(self, like: Tensor) -> bool:
        """Whether it has the size and type of a tensor."""
        return (self.flat.numel(), self.flat.dtype) == (like.numel(), like.dtype)

    def is_used(self) -> bool:
        """Whether this process has a view of it."""
        return self._references() != self._unused

    def _references(self) -> float:
        """How many tensors view it; NaN, which equals no number, if torch does not tell."""
        count = getattr(torch._C, "_storage_Use_Count", lambda storage: float("nan"))
        return float(count(self.flat.untyped_storage()._cdata))


class Tables:
    """Gives tables; the last one again if it fits and nothing has a view of it.

    Args:
        store: says whether a table on the CPU is in memory or in a file; None = in memory.
    """

    def __init__(self, store: RowStore | None = None) -> None:
        self.store = store
        self._last: ReusableTable | None = None

    def take(self, like: Tensor, device: torch.device) -> Tensor:
        """A table of the shape and type of a tensor, with any content."""
        last = self._last
        if last is None or not last.fits(like) or last.flat.device != device or last.is_used():
            self._last = last = None  # so that its memory is free before another is taken
            self._last = last = ReusableTable(self._new(like, device))
        return last.flat.view(like.shape)

    def _new(self, like: Tensor, device: torch.device) -> Tensor:
        """A flat tensor for a table."""
        if self.store is not None and device.type == "cpu":
            return self.store.table((like.numel(),), like.dtype)
        return torch.empty(like.numel(), dtype=like.dtype, device=device)

    def overflow(self, like: Tensor) -> Path | None:
        """The folder of the file that a table must be in; None = memory has room for it."""
        if self.store is None or self.store.has_room(like.nbytes):
            return None
        return self.store.folder
