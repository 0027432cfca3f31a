"""Rows beyond the budget lie in files, and whoever has them does not notice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from flbench.core.bank_budget import RowStore
from flbench.core.model_bank import ModelBank, all_finite

ROWS, WIDTH = 5, 4


@pytest.mark.parametrize("budget", [0, 3 * WIDTH * 4, 10**6])
def test_past_the_budget_rows_lie_in_files_that_have_no_name(tmp_path: Path, budget: int) -> None:
    store = RowStore(budget, tmp_path / "here")
    bank = ModelBank.repeated(torch.zeros(WIDTH), ROWS, store)
    bank[torch.arange(ROWS)] = torch.arange(20.0).reshape(ROWS, WIDTH)
    assert torch.equal(bank.dense(), torch.arange(20.0).reshape(ROWS, WIDTH))
    assert store.used <= budget
    assert all_finite(bank)
    assert store.used + store.spilled == 5 * WIDTH * 4, "the first row is gone"
    assert not list(tmp_path.glob("here/*")), "nothing is left behind, whatever happens"
    maps = Path("/proc/self/maps")
    if maps.is_file():
        assert (".flbench-" in maps.read_text(encoding="utf-8")) == (budget < 10**6)
    bank[0].add_(1)
    assert bank[0].tolist() == [1, 2, 3, 4]
    del bank
    assert store.used == store.spilled == 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are listed in /proc")
def test_rows_in_files_need_no_open_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    bank = ModelBank.repeated(torch.zeros(WIDTH), 40, RowStore(0, tmp_path))
    bank[torch.arange(40)] = torch.arange(160.0).reshape(40, WIDTH)
    assert len(os.listdir("/proc/self/fd")) <= before, "a process may open a thousand"
    assert bank[39].tolist() == [156, 157, 158, 159]


def test_past_the_budget_rows_need_no_folder_of_ones_own() -> None:
    store = RowStore(0)
    row = torch.arange(float(WIDTH))
    stored = store.add(row)
    assert torch.equal(stored, row)
    assert (store.used, store.spilled) == (0, 4 * WIDTH)
