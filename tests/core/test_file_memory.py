"""Tables in files: they are as in memory, give their memory back, and leave nothing behind."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest
import torch

from flbench.core import file_memory
from flbench.core.file_memory import (
    PIECE,
    give_back,
    mapped,
    new_file,
    pieces,
    table_in_file,
    write,
)

MIB = 2**20


def resident() -> int:
    """Bytes of files that are in this process's memory."""
    status = Path("/proc/self/status")
    if not status.is_file():
        pytest.skip("the memory of a process is read from /proc")
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("RssFile")]
    return int(line.split()[1]) * 1024


def test_what_is_given_back_is_still_there(tmp_path: Path) -> None:
    table = table_in_file(tmp_path / "here", (8, MIB), torch.float32)
    assert not list(tmp_path.glob("here/*")), "nothing is left behind, whatever happens"
    before = resident()
    for number, row in enumerate(table):
        row.fill_(number)
        give_back(row)
        assert resident() - before < 8 * MIB, "of 32 MiB, one row at a time"
    assert table.sum(dim=1).tolist() == [MIB * number for number in range(8)]
    assert resident() - before > 24 * MIB
    give_back(table)
    assert resident() - before < 8 * MIB
    view = table[3, 5:7]
    del table, row
    gc.collect()
    give_back(view)
    assert view.tolist() == [3, 3], "a view keeps the file"
    del view
    gc.collect()
    assert not file_memory._mappings


def test_a_row_is_written_and_read_in_pieces(tmp_path: Path) -> None:
    table, values = (
        table_in_file(tmp_path, (2, 5 * PIECE + 3), torch.float32),
        torch.empty(5 * PIECE + 3),
    )
    values.copy_(torch.arange(len(values)))
    before = resident()
    write(table[1], values)
    assert resident() - before < 2 * 4 * PIECE
    found = []
    for piece in pieces(table[1]):
        found.append(piece.clone())
        assert resident() - before < 3 * 4 * PIECE
    assert len(found) == 6
    assert torch.equal(torch.cat(found), values)
    assert [one.data_ptr() for one in pieces(values)] == [values.data_ptr()]
    write(values[1:3], table[1, 7:9])
    assert values[:4].tolist() == [0, 7, 8, 3]


def test_a_table_in_memory_is_left_alone(tmp_path: Path) -> None:
    kept, plain = table_in_file(tmp_path, (4,), torch.float64), torch.arange(4)
    for table in (plain, plain[1:], torch.empty(0), torch.nn.Parameter(torch.ones(2))):
        give_back(table)
    assert plain.tolist() == [0, 1, 2, 3]
    assert kept.dtype == torch.float64


def test_all_who_map_a_file_see_the_same(tmp_path: Path) -> None:
    name = new_file(tmp_path, 16)
    one, other = (mapped(name, (2, 2), torch.float32) for _ in range(2))
    os.unlink(name)
    one.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    give_back(one)
    assert other.tolist() == [[1, 2], [3, 4]]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room is reserved by the system")
def test_a_full_disk_is_an_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'"):
        table_in_file(tmp_path, (4,), torch.float32)
    assert not list(tmp_path.iterdir())
