"""Job: one run as asked for, what it is computed with, and where its files will lie."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flbench.errors import BadParameter
from flbench.methods import Composition
from flbench.results.files import checkpoint_path, result_path
from flbench.results.schema import Tuning
from flbench.suite import Suite, fingerprint

EXACT = "32-true"
UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


@dataclass(frozen=True)
class Engine:
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


@dataclass(frozen=True)
class Job:
    """One run as asked for: everything is named and checked, nothing is loaded.

    Attributes:
        out: folder of the result files.
        tuning: how the method's parameters were found, if they were searched for.
        resume: continue from the checkpoint, if there is one.
        force: recompute even if the result is there.
        sinks: listeners, by name.
    """

    suite: Suite
    method: Composition
    seed: int
    data_root: Path
    out: Path
    engine: Engine = Engine()
    tuning: Tuning | None = None
    resume: bool = False
    force: bool = False
    sinks: Sequence[tuple[str, object]] = ()
    say: Callable[[str], None] = field(default=lambda message: None)

    @property
    def fingerprint(self) -> str:
        """Hash of suite, method and parameters; the same for all seeds."""
        aside = {"plugins": {"__all__": {"baseline", "source"}}}  # told beside the version
        method = self.method.described.model_dump(mode="json", exclude=aside)
        parts: dict[str, object] = {"suite": self.suite.settings(), "method": method}
        if self.tuning is not None:
            parts["tuning"] = self.tuning.model_dump()
        if self.engine.precision != EXACT:
            parts["precision"] = self.engine.precision
        return fingerprint(parts)

    @property
    def path(self) -> Path:
        """Where the result will lie."""
        return result_path(
            self.out,
            self.suite.name,
            self.suite.dataset,
            self.method.described.name,
            self.fingerprint,
            self.seed,
        )

    @property
    def checkpoint(self) -> Path:
        """Where the last whole round is kept until the result is there."""
        return checkpoint_path(self.path)

    @property
    def title(self) -> str:
        """What it is called in messages."""
        suite = self.suite
        return f"{self.method.described.name} on {suite.name} ({suite.dataset}), seed {self.seed}"
