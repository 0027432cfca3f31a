"""The samples of all clients, once for all processes of a machine.

The first process of each machine divides the data set. It writes large tables to files in memory
that have no name (`memfd_create(2)`), so they end with the processes that use them, however these
end, and need no room in /dev/shm. The other processes map the same pages; what one of them writes
there, only it sees.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, TypeVar

import torch
from torch import Tensor

from flbench.engine.processes import process_group
from flbench.engine.processes.process_group import ProcessGroup
from flbench.federation.federation import Gather, gathered

T = TypeVar("T")


def made_once(
    group: ProcessGroup, make: Callable[[Gather], T], say: Callable[[str], None] = print
) -> T:
    """What `make` returns, made by the first process of each machine and shared by the others.

    Args:
        make: is given a function that gathers rows of a table. It is called by every process if
            the tables that it gathers cannot be shared.
        say: told that they cannot, in every process.

    Raises:
        FlbenchError: `make` failed in a process; all raise it.
    """
    if group.size == 1:
        return make(gathered)
    machines = group.all_gather_object(process_group.machine())
    first = machines.index(machines[group.rank])
    with SharedTables.open() as tables:

        def make_first() -> T | None:
            return make(tables.gather) if first == group.rank else None

        made, packed = group.attempt_and_share(make_first, tables.pack)
        if first != group.rank:
            made = unpacked(packed[first])
        lacking = group.all_gather_object(made is None)  # now all have mapped the tables
    if any(lacking):
        say("the processes cannot share the clients' samples, so each has a copy of its own")
    return group.attempt(lambda: make(gathered) if made is None else made)


class SharedTables:
    """Tables of one process that other processes of its machine can map while their files are open.

    Attributes:
        files: by the identity of a table the table, which is kept, and the number of its file.
        is_whole: whether all large tables are there.
    """

    def __init__(self) -> None:
        self.files: dict[int, tuple[Tensor, int]] = {}
        self.is_whole = True

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[SharedTables]:
        """Tables whose files are open within the block; mapped tables stay."""
        tables = cls()
        try:
            yield tables
        finally:
            for _, file in tables.files.values():
                os.close(file)
            tables.files.clear()

    def gather(self, table: Tensor, rows: Tensor) -> Tensor:
        """Rows of a table, shape (len(rows), ...), shared if they are large and can be."""
        like = torch.empty((len(rows), *table.shape[1:]), dtype=table.dtype, device="meta")
        if like.nbytes < max(1, process_group.SHARED):
            return gathered(table, rows)
        file = _file(like.nbytes)
        if file is None:
            self.is_whole = False
            return gathered(table, rows)
        path = f"/proc/self/fd/{file}"
        flat = torch.from_file(path, shared=True, size=like.numel(), dtype=like.dtype)
        torch.index_select(table, 0, rows, out=flat.view(like.shape))
        del flat
        mapped = _mapped(path, tuple(like.shape), like.dtype)
        self.files[id(mapped)] = mapped, file
        return mapped

    def pack(self, made: object) -> bytes | None:
        """An object with these tables as bytes for `unpacked`; None = nothing is to be shared."""
        if made is None or not self.is_whole:
            return None
        buffer = io.BytesIO()
        _Pickler(buffer, self).dump(made)
        return buffer.getvalue()


def unpacked(packed: bytes | None) -> Any:  # noqa: ANN401 - what was packed
    """The object that another process of this machine packed; None = it cannot be had."""
    if packed is None:
        return None
    try:
        return _Unpickler(io.BytesIO(packed)).load()  # pickled by a process of this run
    except (OSError, RuntimeError):  # the files of the other process cannot be opened here
        return None


class _Pickler(pickle.Pickler):
    """Writes where a shared table is in place of its content."""

    def __init__(self, file: IO[bytes], tables: SharedTables) -> None:
        super().__init__(file)
        self.tables = tables

    def persistent_id(self, one: object) -> tuple[str, tuple[int, ...], torch.dtype] | None:
        """Path, shape and type of a shared table; None = it is written as usual."""
        if not isinstance(one, Tensor) or id(one) not in self.tables.files:
            return None
        _, file = self.tables.files[id(one)]
        return f"/proc/{os.getpid()}/fd/{file}", tuple(one.shape), one.dtype


class _Unpickler(pickle.Unpickler):
    """Maps the tables whose places `_Pickler` wrote."""

    def persistent_load(self, place: Any) -> Tensor:  # noqa: ANN401 - as `_Pickler` wrote it
        """The table at a place."""
        return _mapped(*place)


def _mapped(path: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The table in a file; pages that this process writes become its own."""
    size = torch.Size(shape).numel()
    return torch.from_file(path, shared=False, size=size, dtype=dtype).view(shape)


def _file(size: int) -> int | None:
    """The number of a new file in memory, which is taken already; None = there can be none."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        file = os.memfd_create("flbench-samples")
    except OSError:
        return None
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        return None
    return file
