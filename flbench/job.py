"""Job: one run as asked for, and where its files will lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flbench.methods import Composition
from flbench.results import checkpoint_path, result_path
from flbench.suite import Suite, fingerprint


@dataclass(frozen=True)
class Job:
    """One run as asked for: everything is named and checked, nothing is loaded.

    Attributes:
        out: folder of the result files.
        resume: continue from the checkpoint, if there is one.
        force: recompute even if the result is there.
        threads: CPU threads of torch. One is fastest for small networks, and keeps sums in the
            same order on every machine.
        sinks: listeners, by name.
    """

    suite: Suite
    method: Composition
    seed: int
    data_root: Path
    out: Path
    executor: str = "auto"
    accelerator: str = "auto"
    devices: int = 1
    threads: int = 1
    resume: bool = False
    force: bool = False
    sinks: Sequence[tuple[str, object]] = ()
    say: Callable[[str], None] = field(default=lambda message: None)

    @property
    def fingerprint(self) -> str:
        """Hash of suite, method and parameters; the same for all seeds."""
        aside = {"plugins": {"__all__": {"baseline"}}}  # it changes no number
        method = self.method.described.model_dump(mode="json", exclude=aside)
        return fingerprint({"suite": self.suite.settings(), "method": method})

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
