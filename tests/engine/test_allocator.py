"""The C library keeps freed memory: the next tensor of the same size needs no new pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flbench.engine import allocator, fabric
from flbench.engine.options import EngineOptions

FAULTS = """
import ctypes, resource
from flbench.engine.allocator import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = ctypes.c_void_p(libc.malloc(2**27))
    libc.memset(block, 1, 2**27)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(), faults(), int(keep_freed_memory()), faults(), faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is a function of glibc")
def test_freed_memory_is_used_again() -> None:
    text = subprocess.run(
        [sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True
    ).stdout
    _, before, kept, _, after = map(int, text.split())
    assert kept
    assert before > 8, "by default it is given back"
    assert after < 8


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()
    monkeypatch.setattr(allocator.sys, "platform", "win32")
    monkeypatch.setattr(allocator.ctypes, "CDLL", None)
    assert not allocator.keep_freed_memory()


def test_a_run_keeps_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    monkeypatch.setattr(fabric, "keep_freed_memory", lambda: called.append(True))
    fabric.open_fabric(EngineOptions(accelerator="cpu"))
    assert called
