"""A table is used again if nothing has a view of it, and only then."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from toy import Play

from flbench.core import file_memory
from flbench.core.bank_budget import RowStore
from flbench.engine import workspace
from flbench.engine.lanes import training as lane_training
from flbench.engine.options import EngineOptions
from flbench.engine.reusable_table import Tables
from flbench.run import rounds
from flbench.toolbox import aggregation

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


def test_a_table_without_room_in_memory_is_in_a_file(tmp_path: Path) -> None:
    store, like = RowStore(100, tmp_path / "here"), torch.empty(3, 4)
    tables = Tables(store)
    assert tables.overflow(like) is None
    small = tables.take(like, CPU)
    assert (store.used, store.spilled) == (48, 0)
    del small
    assert tables.overflow(torch.empty(30)) == tmp_path / "here"
    large = tables.take(torch.empty(30), CPU)
    assert (store.used, store.spilled) == (0, 120), "the other one is freed"
    assert large.untyped_storage().data_ptr() in file_memory._mappings
    place = large.data_ptr()
    del large
    assert tables.take(torch.empty(30), CPU).data_ptr() == place


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_every_part_of_a_round_takes_a_table_in_a_file_in_pieces(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """Where models are trained, looked at and averaged; the results are the same."""
    whole = play_toy("ifca", engine=EngineOptions(executor, accelerator="cpu"))
    seen: set[str] = set()

    def watch(module: ModuleType, function: str) -> None:
        real = getattr(module, function)

        def watched(table: torch.Tensor, *given: torch.Tensor) -> object:
            if table.untyped_storage().data_ptr() in file_memory._mappings:
                seen.add(module.__name__.rpartition(".")[2])
            return real(table, *given)

        monkeypatch.setattr(module, function, watched)

    watch(workspace, "write")
    watch(lane_training, "write")
    watch(rounds, "pieces")
    watch(aggregation, "give_back")
    engine = EngineOptions(executor, accelerator="cpu", bank_budget=0)
    played = play_toy("ifca", engine=engine)
    assert torch.equal(whole.state.models, played.state.models)
    trained = "workspace" if executor == "sequential" else "training"
    assert seen == {trained, "rounds", "aggregation"}
