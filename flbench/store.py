"""Store: where the rows of banks lie, in memory up to a budget and behind that in files."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path

import torch
from torch import Tensor


class Store:
    """Where rows lie: in memory up to a budget, behind that in files.

    Args:
        budget: bytes of rows in memory; None = half of what the device has.
        folder: where files are made, only if they are needed; they have no name and vanish with
            the process.
        device: of rows in memory; rows in files are copied to it when they are read.
    """

    def __init__(
        self, budget: int | None, folder: Path | None = None, device: torch.device | None = None
    ) -> None:
        self.folder = folder
        self.device = torch.device("cpu") if device is None else device
        self.budget = _half(self.device) if budget is None else budget
        self.used = 0
        self.spilled = 0

    def keep(self, row: Tensor) -> Tensor:
        """A copy of a row, shape (W,), in memory or in a file."""
        size = row.numel() * row.element_size()
        if self.used + size > self.budget:
            self.spilled += size
            return self._in_file(row, size)
        self.used += size
        own = row.detach().to(self.device, copy=True)
        weakref.finalize(own, self._freed, size).atexit = False
        return own

    def _freed(self, size: int) -> None:
        self.used -= size

    def _forgotten(self, size: int) -> None:
        self.spilled -= size

    def _in_file(self, row: Tensor, size: int) -> Tensor:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=".bank-", dir=self.folder)
        try:
            os.close(number)
            own = torch.from_file(name, shared=True, size=row.numel(), dtype=row.dtype)
        finally:
            os.unlink(name)
        own.copy_(row.detach())
        weakref.finalize(own, self._forgotten, size).atexit = False
        return own


def _half(device: torch.device) -> int:
    """Half of a device's memory, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1]) // 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
