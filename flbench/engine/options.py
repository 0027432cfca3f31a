"""EngineOptions: executor, devices, precision and memory of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flbench.errors import BadParameter

EXACT = "32-true"
FELL_BACK = "sequential, as lanes failed"
"""What computes where lanes were to, and are not possible; a result says so."""
LARGEST = 2**60
"""Bytes that no machine has."""
UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


@dataclass(frozen=True)
class EngineOptions:
    """How a run is computed: `precision` changes results, others times, and some the last bits.

    Attributes:
        executor: how the clients of a stage are trained: one by one (sequential), in lanes
            (vectorised), or as the network and the batch say (auto, see `lanes.automatic`).
        accelerator: accelerator of Fabric: auto, cpu, cuda, ...
        devices: number of processes per machine, one per device; they share the clients of a
            stage.
        nodes: number of machines.
        precision: Fabric's name of the precision of forward and backward passes.
        compile: compile the network with torch.compile.
        bank_budget: bytes of models that the processes of a machine keep in memory, uploads of a
            round included (on GPUs: each process); None = half of what is free at the beginning.
        threads: CPU threads of torch. One is fastest for small networks, and gives sums the same
            order on every machine.
        energy: estimate the energy of the run (needs codecarbon).
        portable: compute with the same bits on every x86-64 processor with AVX2 (`portable.py`).
    """

    executor: str = "auto"
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    precision: str = EXACT
    compile: bool = False
    bank_budget: int | None = None
    threads: int = 1
    energy: bool = False
    portable: bool = False


def size(text: str) -> int:
    """Convert a size such as "8GB", "512 MB" or "4096" to bytes.

    Raises:
        BadParameter: the text is not a size.

    Example:
        >>> size("1.5 MB"), size("4096")
        (1572864, 4096)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if found is None:
        raise BadParameter(f"expected a size such as 8GB or 500MB, got '{text}'")
    unit = found[2].upper()
    size = float(found[1]) * UNITS[f"{unit}B" if unit else ""]
    if size >= LARGEST:
        raise BadParameter(f"expected a size below {LARGEST / 2**40:.0f} TB, got '{text[:40]}'")
    return int(size)
