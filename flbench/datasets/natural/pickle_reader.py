"""Read a pickled table of pandas in a process of its own, without running the code of its pickle.

    python pickle_reader.py FILE SHA256 [COLUMN ...] > table.npz

A pickle may name any function and call it. Here it may name what pandas writes into a table
without extension types, `ADMITTED`, and nothing else; a name beyond these is refused before
anything of it is imported. The file must have the given hash, and the process has bounds of time
and memory, so a file of somebody else can neither run code nor fill the machine. What comes out are
plain arrays: a column of numbers as `number:NAME`, float64, NaN = missing; a column of texts as
`text:NAME`, the number of each row's text, int32, -1 = missing, and `names:NAME`, the texts.

Imports no flbench, so that it starts fast.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import pickle
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ADMITTED = frozenset(
    (
        ("builtins", "slice"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.numeric", "_frombuffer"),
        ("pandas._libs.internals", "_unpickle_block"),
        ("pandas.core.frame", "DataFrame"),
        ("pandas.core.indexes.base", "Index"),
        ("pandas.core.indexes.base", "_new_Index"),
        ("pandas.core.indexes.range", "RangeIndex"),
        ("pandas.core.internals.managers", "BlockManager"),
    )
)
"""All names that a table may have; those of `numpy.core` are those of `numpy._core`."""
LARGEST = 2**28
"""Bytes of a table that is unpacked."""
SECONDS, MEMORY = 60, 2**33
"""Bounds of the process: CPU time, and bytes of its address space."""


class TableUnpickler(pickle.Unpickler):
    """Admits the names of a table of pandas alone."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a class or function
        """Look up an admitted name.

        Raises:
            UnpicklingError: it is another one; nothing is imported.
        """
        if module.startswith("numpy.core."):
            module = module.replace("numpy.core.", "numpy._core.", 1)
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"its pickle names {module}.{name}, which no table needs")
        return super().find_class(module, name)


def columns_of(data: bytes, wanted: list[str]) -> dict[str, npt.NDArray[Any]]:
    """The wanted columns of a packed table, as arrays; none named = all.

    Raises:
        UnpicklingError: it is no such table, too large, or lacks a column.
    """
    from pandas import DataFrame, factorize

    raw = lzma.LZMADecompressor().decompress(data, max_length=LARGEST + 1)
    if len(raw) > LARGEST:
        raise pickle.UnpicklingError(f"it has more than {LARGEST:,} bytes")
    table = TableUnpickler(io.BytesIO(raw)).load()
    if type(table) is not DataFrame:
        raise pickle.UnpicklingError(f"it holds {type(table).__name__}, expected a DataFrame")
    found: dict[str, npt.NDArray[Any]] = {}
    for name in wanted or list(table.columns):
        if name not in table.columns:
            raise pickle.UnpicklingError(f"it has no column {name}")
        column = table[name].to_numpy()
        if column.dtype.kind in "iufb":
            found[f"number:{name}"] = column.astype(np.float64)
        else:
            codes, names = factorize(column)
            found[f"text:{name}"] = codes.astype(np.int32)
            found[f"names:{name}"] = np.array([str(one) for one in names], dtype=np.str_)
    return found


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
    found, packed = columns_of(data, list(wanted)), io.BytesIO()
    np.savez(packed, **found)  # type: ignore[arg-type] # names of columns
    sys.stdout.buffer.write(packed.getvalue())


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:  # one line for the process that asks
        sys.exit(" ".join(f"{type(error).__name__}: {error}".split()))
