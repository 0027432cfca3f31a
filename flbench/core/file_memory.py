"""Tensors in files, for tables that memory has no room for.

Such a tensor is used like any other. The system reads the pages of its file when they are touched,
and writes them back when it wants. Pages that a process touched count as its memory until it gives
them back (`give_back`); what was written stays in the file.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor

PIECE = 2**20
"""Scalars of a table in a file that are in memory at a time."""
_mappings: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()  # by where they begin


def new_file(folder: Path, size: int) -> str:
    """Make a file with room for `size` bytes; whoever has mapped it unlinks it.

    Raises:
        OSError: there is no room, with the folder's name; no file is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".flbench-", dir=folder)
    try:
        if hasattr(os, "posix_fallocate"):  # or a full disk would end the process later, by SIGBUS
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        os.unlink(name)
        raise OSError(error.errno, error.strerror, str(folder)) from None
    finally:
        os.close(descriptor)
    return name


def mapped(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The content of a file as a tensor; all who map it see what one of them writes.

    The file is open as long as the tensor is there.
    """
    with open(name, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), math.prod(shape) * dtype.itemsize)
    table = torch.frombuffer(mapping, dtype=dtype).view(shape)
    _mappings[table.data_ptr()] = mapping
    return table


def table_in_file(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor with any content in a file without a name, which ends with the tensor.

    Raises:
        OSError: there is no room.
    """
    name = new_file(folder, math.prod(shape) * dtype.itemsize)
    try:
        return mapped(name, shape, dtype)
    finally:
        os.unlink(name)


def row_in_file(folder: Path, row: Tensor) -> Tensor:
    """A copy of a row in a file without a name, of which no part is given back.

    The file is not open, as there may be more rows than a process may open files.

    Raises:
        OSError: there is no room.
    """
    name = new_file(folder, row.nbytes)
    try:
        copy = torch.from_file(name, shared=True, size=row.numel(), dtype=row.dtype)
    finally:
        os.unlink(name)
    return copy.copy_(row)


def give_back(table: Tensor) -> None:
    """Give back the memory of a table in a file, or of the table of which it is a part.

    What is in it stays, and is read from the file when it is touched again. Nothing happens to
    tensors that are not in files.
    """
    mapping = _mapping_of(table)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def pieces(table: Tensor) -> Iterator[Tensor]:
    """A contiguous table in a file, piece by piece, shape (m,) each; another one as it is.

    The memory of a piece is given back before the next one.
    """
    if _mapping_of(table) is None:
        yield table
        return
    for piece in table.view(-1).split(PIECE):
        yield piece
        give_back(table)


def write(place: Tensor, values: Tensor) -> None:
    """Copy values to a place of the same shape, contiguous if it is in a file; see `pieces`."""
    if _mapping_of(place) is None:
        place.copy_(values)
        return
    for piece, new in zip(pieces(place), values.reshape(-1).split(PIECE), strict=True):
        piece.copy_(new)


def _mapping_of(table: Tensor) -> mmap.mmap | None:
    """The file that a tensor is in, if any."""
    if not _mappings or type(table) is not Tensor:
        return None
    return _mappings.get(table.untyped_storage().data_ptr())
