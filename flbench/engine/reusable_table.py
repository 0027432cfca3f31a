"""A table that is used again when nothing has a view of it any more.

A table of uploads is as large as all models of a cohort. If it is freed and made again in every
round, the system clears all its pages anew.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    """Gives tables; the last one again if it fits and nothing has a view of it."""

    def __init__(self) -> None:
        self._last: ReusableTable | None = None

    def take(self, like: Tensor, device: torch.device) -> Tensor:
        """A table of the shape and type of a tensor, with any content."""
        last = self._last
        if last is None or not last.fits(like) or last.flat.device != device or last.is_used():
            self._last = last = None  # so that its memory is free before another is taken
            flat = torch.empty(like.numel(), dtype=like.dtype, device=device)
            self._last = last = ReusableTable(flat)
        return last.flat.view(like.shape)
