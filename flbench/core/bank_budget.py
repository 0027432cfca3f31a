"""The memory for models and uploads (`--bank-budget`): what exceeds it is in files.

`run/setup.py` makes the store of a run. The rows of a `ModelBank` and the tables of uploads
(`engine/reusable_table.py`) are in it.
"""

from __future__ import annotations

import math
import tempfile
import weakref
from pathlib import Path

import torch
from torch import Tensor

from flbench.core.file_memory import give_back, row_in_file, table_in_file
from flbench.core.free_memory import half_of_free


class RowStore:
    """Storage of rows and of tables of rows: in memory up to a budget, then in files.

    Args:
        budget: bytes in memory; None = half of what is free of the device's memory.
        folder: where files are made when they are needed; they are unlinked at once, so they end
            with the process. None = that of temporary files.
        device: of rows in memory; rows in files are copied to it when they are read.
        sharers: how many stores have the budget together.
    """

    def __init__(
        self,
        budget: int | None,
        folder: Path | None = None,
        device: torch.device | None = None,
        sharers: int = 1,
    ) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.device = torch.device("cpu") if device is None else device
        whole = half_of_free(self.device) if budget is None else budget
        self.budget = whole // sharers
        self.used = 0  # bytes in memory
        self.spilled = 0  # bytes in files

    def add(self, row: Tensor) -> Tensor:
        """Store a copy of a row, shape (W,), in memory or in a file, and return it."""
        if self.has_room(row.nbytes):
            stored = self._counted(row.detach().to(self.device, copy=True), in_memory=True)
        else:
            stored = self._counted(row_in_file(self.folder, row.detach()), in_memory=False)
        give_back(row)
        return stored

    def table(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A table with any content, in memory or in a file.

        Raises:
            OSError: it must be in a file, and there is no room.
        """
        if self.has_room(math.prod(shape) * dtype.itemsize):
            return self._counted(torch.empty(shape, dtype=dtype), in_memory=True)
        return self._counted(table_in_file(self.folder, shape, dtype), in_memory=False)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be in memory."""
        return self.used + size <= self.budget

    def _counted(self, tensor: Tensor, *, in_memory: bool) -> Tensor:
        """The tensor, counted until it is gone."""
        sizes = (tensor.nbytes, 0) if in_memory else (0, tensor.nbytes)
        self._count(*sizes)
        weakref.finalize(tensor, self._count, *(-size for size in sizes)).atexit = False
        return tensor

    def _count(self, in_memory: int, in_files: int) -> None:
        self.used += in_memory
        self.spilled += in_files
