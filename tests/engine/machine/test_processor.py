"""What computes is named by what changes the last bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from toy import Play

from flbench.engine.machine import instructions
from flbench.engine.machine.processor import processor
from flbench.engine.options import EngineOptions

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """A process finds out once."""
    instructions.vendor.cache_clear()
    yield
    instructions.vendor.cache_clear()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\nvendor_id\t: Other\n", "AuthenticAMD AVX9"),
        ("processor\t: 0\nBogoMIPS\t: 48.00\n", "AVX9"),
        (None, "AVX9"),
    ],
)
def test_a_cpu_has_a_vendor_and_instructions(
    text: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    if text is not None:
        info.write_text(text, encoding="utf-8")
    monkeypatch.setattr(instructions, "CPU_INFO", info)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX9")
    assert processor(CPU) == name


def test_a_gpu_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert processor(torch.device("cuda:1")) == "GPU 1"
    assert processor(torch.device("mps")) == "mps"


@pytest.mark.parametrize(
    ("precision", "capability", "slow"),
    [("bf16-mixed", "AVX2", True), ("bf16-mixed", "AVX512", False), ("32-true", "AVX2", False)],
)
def test_a_run_says_that_bfloat16_is_slow_here(
    play_toy: Play,
    precision: str,
    capability: str,
    slow: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    engine = EngineOptions("sequential", "cpu", precision=precision)
    played = play_toy("fedavg", engine=engine, rounds=1)
    assert any("no AVX-512" in line for line in played.said) == slow
    assert not played.result.warnings, "results do not depend on it"
