"""The samples of all clients are in memory once for the processes of a machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every import run_of, stable
from in_processes import run_of_large_samples, shared_files
from in_threads import together
from toy import player

from flbench.engine.processes import process_group, shared_samples
from flbench.engine.processes.process_group import ALONE, ProcessGroup
from flbench.engine.processes.shared_samples import made_once
from flbench.errors import UserError
from flbench.federation.federation import Gather, Samples
from flbench.federation.row_lists import RowLists
from flbench.testing.subprocesses import in_process_group

TABLE = torch.arange(60, dtype=torch.float32).view(20, 3)
ROWS = torch.tensor([7, 3, 3, 19])


def mapped() -> str:
    """What this process has mapped."""
    return Path("/proc/self/maps").read_text(encoding="utf-8")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every table be large enough to be shared."""
    monkeypatch.setattr(process_group, "SHARED", 0)


def pool(gather: Gather) -> Samples:
    x, y = gather(TABLE, ROWS), gather(torch.arange(20), ROWS)
    return Samples(x, y, {"train": RowLists.of([torch.tensor([0, 2]), torch.tensor([1, 3])])})


def counted(calls: list[int], group: ProcessGroup) -> Callable[[Gather], Samples]:
    def make(gather: Gather) -> Samples:
        calls.append(group.rank)
        return pool(gather)

    return make


def test_alone_a_process_makes_its_own() -> None:
    made = made_once(ALONE, pool)
    assert torch.equal(made.x, TABLE[ROWS])
    assert "flbench" not in mapped()


@pytest.mark.usefixtures("large")
def test_one_process_makes_what_all_have_and_what_one_writes_no_other_sees() -> None:
    calls: list[int] = []
    said: list[str] = []

    def work(group: ProcessGroup) -> tuple[Samples, bool]:
        made = made_once(group, counted(calls, group), said.append)
        is_mapped = "memfd:flbench-samples" in mapped()
        group.all_gather_object(None)
        made.x[group.rank] = -1
        group.all_gather_object(None)
        return made, is_mapped

    ends = together(3, work)
    assert (calls, said) == ([0], [])
    for rank, (made, is_mapped) in enumerate(ends):
        expected = TABLE[ROWS].clone()
        expected[rank] = -1
        assert is_mapped
        assert torch.equal(made.x, expected)
        assert made.y.tolist() == ROWS.tolist()
        assert made.splits["train"][1].tolist() == [1, 3]
    assert shared_files() == []
    del ends, made, expected
    assert "flbench" not in mapped(), "the memory goes with the last tensor"


@pytest.mark.usefixtures("large")
def test_each_machine_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    place = threading.local()
    monkeypatch.setattr(process_group, "machine", lambda: place.name)
    calls: list[int] = []

    def work(group: ProcessGroup) -> Samples:
        place.name = "ab"[group.rank // 2]
        return made_once(group, counted(calls, group))

    for made in together(4, work):
        assert torch.equal(made.x, TABLE[ROWS])
    assert sorted(calls) == [0, 2]


def refuse(*_: object) -> int:
    raise OSError("no space")


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("fails", ["memfd_create", "posix_fallocate", "there", "mapping"])
def test_where_samples_cannot_be_shared_each_process_makes_its_own(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fails == "there":
        monkeypatch.delattr(os, "memfd_create")
    elif fails == "mapping":
        monkeypatch.setattr(shared_samples._Unpickler, "persistent_load", refuse)
    else:
        monkeypatch.setattr(os, fails, refuse)
    calls: list[int] = []
    said: list[str] = []
    ends = together(2, lambda group: made_once(group, counted(calls, group), said.append))
    for made in ends:
        assert torch.equal(made.x, TABLE[ROWS])
    assert sorted(calls) == [0, 1]
    line = "the processes cannot share the clients' samples, so each has a copy of its own"
    assert said == [line] * 2, "each says it, and rank 0 is heard"
    assert shared_files() == []


@pytest.mark.usefixtures("large")
def test_what_the_first_cannot_make_all_refuse() -> None:
    def fail(gather: Gather) -> Samples:
        pool(gather)
        raise UserError("client 3 has 1 sample")

    for end in together(2, lambda group: made_once(group, fail)):
        assert type(end) is UserError
        assert str(end) == "client 3 has 1 sample"
    assert shared_files() == []


@pytest.mark.usefixtures("large")
def test_a_run_in_three_processes_loads_once_and_has_the_same_bits(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"clients": 8, "unseen": 0.25, "server_samples": 8}
    one = run_of(player(tmp_path / "one"), "fedavg", **changes)
    for other in together(3, lambda _: run_of(player(tmp_path / "three"), "fedavg", **changes)):
        assert stable(other) == stable(one)
        ours, alone = other.run.executor.samples, one.run.executor.samples
        assert torch.equal(ours.x, alone.x)
        assert torch.equal(ours.y, alone.y)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="samples are shared on Linux only")
def test_two_real_processes_load_once_and_end_as_one(tmp_path: Path) -> None:
    first, second = in_process_group(run_of_large_samples, 2, str(tmp_path / "two"), 2)
    (alone,) = in_process_group(run_of_large_samples, 1, str(tmp_path / "one"), 1)
    assert (first["loads"], second["loads"], alone["loads"]) == (1, 0, 1)
    assert (first["mapped"], second["mapped"], alone["mapped"]) == (True, True, False)
    assert first["open"] == second["open"] == []
    assert first["result"] == second["result"] == alone["result"]
