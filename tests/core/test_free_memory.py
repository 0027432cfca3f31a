"""Memory that is free: of the machine, and within the limits of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from flbench.core import free_memory as module
from flbench.core.free_memory import free_memory, half_of_free

MEMINFO = "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n"


def put(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def group(root: Path, folder: str, **files: str) -> None:
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / folder / name.replace("_", ".", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    put(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/user/me\n")
    group(tmp_path, "user", memory_max="max\n", memory_current="7\n", memory_stat="")
    assert free_memory(tmp_path) == 5000 * 1024


def test_a_group_above_limits_those_below_and_cached_files_are_free(tmp_path: Path) -> None:
    put(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/job/step\n")
    stat = "anon 1\ninactive_file 300\n"
    group(tmp_path, "job", memory_max="2000\n", memory_current="1500\n", memory_stat=stat)
    group(tmp_path, "job/step", memory_max="max\n", memory_current="9\n", memory_stat=stat)
    assert free_memory(tmp_path) == 2000 - 1500 + 300


def test_version_1_of_control_groups(tmp_path: Path) -> None:
    put(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="4:memory:/me\n3:cpu:/\n0::/\n")
    files = {"memory_limit_in_bytes": "2000", "memory_usage_in_bytes": "1500"}
    group(tmp_path, "memory/me", **files, memory_stat="total_inactive_file 20\n")
    assert free_memory(tmp_path) == 520


def test_elsewhere_nothing_is_known(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
    free = free_memory()
    assert free is None or free > 2**20


def test_half_of_what_is_free_of_the_machine_or_of_its_whole_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "free_memory", lambda: 3001)
    assert half_of_free() == half_of_free(torch.device("cpu")) == 1500
    monkeypatch.setattr(module, "free_memory", lambda: None)
    assert half_of_free() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def test_half_of_what_is_free_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (700, 9000))
    assert half_of_free(torch.device("cuda", 1)) == 350
