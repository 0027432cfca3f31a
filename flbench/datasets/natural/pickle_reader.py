"""Read a pickled table of pandas in a process of its own, without running the code of its pickle.

    python pickle_reader.py FILE SHA256 [COLUMN ...] > table.npz

A pickle may name any function and call it. Here it may name the classes and functions of pandas and
numpy that make up a table without extension types, `ADMITTED`, and nothing else; another name is
refused before it is looked up. Those of pandas are stand-ins that keep what they are given and do
nothing, so that pandas is not even imported. The file must have the given hash, and the process has
bounds of time and memory: a file of somebody else can neither run code nor fill the machine.

What comes out are plain arrays: a column of numbers as `number:NAME`, float64, NaN = missing; a
column of texts as `text:NAME`, the number of each row's text, int32, -1 = missing, and
`names:NAME`, the texts. Imports no flbench, so that it starts fast.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import pickle
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy._core.multiarray import _reconstruct
from numpy._core.numeric import _frombuffer  # type: ignore[attr-defined] # not in its stubs

Cells = npt.NDArray[Any]
LARGEST = 2**28
"""Bytes of a table that is unpacked."""
SECONDS, MEMORY = 60, 2**33
"""Bounds of the process: CPU time, and bytes of its address space."""


class Frame:
    """Stands in for a DataFrame; its state is set by the pickle: `_mgr`, a `Blocks`."""


class Blocks:
    """Stands in for a BlockManager: blocks of columns of one type, and the axes."""

    def __init__(
        self, blocks: Sequence[tuple[Cells, Any]], axes: Sequence[Mapping[str, Any]]
    ) -> None:
        self.blocks, self.axes = blocks, axes


class PickledIndex:
    """Stands in for an Index, of which `new_index` keeps the content."""


def new_block(values: Cells, placement: Any, ndim: int = 2) -> tuple[Cells, Any]:  # noqa: ANN401
    """A block: values, shape (columns, rows), and the places of its columns."""
    return values, placement


def new_index(kind: object, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """An index: its content, such as the names of columns as `data`."""
    return content


ADMITTED: Mapping[tuple[str, str], Any] = {
    ("builtins", "slice"): slice,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("pandas", "DataFrame"): Frame,
    ("pandas", "Index"): PickledIndex,
    ("pandas", "RangeIndex"): PickledIndex,
    ("pandas._libs.internals", "_unpickle_block"): new_block,
    ("pandas.core.frame", "DataFrame"): Frame,
    ("pandas.core.indexes.base", "Index"): PickledIndex,
    ("pandas.core.indexes.base", "_new_Index"): new_index,
    ("pandas.core.indexes.range", "RangeIndex"): PickledIndex,
    ("pandas.core.internals.managers", "BlockManager"): Blocks,
}
"""All names that a table may have, and what they are here; `numpy.core` is `numpy._core`."""


class TableUnpickler(pickle.Unpickler):
    """Admits the names of a table of pandas alone."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a class or function
        """Look up an admitted name.

        Raises:
            UnpicklingError: it is another one; nothing is imported.
        """
        home = module.replace("numpy.core.", "numpy._core.", 1)
        if (home, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"its pickle names {module}.{name}, which no table needs")
        return ADMITTED[home, name]


def columns_of(data: bytes, wanted: Sequence[str]) -> dict[str, Cells]:
    """The wanted columns of a packed table, as arrays; none named = all.

    Raises:
        UnpicklingError: it is no such table, too large, or lacks a column.
    """
    raw = lzma.LZMADecompressor().decompress(data, max_length=LARGEST + 1)
    if len(raw) > LARGEST:
        raise pickle.UnpicklingError(f"it has more than {LARGEST:,} bytes")
    table = TableUnpickler(io.BytesIO(raw)).load()
    blocks = getattr(table, "_mgr", None)
    if not isinstance(table, Frame) or not isinstance(blocks, Blocks):
        raise pickle.UnpicklingError(f"it holds {type(table).__name__}, expected a DataFrame")
    names = [str(name) for name in blocks.axes[0]["data"]]
    columns: dict[str, Cells] = {}
    for values, places in blocks.blocks:
        numbers = range(len(names))[places] if isinstance(places, slice) else places
        columns |= {names[place]: column for place, column in zip(numbers, values, strict=True)}
    found: dict[str, Cells] = {}
    for name in wanted or names:
        if name not in columns:
            raise pickle.UnpicklingError(f"it has no column {name}")
        found |= stored(name, columns[name])
    return found


def stored(name: str, column: Cells) -> dict[str, Cells]:
    """A column as plain arrays: numbers, or the number of each text and the texts."""
    if column.dtype.kind in "iufb":
        return {f"number:{name}": column.astype(np.float64)}
    known: dict[str, int] = {}
    codes = [
        known.setdefault(one, len(known)) if isinstance(one, str) else -1 for one in column.tolist()
    ]
    return {
        f"text:{name}": np.array(codes, dtype=np.int32),
        f"names:{name}": np.array(list(known), dtype=np.str_),
    }


def main(path: str, sha256: str, *wanted: str) -> None:
    """Write the columns of a file to the standard output, as an `.npz`.

    Raises:
        UnpicklingError: the file is another one, or no table.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    data = Path(path).read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise pickle.UnpicklingError("its sha256 is not the one that is expected")
    packed = io.BytesIO()
    np.savez(packed, **columns_of(data, wanted))  # type: ignore[arg-type] # names of columns
    sys.stdout.buffer.write(packed.getvalue())


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:  # one line for the process that asks
        sys.exit(" ".join(f"{type(error).__name__}: {error}".split()))
