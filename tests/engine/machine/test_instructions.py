"""Libraries are limited to AVX2 where that is what a processor of the same vendor has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flbench.engine.machine import instructions
from flbench.engine.machine.instructions import SAME_VENDOR, limit, limited, to_compute_as


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What the system says of its CPUs; no variable is set. A process finds out once."""
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(instructions, "CPU_INFO", info)
    for name in SAME_VENDOR:
        monkeypatch.delenv(name, raising=False)
    cached = instructions.vendor, instructions._is_wide
    for function in cached:
        function.cache_clear()
    yield info
    for function in cached:
        function.cache_clear()


@pytest.mark.parametrize(
    ("there", "here", "is_limited"),
    [
        ("AuthenticAMD AVX2", "vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f\n", True),
        ("AuthenticAMD AVX2", "vendor_id\t: AuthenticAMD\nflags\t\t: avx avx2\n", False),
        ("AuthenticAMD AVX2", "vendor_id\t: GenuineIntel\nflags\t\t: avx2 avx512f\n", False),
        ("AuthenticAMD AVX512", "vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f\n", False),
        ("AuthenticAMD DEFAULT", "vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f\n", False),
        ("", "vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f\n", False),
        ("AVX2", "flags\t\t: avx2 avx512f\n", True),
        ("AVX2", "", False),
    ],
)
def test_what_a_vendor_s_other_processor_had(
    cpu: Path, there: str, here: str, is_limited: bool
) -> None:
    cpu.write_text(here, encoding="utf-8")
    assert to_compute_as(there) == (SAME_VENDOR if is_limited else {})


def test_what_somebody_has_chosen_is_left(cpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu.write_text("vendor_id\t: AuthenticAMD\nflags\t\t: avx512f\n", encoding="utf-8")
    assert not limited(SAME_VENDOR)
    for name in SAME_VENDOR:
        monkeypatch.setenv(name, "default")
    assert not limited(SAME_VENDOR)
    assert to_compute_as("AuthenticAMD AVX2") == {}


def test_limits_are_variables_of_this_process(cpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER", "1")  # restored afterwards, as what is set here is deleted
    assert limited({})
    limit({"OTHER": "2"})
    assert limited({"OTHER": "2"})
    assert not limited({"OTHER": "2", **SAME_VENDOR})
