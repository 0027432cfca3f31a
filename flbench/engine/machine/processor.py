"""What computes, as far as the last bits of a number depend on it."""

from __future__ import annotations

import torch

from flbench.engine.machine import portable
from flbench.engine.machine.instructions import vendor


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
    return " ".join([*vendor(), instructions])


def lacks_bfloat16(device: torch.device) -> bool:
    """Whether passes in bfloat16 are known to be slow: an x86-64 CPU without AVX-512."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"
