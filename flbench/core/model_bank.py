"""ModelBank: a table of models with copy-on-write rows.

Where every client has a row of its own, a plain table of N rows would be copied in every round,
although few of its rows changed. A `ModelBank` is used like a tensor of shape (K, W), but stores
its rows one by one: equal initial rows are stored once, a copy shares all rows with its original,
and writing replaces rows. So the memory that a round needs grows with the rows that it trains. New
rows are in memory or, above the budget, in files (`bank_budget.py`).

Every operation that is not reading or writing rows works on a copy as one plain tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from flbench.core.bank_budget import RowStore

VERSION: Callable[[Tensor], int] = attrgetter("_version")
"""How often torch has seen a tensor written in place, and all its views."""


class ModelBank(Tensor):
    """A (K, W) tensor whose rows are shared between copies until they are written.

    Reading rows (`bank[3]`, `bank[ids]`, `bank[ids, :10]`), writing them (`bank[ids] = rows`) and
    `clone` process these rows only. `bank[3]` can be written in place, like the row of a tensor;
    all other parts that are read are copies. Scalars that are equal in all rows are stored once
    (`share`).

    The given rows, shape (W,) each, are not copied; new rows are stored in `store`.
    """

    _rows: list[Tensor]
    _store: RowStore
    _common: tuple[Tensor, Tensor] | None  # mask and values of the scalars equal in all rows
    _written: set[int]  # rows written since `_common` was set, to which it does not apply
    _unshared: set[int]  # rows that no copy shares, so that they may be written in place
    _unchecked: list[Tensor]  # rows not yet seen by `all_finite`
    _writes: int  # so many writes are not counted by the rows themselves

    @staticmethod
    def __new__(
        cls: type[ModelBank],
        rows: list[Tensor],
        store: RowStore,
        unchecked: list[Tensor] | None = None,
    ) -> ModelBank:
        """Make a tensor without storage, with the shape and type of the table."""
        shape = (len(rows), *rows[0].shape)
        self: ModelBank = Tensor._make_wrapper_subclass(
            cls, shape, dtype=rows[0].dtype, device=store.device
        )
        self._rows = rows
        self._store = store
        self._common = None
        self._written = set()
        self._unshared = set()
        self._unchecked = self.stored if unchecked is None else unchecked
        self._writes = 0
        return self

    @classmethod
    def repeated(cls, row: Tensor, times: int, store: RowStore) -> ModelBank:
        """A bank of equal rows, stored once."""
        return cls([store.add(row)] * times, store)

    def clone(self, **_: object) -> ModelBank:
        """A copy that shares all rows."""
        return self._copy(list(self._rows), set(self._written))

    def apart(self) -> ModelBank:
        """A copy that shares no memory, in a store with the same room."""
        store = copy.copy(self._store)
        own = {id(row): store.add(row) for row in self.stored}
        bank = ModelBank([own[id(row)] for row in self._rows], store)
        if self._common is not None:
            mask, values = self._common
            bank._common, bank._written = (mask.clone(), values.clone()), set(self._written)
        return bank

    def writes(self) -> int:
        """A number that grows with every write, also one to a row that was read."""
        return self._writes + sum(map(VERSION, self._rows))

    def read(self, index: int) -> Tensor:
        """One row, shape (W,); read-only."""
        row = self._rows[index]
        index %= len(self._rows)
        if self._common is not None and index not in self._written:
            mask, values = self._common
            row = row.to(self._store.device, copy=True)
            row[mask] = values
        return row.to(self._store.device)

    def take(self, index: Tensor) -> ModelBank:
        """The bank of some rows, which are shared, not copied."""
        chosen = index.tolist()
        written = set()
        if self._written:
            written = {new for new, old in enumerate(chosen) if old in self._written}
        return self._copy([self._rows[old] for old in chosen], written)

    def _copy(self, rows: list[Tensor], written: set[int]) -> ModelBank:
        """A bank of some of these rows, which both share from now on."""
        other = ModelBank(rows, self._store, unchecked=[])
        other._common, other._written = self._common, written
        self._unshared.clear()
        return other

    def mean_of(self, index: Tensor) -> Tensor:
        """Mean of some rows, shape (W,), summed in float64; a row stored once is read once."""
        equal_rows: dict[tuple[int, bool], list[int]] = {}
        for row in index.tolist():
            key = (id(self._rows[row]), row in self._written)
            equal_rows.setdefault(key, []).append(row)
        total = torch.zeros(self.shape[1], dtype=torch.float64, device=self.device)
        for rows in equal_rows.values():
            total.add_(self.read(rows[0]).double(), alpha=len(rows))
        return (total / len(index)).to(self.dtype)

    def share(self, mask: Tensor, values: Tensor) -> None:
        """Set the same scalars in all rows: `bank[:, mask] = values`, stored once."""
        before = self.writes()
        if self._common is not None and not torch.equal(self._common[0], mask):
            self._rows = [self._store.add(self.read(i)) for i in range(len(self._rows))]
        self._common, self._written = (mask.clone(), values.clone()), set()
        self._unshared.clear()
        self._unchecked.append(values)
        self._writes += before + 1 - self.writes()

    def dense(self) -> Tensor:
        """All rows as one plain tensor, shape (K, W)."""
        return torch.stack([self.read(index) for index in range(len(self._rows))])

    def all_finite(self) -> bool:
        """Whether all rows are finite that were written since the last check or since the copy."""
        finite = all_rows_finite(self._unchecked)
        if finite:
            self._unchecked.clear()
        return finite

    @property
    def stored(self) -> list[Tensor]:
        """The stored rows, each once, without the common scalars."""
        return list({id(row): row for row in self._rows}.values())

    def pack(self) -> dict[str, Tensor]:
        """Plain tensors from which `unpack` makes the same bank; each stored row is in it once."""
        stored = self.stored
        position = {id(row): number for number, row in enumerate(stored)}
        packed = {f"row{number}": row for number, row in enumerate(stored)}
        packed["index"] = torch.tensor([position[id(row)] for row in self._rows])
        if self._common is not None:
            packed["mask"], packed["values"] = self._common
            packed["apart"] = torch.tensor(sorted(self._written), dtype=torch.int64)
        return packed

    @classmethod
    def unpack(
        cls, parts: Collection[str], read: Callable[[str], Tensor], store: RowStore
    ) -> ModelBank:
        """The bank that was packed into `parts`; its rows are read and stored one at a time."""
        index = read("index")
        rows = {number: store.add(read(f"row{number}")) for number in index.unique().tolist()}
        bank = cls([rows[number] for number in index.tolist()], store)
        if "mask" in parts:
            bank._common = (read("mask"), read("values"))
            bank._written = set(read("apart").tolist())
            bank._unchecked.append(bank._common[1])
        return bank

    def _write(self, index: int, row: Tensor, *, changed: bool = True) -> None:
        """Put a row in the place of another; `changed` = whether it has other content."""
        self._writes += changed + self._rows[index]._version - row._version
        self._rows[index] = row
        if self._common is not None:
            self._written.add(index)
        self._unshared.discard(index)
        self._unchecked.append(row)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self._rows)))

    def __getitem__(self, key: Any) -> Tensor:  # noqa: ANN401 - any index of a tensor
        first, rest = _split_index(key)
        if isinstance(first, int):
            index = range(len(self._rows))[first]
            if rest:
                return self.read(index)[rest].clone()
            if index not in self._unshared:
                self._write(index, self._store.add(self.read(index)), changed=False)
                self._unshared.add(index)
            return self._rows[index]
        chosen = self._row_numbers(first, rest)
        if chosen is None or not len(chosen):
            return self.dense()[key]
        return torch.stack([self.read(row) for row in chosen.tolist()])[:, *rest]

    def __setitem__(self, key: Any, value: Any) -> None:  # noqa: ANN401 - see above
        first, rest = _split_index(key)
        value = torch.as_tensor(plain(value) if isinstance(value, Tensor) else value)
        if isinstance(first, int):
            index = range(len(self._rows))[first]
            row = self.read(index).clone()
            row[rest or ...] = value
            self._write(index, self._store.add(row))
            return
        chosen = self._row_numbers(first, rest)
        if chosen is None:
            self._rewrite(lambda table: table.__setitem__(key, value))
        elif not len(chosen):
            return  # as a tensor does
        elif rest:
            table = torch.stack([self.read(index) for index in chosen.tolist()])
            table[:, *rest] = value
            for index, row in zip(chosen.tolist(), table, strict=True):
                self._write(index, self._store.add(row))
        elif value.ndim < 2 or len(value) == 1:
            stored = self._store.add(value.to(self.dtype).expand(1, *self.shape[1:])[0])
            for index in chosen.tolist():
                self._write(index, stored)
        else:
            rows = value.to(self.dtype).expand(len(chosen), *self.shape[1:])
            for index, row in zip(chosen.tolist(), rows, strict=True):
                self._write(index, self._store.add(row))

    def _row_numbers(self, first: Any, rest: tuple[Any, ...]) -> Tensor | None:  # noqa: ANN401
        """The rows that an index selects, shape (n,); None = index the dense tensor instead."""
        if first is None or first is Ellipsis:
            return None
        if not isinstance(first, slice) and not all(isinstance(part, slice) for part in rest):
            return None  # two index lists select scalars in pairs
        chosen = torch.arange(len(self._rows))[first.cpu() if isinstance(first, Tensor) else first]
        return chosen if chosen.ndim == 1 else None

    def _rewrite(self, change: Callable[[Tensor], object]) -> None:
        """Change all rows as one tensor, then store them again."""
        table = self.dense()
        change(table)
        for index, row in enumerate(table):
            self._write(index, self._store.add(row))

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,  # noqa: ANN401 - torch leaves these open
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run any other operation on a plain copy; write it back if it changes the bank."""
        plain_kwargs = tree_map(plain, kwargs or {})
        if func._schema.is_mutable and args and isinstance(args[0], ModelBank):
            others = tree_map(plain, args[1:])
            args[0]._rewrite(lambda table: func(table, *others, **plain_kwargs))
            return args[0]
        return func(*tree_map(plain, args), **plain_kwargs)

    def numpy(self, **_: object) -> Any:  # noqa: ANN401
        """A plain copy as an array."""
        return self.dense().cpu().numpy()

    def tolist(self) -> list[Any]:
        """A plain copy as lists."""
        return self.dense().tolist()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        rows, width = self.shape
        return f"ModelBank of {rows} rows of {width} scalars, {len(self.stored)} rows stored"

    def __deepcopy__(self, memo: object) -> ModelBank:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:  # noqa: ANN401 - pickle's own
        return self.dense().__reduce_ex__(protocol)


def writes(table: Tensor) -> int:
    """A number that grows with every write to a table in place, also through a view of it.

    Torch counts them, but not what is written through `.data`, numpy or another process. A table
    that came out of `torch.inference_mode` cannot be written.
    """
    if isinstance(table, ModelBank):
        return table.writes()
    return 0 if table.is_inference() else table._version


def apart(table: Tensor) -> Tensor:
    """A copy of a table that shares no memory with it; of a bank a bank."""
    return table.apart() if isinstance(table, ModelBank) else table.detach().clone()


def row_of(table: Tensor, index: int) -> Tensor:
    """A row of a table, shape (W,); read-only."""
    return table.read(index) if isinstance(table, ModelBank) else table[index]


def plain(table: Any) -> Any:  # noqa: ANN401 - any other value is returned unchanged
    """A table as a plain tensor."""
    return table.dense() if isinstance(table, ModelBank) else table


def take(table: Tensor, index: Tensor) -> Tensor:
    """Some rows of a table, shape (len(index), W); of a bank a bank."""
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
    """Whether a table is finite; of a bank, whether its new rows are.

    A sum takes a tenth of the time; it may overflow although all is finite.
    """
    if isinstance(table, ModelBank):
        return table.all_finite()
    return bool(table.sum().isfinite()) or bool(table.isfinite().all())


def all_rows_finite(rows: Sequence[Tensor]) -> bool:
    """Whether rows, shape (W,) each, are finite; a device is waited for once.

    No sum of finite float32 numbers overflows in double precision.
    """
    elsewhere = [row.sum(dtype=torch.float64) for row in rows if row.device.type != "cpu"]
    here = [row for row in rows if row.device.type == "cpu"]
    return all(map(all_finite, here)) and (
        not elsewhere or bool(torch.stack(elsewhere).isfinite().all())
    )


def _split_index(key: Any) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401 - any index of a tensor
    """Split an index of a table into the index of rows and the indices within rows."""
    first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
    if isinstance(first, Tensor) and first.ndim == 0 and first.dtype != torch.bool:
        first = int(first)
    return first, rest
