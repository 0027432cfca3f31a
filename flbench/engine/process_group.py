"""Ranks: the processes of a run, how work is dealt to them, and what they tell one another.

What one process would do for a list of things, each process does for its share of the list; then
all of them know everything. For one process every method here is trivial.
"""

from __future__ import annotations

import heapq
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from flbench.errors import FlbenchError, ProcessDied

if TYPE_CHECKING:
    from lightning.fabric import Fabric


T = TypeVar("T")


BLOCK = 2**24
"""Bytes that are told at once."""


SHARED = 2**25
"""Bytes from which processes of one machine write to one table instead of telling each other."""


MEMORY = "/dev/shm"


PATIENCE = timedelta(hours=2)
"""How long a process waits for one that is alive; one that died is noticed at once."""


def deal(weights: Sequence[int], hands: int) -> list[list[int]]:
    """Deal the heaviest weight first, each to the hand that holds least.

    Returns:
        A list of places per hand, ascending; every place is in exactly one of them.

    Example:
        >>> deal([5, 1, 4, 2], 2)
        [[0, 1], [2, 3]]
    """
    heap = [(0, hand) for hand in range(hands)]
    dealt: list[list[int]] = [[] for _ in range(hands)]
    for place in sorted(range(len(weights)), key=lambda place: (-weights[place], place)):
        load, hand = heap[0]
        dealt[hand].append(place)
        heapq.heapreplace(heap, (load + weights[place], hand))
    return [sorted(places) for places in dealt]


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run.

    Attributes:
        rank: the number of this one, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, fabric: Fabric) -> ProcessGroup:
        """The processes of a Fabric."""
        return cls(fabric.global_rank, fabric.world_size)

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the process that speaks and writes."""
        return self.rank == 0

    def assign(self, weights: Sequence[int]) -> list[list[int]]:
        """Places of each process's part of a list, ascending; see `deal`."""
        return deal(weights, self.size)

    def share(self, weights: Sequence[int]) -> list[int]:
        """Places of this process's part of a list, ascending."""
        return self.assign(weights)[self.rank]

    def attempt(self, work: Callable[[], T]) -> T:
        """Do one's own part of something; if any process fails, all fail alike.

        Raises:
            FlbenchError: what the first process that failed has raised.
        """
        if self.size == 1:
            return work()
        failure: tuple[type[FlbenchError], str] | None = None
        try:
            done = work()
        except ProcessDied:
            raise
        except FlbenchError as error:
            failure = type(error), str(error)
        for found in self.all_gather_object(failure):
            if found is not None:
                raise _again(*found)
        return done

    def broadcast_object(self, thing: T) -> T:
        """What the first process says."""
        return self.all_gather_object(thing)[0]

    def all_gather_object(self, thing: T) -> list[T]:
        """Every process's small thing, in their order."""
        if self.size == 1:
            return [thing]
        things: list[T | None] = [None] * self.size
        _met(lambda: dist.all_gather_object(things, thing, group=_group()))
        return things  # type: ignore[return-value] # every place is filled

    def all_gather(self, table: Tensor) -> Tensor:
        """Every process's tensor of one shape and type, stacked on the CPU: (size, ...)."""
        mine = table.detach().cpu().contiguous()
        heard = mine.new_empty(self.size, *mine.shape)
        _met(lambda: dist.all_gather(list(heard.unbind()), mine, group=_group()))
        return heard

    def all_reduce_sum(self, table: Tensor) -> Tensor:
        """Add up tables that are zero but where a process has filled in its own part.

        Args:
            table: any shape, the same in all processes; it is overwritten.
        """
        if self.size > 1:
            table.copy_(self.all_gather(table).sum(dim=0))
        return table

    def stack(self, mine: Tensor, places: Sequence[Sequence[int]]) -> Tensor:
        """Put rows that the processes hold into one order.

        Args:
            mine: this process's rows, shape (len(places[rank]), ...).
            places: where each process's rows belong.

        Returns:
            All rows on the CPU, shape (sum of lengths, ...), bit for bit; only to be read, as
            processes of one machine may share them.
        """
        shape = (sum(map(len, places)), *mine.shape[1:])
        whole = torch.empty(shape, dtype=mine.dtype, device="meta")
        large = whole.nbytes >= max(1, SHARED)
        desk = (
            self.broadcast_object(_desk(whole.nbytes) if large and self.is_rank_zero else None)
            if large
            else None
        )
        table = None if desk is None else self._shared(desk, whole)
        if table is not None:
            table[list(places[self.rank])] = mine.detach().cpu()
            self.all_gather_object(None)  # all have written
            return table
        whole = torch.empty(shape, dtype=mine.dtype)
        step = max(1, BLOCK // max(1, mine[:1].nbytes or whole[:1].nbytes))
        for source, part in enumerate(places):
            for at in range(0, len(part), step):
                some = list(part[at : at + step])
                block = torch.empty_like(whole[: len(some)])
                if source == self.rank:
                    block = mine[at : at + step].detach().cpu().contiguous()
                whole[some] = self.broadcast(block, source)
        return whole

    def _shared(self, desk: str, like: Tensor) -> Tensor | None:
        """A file as a tensor that all processes see; None = they are on several machines."""
        try:
            if len(set(self.all_gather_object(_machine()))) > 1:
                return None
            flat = torch.from_file(desk, shared=True, size=like.numel(), dtype=like.dtype)
            self.all_gather_object(None)  # all have it, and it needs no name any more
            return flat.view(like.shape)
        finally:
            if self.is_rank_zero:
                os.unlink(desk)

    def broadcast(self, block: Tensor, source: int) -> Tensor:
        """One process's tensor, in all of them; the others give one to write it to."""
        _met(lambda: dist.broadcast(block, source, group=_group()))
        return block


def _desk(size: int) -> str | None:
    """A new file of a size in this machine's shared memory; None = there is no room for it."""
    if not os.path.isdir(MEMORY) or shutil.disk_usage(MEMORY).free < 2 * size:
        return None
    number, name = tempfile.mkstemp(prefix="flbench-", dir=MEMORY)
    os.ftruncate(number, size)
    os.close(number)
    return name


def _machine() -> str:
    """Something that no other machine says."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text() if boot.is_file() else uuid.getnode()}"


ALONE = ProcessGroup()
"""One process."""


def _again(kind: type[FlbenchError], text: str) -> FlbenchError:
    """An error of another process."""
    error = kind.__new__(kind)
    error.args = (text,)
    return error


def _met(exchange: Callable[[], object]) -> None:
    """Exchange something with all processes: the one place where a dead one is noticed."""
    try:
        exchange()
    except RuntimeError:
        raise ProcessDied("a process of this run died") from None


@cache
def _group() -> dist.ProcessGroup:
    """All processes, with more patience than they had at the start."""
    group: dist.ProcessGroup = dist.new_group(timeout=PATIENCE)
    return group
