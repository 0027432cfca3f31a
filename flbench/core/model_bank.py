"""Bank: a table of models whose rows are kept one by one.

Where every client has a row of its own, a table of N rows would be copied whole in every round,
of which a few rows changed. A `Bank` is a tensor of shape (K, W) to whoever uses it, and keeps its
rows apart: rows that are equal since the beginning are stored once, a copy shares all rows with its
original, and writing replaces rows. So a round costs as many rows as it trains. Past a budget, new
rows lie in memory-mapped files (`Store`).

Whatever is not reading or writing rows works on a copy as one plain tensor.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class RowStore:
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


class ModelBank(Tensor):
    """A (K, W) tensor whose rows are shared between copies until they are written.

    Reading rows (`bank[3]`, `bank[ids]`, `bank[ids, :10]`), writing them (`bank[ids] = rows`) and
    `clone` touch these rows only. `bank[3]` may be written in place, as a tensor's row may; any
    other part that is read is a copy. Scalars that all rows have in common are kept once (`share`).

    Args:
        rows: what is stored, shape (W,) each; not copied.
        store: where new rows go.
    """

    _rows: list[Tensor]
    _store: RowStore
    _common: tuple[Tensor, Tensor] | None
    _apart: set[int]
    _private: set[int]
    _news: list[Tensor]

    @staticmethod
    def __new__(cls: type[ModelBank], rows: Sequence[Tensor], store: RowStore) -> ModelBank:
        """Make the tensor that stands for the rows."""
        shape = (len(rows), *rows[0].shape)
        self: ModelBank = Tensor._make_wrapper_subclass(
            cls, shape, dtype=rows[0].dtype, device=store.device
        )
        self._rows = list(rows)
        self._store = store
        self._common = None
        self._apart = set()  # rows written since the common scalars were
        self._private = set()  # rows that no copy shares, so that they may be written in place
        self._news = list({id(row): row for row in rows}.values())
        return self

    @classmethod
    def repeated(cls, row: Tensor, times: int, store: RowStore) -> ModelBank:
        """A bank of equal rows, stored once."""
        return cls([store.keep(row)] * times, store)

    def clone(self, **_: object) -> ModelBank:
        """A copy that shares all rows."""
        other = ModelBank(self._rows, self._store)
        other._common, other._apart, other._news = self._common, set(self._apart), []
        self._private.clear()
        return other

    def read(self, index: int) -> Tensor:
        """One row, only to be read, shape (W,)."""
        row = self._rows[index]
        index %= len(self._rows)
        if self._common is not None and index not in self._apart:
            mask, values = self._common
            row = row.to(self._store.device, copy=True)
            row[mask] = values
        return row.to(self._store.device)

    def take(self, index: Tensor) -> ModelBank:
        """The bank of some rows, which are shared, not copied."""
        chosen = index.tolist()
        other = ModelBank([self._rows[one] for one in chosen], self._store)
        other._common, other._news = self._common, []
        other._apart = {place for place, one in enumerate(chosen) if one in self._apart}
        self._private.clear()
        return other

    def mean_of(self, index: Tensor) -> Tensor:
        """Mean of some rows, shape (W,), summed in float64; rows that are stored once, once."""
        alike: dict[tuple[int, bool], list[int]] = {}
        for one in index.tolist():
            alike.setdefault((id(self._rows[one]), one in self._apart), []).append(one)
        total = torch.zeros(self.shape[1], dtype=torch.float64, device=self.device)
        for places in alike.values():
            total.add_(self.read(places[0]).double(), alpha=len(places))
        return (total / len(index)).to(self.dtype)

    def share(self, mask: Tensor, values: Tensor) -> None:
        """Set the same scalars in all rows: `bank[:, mask] = values`, at the cost of one row.

        Args:
            mask: shape (W,), bool.
            values: shape (number of True,).
        """
        if self._common is not None and not torch.equal(self._common[0], mask):
            self._rows = [self._store.keep(self.read(i)) for i in range(len(self._rows))]
        self._common, self._apart = (mask.clone(), values.clone()), set()
        self._private.clear()
        self._news.append(values)

    def dense(self) -> Tensor:
        """All rows as one plain tensor, shape (K, W)."""
        return torch.stack([self.read(index) for index in range(len(self._rows))])

    def all_finite(self) -> bool:
        """Whether what was written since the bank was copied, or found to be finite, is finite."""
        finite = all(bool(row.isfinite().all()) for row in self._news)
        if finite:
            self._news.clear()
        return finite

    @property
    def stored(self) -> list[Tensor]:
        """The rows that are stored, each once, without the common scalars."""
        return list({id(row): row for row in self._rows}.values())

    def pack(self) -> dict[str, Tensor]:
        """Plain tensors from which `unpack` makes the same bank: rows that are equal once."""
        stored = self.stored
        places = {id(row): place for place, row in enumerate(stored)}
        packed = {f"row{place}": row for place, row in enumerate(stored)}
        packed["index"] = torch.tensor([places[id(row)] for row in self._rows])
        if self._common is not None:
            packed["mask"], packed["values"] = self._common
            packed["apart"] = torch.tensor(sorted(self._apart), dtype=torch.int64)
        return packed

    @classmethod
    def unpack(
        cls, parts: Collection[str], read: Callable[[str], Tensor], store: RowStore
    ) -> ModelBank:
        """The bank that was packed, its rows stored one after the other.

        Args:
            parts: names that `pack` gave.
            read: gives the tensor of a name.
        """
        index = read("index")
        rows = {place: store.keep(read(f"row{place}")) for place in index.unique().tolist()}
        bank = cls([rows[place] for place in index.tolist()], store)
        if "mask" in parts:
            bank._common = (read("mask").to(store.device), read("values").to(store.device))
            bank._apart = set(read("apart").tolist())
        return bank

    def _write(self, index: int, row: Tensor) -> None:
        self._rows[index] = row
        self._apart.add(index)
        self._private.discard(index)
        self._news.append(row)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self._rows)))

    def __getitem__(self, key: Any) -> Tensor:  # noqa: ANN401 - whatever indexes a tensor
        first, rest = _split(key)
        if isinstance(first, int):
            index = range(len(self._rows))[first]
            if rest:
                return self.read(index)[rest].clone()
            if index not in self._private:
                self._write(index, self._store.keep(self.read(index)))
                self._private.add(index)
            return self._rows[index]
        places = self._places(first, rest)
        if places is None or not len(places):
            return self.dense()[key]
        return torch.stack([self.read(place) for place in places.tolist()])[:, *rest]

    def __setitem__(self, key: Any, value: Any) -> None:  # noqa: ANN401 - see above
        first, rest = _split(key)
        value = torch.as_tensor(plain(value) if isinstance(value, Tensor) else value)
        if isinstance(first, int):
            index = range(len(self._rows))[first]
            row = self.read(index).clone()
            row[rest or ...] = value
            self._write(index, self._store.keep(row))
            return
        places = self._places(first, rest)
        if places is None:
            self._rewrite(lambda table: table.__setitem__(key, value))
        elif rest:
            table = torch.stack([self.read(place) for place in places.tolist()])
            table[:, *rest] = value
            for place, row in zip(places.tolist(), table, strict=True):
                self._write(place, self._store.keep(row))
        elif value.ndim < 2 or len(value) == 1:
            kept = self._store.keep(value.to(self.dtype).expand(1, *self.shape[1:])[0])
            for place in places.tolist():
                self._write(place, kept)
        else:
            rows = value.to(self.dtype).expand(len(places), *self.shape[1:])
            for place, row in zip(places.tolist(), rows, strict=True):
                self._write(place, self._store.keep(row))

    def _places(self, first: Any, rest: tuple[Any, ...]) -> Tensor | None:  # noqa: ANN401
        """The rows that an index means, shape (n,); None = it is better left to a plain tensor."""
        if first is None or first is Ellipsis:
            return None
        if not isinstance(first, slice) and not all(isinstance(part, slice) for part in rest):
            return None  # both index one by one, in pairs
        places = torch.arange(len(self._rows))[first.cpu() if isinstance(first, Tensor) else first]
        return places if places.ndim == 1 else None

    def _rewrite(self, change: Callable[[Tensor], object]) -> None:
        """Change all rows as one tensor, then store them anew."""
        table = self.dense()
        change(table)
        for index, row in enumerate(table):
            self._write(index, self._store.keep(row))

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,  # noqa: ANN401 - torch leaves these open
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Do anything else on a plain copy; write it back where the bank itself is changed."""
        named = tree_map(plain, kwargs or {})
        if func._schema.is_mutable and args and isinstance(args[0], ModelBank):
            others = tree_map(plain, args[1:])
            args[0]._rewrite(lambda table: func(table, *others, **named))
            return args[0]
        return func(*tree_map(plain, args), **named)

    def numpy(self, **_: object) -> Any:  # noqa: ANN401
        """The plain copy, as an array."""
        return self.dense().cpu().numpy()

    def tolist(self) -> list[Any]:
        """The plain copy, as lists."""
        found: list[Any] = self.dense().tolist()
        return found

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"Bank of {len(self._rows)} rows, {len(self.stored)} stored, of {self.shape[1]}"

    def __deepcopy__(self, memo: object) -> ModelBank:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:  # noqa: ANN401 - pickle's own
        return self.dense().__reduce_ex__(protocol)


def row_of(table: Tensor, index: int) -> Tensor:
    """A row of a table, only to be read, shape (W,)."""
    return table.read(index) if isinstance(table, ModelBank) else table[index]


def plain(table: Any) -> Any:  # noqa: ANN401 - anything else comes back as it is
    """A table as a plain tensor."""
    return table.dense() if isinstance(table, ModelBank) else table


def take(table: Tensor, index: Tensor) -> Tensor:
    """Some rows of a table, shape (len(index), W); a bank stays one."""
    return table.take(index) if isinstance(table, ModelBank) else table[index]


def mean_of(table: Tensor, index: Tensor) -> Tensor:
    """Mean of rows `index`, shape (n,), of a `table`, shape (k, W), in float64: shape (W,).

    Example:
        >>> mean_of(torch.tensor([[1.0, 2.0], [9.0, 9.0], [2.0, 4.0]]), torch.tensor([0, 2]))
        tensor([1.5000, 3.0000])
    """
    if isinstance(table, ModelBank):
        return table.mean_of(index)
    return table[index].double().mean(dim=0).to(table.dtype)


def all_finite(table: Tensor) -> bool:
    """Whether a table is finite; of a bank, what is new in it."""
    if isinstance(table, ModelBank):
        return table.all_finite()
    return bool(table.isfinite().all())


def _split(key: Any) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401 - whatever indexes a tensor
    """The index of the rows, and of what is in them."""
    first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
    if isinstance(first, Tensor) and first.ndim == 0 and first.dtype != torch.bool:
        first = int(first)
    return first, rest
