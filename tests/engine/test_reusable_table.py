"""A table is used again if nothing has a view of it, and only then."""

from __future__ import annotations

import pytest
import torch
from toy import Play

from flbench.engine.reusable_table import Tables

CPU = torch.device("cpu")


def test_a_table_is_used_again_without_views() -> None:
    tables, like = Tables(), torch.empty(3, 4)
    first = tables.take(like, CPU)
    place, row = first.data_ptr(), first[1]
    del first
    other = tables.take(like, CPU)
    assert other.data_ptr() != place, "a row is still there"
    place = other.data_ptr()
    del row, other
    again = tables.take(torch.empty(4, 3), CPU)
    assert (again.data_ptr(), again.shape) == (place, (4, 3))
    array = again.numpy()
    del again
    assert tables.take(like, CPU).data_ptr() != array.ctypes.data


def test_another_size_or_type_is_another_table() -> None:
    tables = Tables()
    assert tables.take(torch.empty(3), CPU).shape == (3,)
    assert tables.take(torch.empty(5), CPU).shape == (5,)
    assert tables.take(torch.empty(5, dtype=torch.float64), CPU).dtype == torch.float64


def test_uploads_of_all_rounds_are_in_one_table(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    real = Tables.take

    def watched(tables: Tables, like: torch.Tensor, device: torch.device) -> torch.Tensor:
        table = real(tables, like, device)
        kept.append(tables._last)
        return table

    monkeypatch.setattr(Tables, "take", watched)
    play_toy("fedavg", rounds=3)
    assert len(kept) == 3
    assert len({*map(id, kept)}) == 1
