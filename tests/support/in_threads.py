"""Processes of a run as threads of one process, so that a test sees all of them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from flbench.engine.processes.process_group import ProcessGroup
from flbench.errors import FlbenchError


class Table:
    """Where the fakes meet. Only the one that holds the lock runs, so that nothing races."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.lock = threading.Lock()
        self.heard: dict[tuple[int, int], bytes] = {}


@dataclass(frozen=True)
class Fake(ProcessGroup):
    """A process that is a thread; everything it says is pickled."""

    table: Table = field(default_factory=lambda: Table(1))
    turns: list[int] = field(default_factory=list)

    def all_gather_object(self, value: Any) -> list[Any]:
        turn, table = len(self.turns), self.table
        self.turns.append(turn)
        table.heard[turn, self.rank] = pickle.dumps(value)
        table.lock.release()
        try:
            table.barrier.wait(timeout=60)
        finally:
            table.lock.acquire()
        return [pickle.loads(table.heard[turn, rank]) for rank in range(self.size)]

    def all_gather(self, table: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.all_gather_object(table))

    def broadcast(self, block: torch.Tensor, source: int) -> torch.Tensor:
        return self.all_gather_object(block)[source]


def together(size: int, work: Callable[[ProcessGroup], Any]) -> list[Any]:
    """What each of several processes returns, or the error it raises."""
    table, ends = Table(size), [None] * size
    own = threading.local()

    def rank(me: int) -> None:
        with table.lock:
            own.ranks = Fake(me, size, table)
            try:
                ends[me] = work(own.ranks)
            except FlbenchError as error:
                ends[me] = error
            except BaseException as error:
                ends[me] = error
                table.barrier.abort()

    with patch.object(ProcessGroup, "of", classmethod(lambda cls, fabric: own.ranks)):
        threads = [threading.Thread(target=rank, args=(me,)) for me in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for end in ends:
        if isinstance(end, BaseException) and not isinstance(end, FlbenchError):
            raise end
    return ends
