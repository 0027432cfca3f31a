"""The rows of a pool that belong to each client, in one tensor for all clients.

A tensor for each of 100,000 clients would take twenty times the memory of its ten numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Indices

SMALL = np.iinfo(np.int32).max


class RowLists(Sequence[Tensor]):
    """One int64 tensor of rows per client, made when it is asked for.

    Args:
        rows: the rows of all clients, one client after the other, shape (m,).
        ends: where the rows of each client begin, and where the last one's end, shape (N + 1,).
    """

    def __init__(self, rows: Indices, ends: Indices) -> None:
        self._rows, self._ends = _small(rows), _small(ends)

    @classmethod
    def of(cls, lists: Iterable[Tensor | Indices]) -> RowLists:
        """Join the rows of each client.

        Example:
            >>> RowLists.of([torch.tensor([4, 2]), torch.tensor([7])])[0]
            tensor([4, 2])
        """
        parts = [np.asarray(part, dtype=np.int64) for part in lists]
        return cls(np.concatenate([np.arange(0), *parts]), np.cumsum([0, *map(len, parts)]))

    @property
    def rows(self) -> Tensor:
        """The rows of all clients, one client after the other, shape (m,), int64."""
        return torch.from_numpy(self._rows.astype(np.int64))

    @property
    def sizes(self) -> Tensor:
        """Rows of each client, shape (N,), int64."""
        return torch.from_numpy(np.diff(self._ends).astype(np.int64))

    @property
    def total(self) -> int:
        """Rows of all clients."""
        return int(self._ends[-1])

    def sizes_of(self, clients: Tensor) -> list[int]:
        """Rows of some clients, shape (n,), in a time that does not grow with N."""
        ids = clients.numpy()
        sizes: list[int] = (self._ends[ids + 1] - self._ends[ids]).tolist()
        return sizes

    def numbered(self, rows: Tensor) -> RowLists:
        """As many rows for each client, but others: `rows` has those of all clients."""
        return RowLists(rows.numpy(), self._ends)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, client: int) -> Tensor: ...

    @overload
    def __getitem__(self, client: slice) -> RowLists: ...

    def __getitem__(self, client: int | slice) -> Tensor | RowLists:
        if isinstance(client, slice):
            return RowLists.of([self[one] for one in range(len(self))[client]])
        one = range(len(self))[client]
        return torch.from_numpy(self._rows[self._ends[one] : self._ends[one + 1]].astype(np.int64))


def _small(numbers: Indices) -> Indices:
    """Numbers >= 0 in half the memory, if they are small enough."""
    return numbers if numbers.max(initial=0) > SMALL else numbers.astype(np.int32)
