"""ProcessGroup: the processes of a run, the division of work among them, and their communication.

Each process works on its share of a list; then the results are exchanged, so that all processes
have all of them. With one process no method communicates.
"""

from __future__ import annotations

import heapq
import io
import os
import pickle
import platform
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from flbench.core.file_memory import mapped, new_file
from flbench.engine.reusable_table import ReusableTable
from flbench.errors import FlbenchError, ProcessDied

if TYPE_CHECKING:
    from lightning.fabric import Fabric

T = TypeVar("T")
Summary = TypeVar("Summary")
LENGTH, SMALL = 8, 2**13
"""Bytes that say how long an object is, and bytes of an object that are sent with them."""
BLOCK = 2**24
"""Bytes of a broadcast; smaller tables are gathered at once."""
SHARED = 2**20
"""Bytes from which processes of one machine share a table instead of sending its rows."""
MEMORY = "/dev/shm"
"""Folder of files in shared memory."""
PATIENCE = timedelta(hours=2)
"""How long a process waits for one that is alive; one that died is noticed at once."""


def assign(weights: Sequence[int], processes: int) -> list[list[int]]:
    """Divide items among processes: the heaviest item first, each to the least loaded process.

    Returns:
        The items of each process, ascending; every item is in exactly one list.

    Example:
        >>> assign([5, 1, 4, 2], 2)
        [[0, 1], [2, 3]]
    """
    heap = [(0, process) for process in range(processes)]
    assigned: list[list[int]] = [[] for _ in range(processes)]
    for item in sorted(range(len(weights)), key=lambda item: (-weights[item], item)):
        load, process = heap[0]
        assigned[process].append(item)
        heapq.heapreplace(heap, (load + weights[item], process))
    return [sorted(items) for items in assigned]


@dataclass(frozen=True)
class ProcessGroup:
    """The `size` processes of a run; this one has number `rank`, from 0.

    Attributes:
        last: the last table in shared memory, if any.
    """

    rank: int = 0
    size: int = 1
    last: list[ReusableTable] = field(default_factory=list, compare=False, kw_only=True)

    @classmethod
    def of(cls, fabric: Fabric) -> ProcessGroup:
        """The processes of a Fabric."""
        return cls(fabric.global_rank, fabric.world_size)

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process has rank 0, which prints and writes files."""
        return self.rank == 0

    def share(self, weights: Sequence[int]) -> list[int]:
        """The items of this process, ascending; see `assign`."""
        return assign(weights, self.size)[self.rank]

    def attempt(self, work: Callable[[], T]) -> T:
        """Do this process's part of the work; if one process fails, all raise its error.

        Raises:
            FlbenchError: the error of the first process that failed.
        """
        return self.attempt_and_share(work, lambda done: None)[0]

    def attempt_and_share(
        self, work: Callable[[], T], summarise: Callable[[T], Summary]
    ) -> tuple[T, list[Summary]]:
        """As `attempt`, and let all processes know something small of each process's part.

        Args:
            summarise: gives what the others must know of the finished work.

        Returns:
            What the work returned, and the summaries of all processes, by rank.
        """
        if self.size == 1:
            done = work()
            return done, [summarise(done)]
        failure: tuple[type[FlbenchError], str] | None = None
        summary: Summary | None = None
        try:
            done = work()
            summary = summarise(done)
        except ProcessDied:
            raise
        except FlbenchError as error:
            failure = type(error), str(error)
        heard = self.all_gather_object((failure, summary))
        for failed, _ in heard:
            if failed is not None:
                raise _rebuilt(*failed)
        return done, [part for _, part in heard]  # type: ignore[misc] # nobody failed: all have one

    def broadcast_object(self, value: T) -> T:
        """The value of rank 0."""
        return self.all_gather_object(value)[0]

    def all_gather_object(self, value: T) -> list[T]:
        """The small values of all processes, by rank."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(_pickled(value), dtype=torch.uint8)
        head = torch.zeros(LENGTH + SMALL, dtype=torch.uint8)
        head[:LENGTH].view(torch.int64)[0] = len(own)
        head[LENGTH : LENGTH + len(own)] = own[:SMALL]
        heads = self.all_gather(head)
        sizes = heads[:, :LENGTH].contiguous().view(torch.int64).flatten().tolist()
        if max(sizes) > SMALL:  # once more, for what did not fit
            rest = torch.zeros(max(sizes) - SMALL, dtype=torch.uint8)
            rest[: max(0, len(own) - SMALL)] = own[SMALL:]
            heads = torch.cat([heads, self.all_gather(rest)], dim=1)
        table = heads[:, LENGTH:].numpy()  # pickled by processes of this run, nobody else
        return [pickle.loads(row[:size]) for row, size in zip(table, sizes, strict=True)]

    def all_gather(self, table: Tensor) -> Tensor:
        """The tensors of all processes, of one shape and type, stacked on the CPU: (size, ...)."""
        own = table.detach().cpu().contiguous()
        gathered = own.new_empty(self.size, *own.shape)
        _communicate(lambda: dist.all_gather(list(gathered.unbind()), own, group=everybody()))
        return gathered

    def all_reduce_sum(self, table: Tensor) -> Tensor:
        """Sum tables that are zero outside the part that a process has computed.

        Args:
            table: any shape, the same in all processes; it is overwritten.
        """
        if self.size > 1:
            table.copy_(self.all_gather(table).sum(dim=0))
        return table

    def stack(self, own: Tensor, positions: Sequence[Sequence[int]]) -> Tensor:
        """Collect the rows of all processes in one order.

        Args:
            own: this process's rows, shape (len(positions[rank]), ...).
            positions: positions of each process's rows in the result.

        Returns:
            All rows on the CPU, shape (sum of lengths, ...), bit for bit; read-only, because
            processes of one machine may share the memory.
        """
        shape = (sum(map(len, positions)), *own.shape[1:])
        like = torch.empty(shape, dtype=own.dtype, device="meta")
        shared = self.shared_table(like)
        if shared is not None:
            shared[list(positions[self.rank])] = own.detach().cpu()
            self.all_gather_object(None)  # wait until all processes have written
            return shared
        rows = torch.empty(shape, dtype=own.dtype)
        if like.nbytes <= BLOCK:
            most = max(map(len, positions))
            padded = own.new_zeros(most, *own.shape[1:])
            padded[: len(own)] = own
            for block, places in zip(self.all_gather(padded), positions, strict=True):
                rows[list(places)] = block[: len(places)]
            return rows
        step = max(1, BLOCK // max(1, own[:1].nbytes or rows[:1].nbytes))
        for source, source_positions in enumerate(positions):
            for at in range(0, len(source_positions), step):
                some = list(source_positions[at : at + step])
                block = torch.empty_like(rows[: len(some)])
                if source == self.rank:
                    block = own[at : at + step].detach().cpu().contiguous()
                rows[some] = self.broadcast(block, source)
        return rows

    def shared_table(self, like: Tensor, folder: Path | None = None) -> Tensor | None:
        """A tensor of a shape and type that all processes share, with any content.

        It is the last one if no process uses that any more: the system clears new memory slowly.
        None = it would be small, there is no room, or the processes are on several machines.

        Args:
            folder: where it is in a file; that of rank 0 counts. None = it is in memory.
        """
        if self.size == 1 or like.nbytes < max(1, SHARED):
            return None
        last = next((table for table in self.last if table.fits(like)), None)
        heard = self.all_gather_object((machine(), last is not None and not last.is_used()))
        machines, free = zip(*heard, strict=True)
        if last is None or not all(free):
            self.last.clear()
            if len(set(machines)) > 1:
                return None
            name = _shared_file(like.nbytes, folder) if self.is_rank_zero else None
            name = self.broadcast_object(name)
            if name is None:
                return None
            try:
                if os.path.dirname(name) == MEMORY:  # what is given back of it is not free
                    flat = torch.from_file(name, shared=True, size=like.numel(), dtype=like.dtype)
                else:
                    flat = mapped(name, (like.numel(),), like.dtype)
                self.all_gather_object(None)  # wait until all have mapped it, then unlink it
            finally:
                if self.is_rank_zero:
                    os.unlink(name)
            last = ReusableTable(flat)
            self.last.append(last)
        return last.flat.view(like.shape)

    def broadcast(self, block: Tensor, source: int) -> Tensor:
        """Send a tensor from one process to all; the others pass a tensor to write it to."""
        _communicate(lambda: dist.broadcast(block, source, group=everybody()))
        return block


ALONE = ProcessGroup()
"""The process group of a run with one process."""


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays of bytes; as files of torch they take several times as long."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - as the documentation has it
        if type(value) is not Tensor or value.requires_grad:
            return NotImplemented
        if value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        flat = value.contiguous().view(-1).view(torch.uint8)
        return _tensor, (flat.numpy(), value.dtype, value.shape)


def _tensor(data: np.ndarray[Any, Any], dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """The tensor that `_Pickler` was given."""
    own = torch.from_numpy(data).clone()  # at an even place, as where it was made
    return own.view(dtype).view(shape)


def _pickled(value: object) -> bytearray:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return bytearray(buffer.getbuffer())


def _shared_file(size: int, folder: Path | None) -> str | None:
    """A new file in a folder or in this machine's shared memory; None = there is no room."""
    if folder is None and (not os.path.isdir(MEMORY) or shutil.disk_usage(MEMORY).free < 2 * size):
        return None
    try:
        return new_file(folder or Path(MEMORY), size)
    except OSError:
        return None


@cache
def machine() -> str:
    """A text that identifies this machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text() if boot.is_file() else uuid.getnode()}"


def _rebuilt(kind: type[FlbenchError], text: str) -> FlbenchError:
    """The error that another process raised."""
    error = kind.__new__(kind)
    error.args = (text,)
    return error


def _communicate(exchange: Callable[[], object]) -> None:
    """Communicate with all processes.

    Raises:
        ProcessDied: one of them is gone.
    """
    try:
        exchange()
    except RuntimeError:
        raise ProcessDied("a process of this run died") from None


@cache
def everybody() -> dist.ProcessGroup:
    """All processes, with a longer timeout than at the start; the first call connects them.

    While they connect, nobody notices that one of them died (`fabric.py` does).
    """
    group: dist.ProcessGroup = dist.new_group(timeout=PATIENCE)
    return group
