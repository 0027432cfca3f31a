"""What computes, as far as the last bits of a number depend on it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from flbench.engine import portable

CPU_INFO = Path("/proc/cpuinfo")


def processor(device: torch.device) -> str:
    """A GPU's name; of a CPU its vendor, if the system says it, and the instructions torch uses.

    The libraries below torch take sums in another order on another of them, unless they compute
    portably.

    Example:
        "AuthenticAMD AVX2"
    """
    if portable.is_on():
        return portable.NAME
    if device.type != "cpu":
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    instructions = torch.backends.cpu.get_cpu_capability()
    return " ".join([*_vendor(), instructions])


def lacks_bfloat16(device: torch.device) -> bool:
    """Whether passes in bfloat16 are known to be slow: an x86-64 CPU without AVX-512."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"


@cache
def _vendor() -> tuple[str, ...]:
    """The vendor of the first CPU; nothing where the system does not say it."""
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")]
    return tuple(names[:1])
