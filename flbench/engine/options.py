"""EngineOptions: what a run is computed with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flbench.errors import BadParameter

EXACT = "32-true"


UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


@dataclass(frozen=True)
class EngineOptions:
    """What a run is computed with. It changes times, not results, but for `precision`.

    Attributes:
        executor: how the clients of a stage are trained: auto, sequential or vectorised.
        accelerator: what Fabric runs on: auto, cpu, cuda, ...
        devices: processes on each machine, one a device; the clients of a stage are dealt to them.
        nodes: machines.
        precision: Fabric's name of the arithmetic of forward and backward passes.
        compile: let torch.compile translate the network.
        bank_budget: bytes of models that are kept in memory; None = half of the machine's.
        threads: CPU threads of torch. One is fastest for small networks, and keeps sums in the
            same order on every machine.
    """

    executor: str = "auto"
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    precision: str = EXACT
    compile: bool = False
    bank_budget: int | None = None
    threads: int = 1


def size(text: str) -> int:
    """Bytes, from "8GB" or "512 MB" or a plain number.

    Raises:
        BadParameter: it is no size.

    Example:
        >>> size("1.5 MB"), size("4096")
        (1572864, 4096)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if found is None:
        raise BadParameter(f"expected a size such as 8GB or 500MB, got '{text}'")
    unit = found[2].upper()
    return int(float(found[1]) * UNITS[f"{unit}B" if unit else ""])
