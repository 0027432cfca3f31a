"""The C library keeps the memory of activations, and gives large tables back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flbench.engine.machine import allocator
from flbench.engine.options import EngineOptions
from flbench.engine.processes import fabric

FAULTS = """
import ctypes, resource
from pathlib import Path
from flbench.engine.machine.allocator import keep_activations
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def faults(size, count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [ctypes.c_void_p(libc.malloc(size)) for _ in range(count)]
    for block in blocks:
        libc.memset(block, 1, size)
    for block in blocks:
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

by_default = faults(2**23, 8), faults(2**23, 8)
kept = keep_activations()
first, again = faults(2**23, 8), faults(2**23, 8)
before = resident()
faults(2**26, 4)
print(int(kept), by_default[1], again, int(resident() < before + 2**24))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is a function of glibc")
def test_activations_get_the_pages_of_the_step_before_and_tables_give_theirs_back() -> None:
    text = subprocess.run(
        [sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True
    ).stdout
    kept, by_default, again, given_back = map(int, text.split())
    assert kept
    assert by_default > 8, "8 blocks of 8 MiB are given back by default"
    assert again < 8
    assert given_back


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_activations()
    monkeypatch.setattr(allocator.sys, "platform", "win32")
    monkeypatch.setattr(allocator.ctypes, "CDLL", None)
    assert not allocator.keep_activations()


def test_a_run_keeps_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    monkeypatch.setattr(fabric, "keep_activations", lambda: called.append(True))
    fabric.open_fabric(EngineOptions(accelerator="cpu"))
    assert called
