"""RunSpec: one run as asked for, what it is computed with, and where its files will lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flbench.core.local_training import LocalTraining
from flbench.engine.options import EXACT, EngineOptions
from flbench.results.files import checkpoint_path, result_path
from flbench.results.hashed_fields import hashed
from flbench.results.kept_files import KeepOptions, last_checkpoint_path
from flbench.results.schema import Result, Tuning
from flbench.run.composition import MethodStack
from flbench.suite import Suite, fingerprint


@dataclass(frozen=True)
class RunSpec:
    """One run as asked for: everything is named and checked, nothing is loaded.

    Attributes:
        tuning: how the method's parameters, or the learning rate, were found, if searched for.
        resume: continue from the checkpoint, if there is one.
        changed_source: also if what computes has changed since; the result says so.
        force: recompute even if the result is there.
        keep: what is kept beside the result.
    """

    suite: Suite
    method: MethodStack
    seed: int
    data_root: Path
    out: Path
    engine: EngineOptions = field(default_factory=EngineOptions)
    tuning: Tuning | None = None
    resume: bool = False
    changed_source: bool = False
    force: bool = False
    keep: KeepOptions = field(default_factory=KeepOptions)
    sinks: Sequence[tuple[str, object]] = ()
    say: Callable[[str], None] = field(default=lambda message: None)

    @property
    def local(self) -> LocalTraining:
        """How clients train: as the suite says, with the learning rate that was searched for."""
        found = None if self.tuning is None else self.tuning.lr
        return self.suite.local if found is None else replace(self.suite.local, lr=found)

    @property
    def fingerprint(self) -> str:
        """Hash of suite, method and parameters; the same for all seeds."""
        method = self.method.described
        parts: dict[str, object] = {
            "suite": self.suite.settings(),
            "method": hashed(method, method.model_dump(mode="json")),
        }
        if self.tuning is not None:
            parts["tuning"] = hashed(self.tuning, self.tuning.model_dump())
        if self.engine.precision != EXACT:
            parts["precision"] = self.engine.precision
        return fingerprint(parts)

    @property
    def path(self) -> Path:
        """Where the result will lie."""
        suite, method = self.suite, self.method.described
        return result_path(
            self.out, suite.name, suite.dataset, method.name, self.fingerprint, self.seed
        )

    @property
    def checkpoint(self) -> Path:
        """Where the last whole round is kept until the result is there."""
        return checkpoint_path(self.path)

    def lacking(self, result: Result) -> list[str]:
        """The metrics, files and target asked for, and that a complete result does not have."""
        asked = [metric.label for metric in self.suite.metrics]
        lacking = [label for label in asked if label not in (result.client_metrics or {})]
        lacking += [f"saved {kind}" for kind in self.keep.saved if kind not in (result.saved or {})]
        if self.keep.checkpoint and not last_checkpoint_path(self.path).is_file():
            lacking.append("a checkpoint")
        if self.suite.target != result.summary.get("target"):
            lacking.append(f"target={self.suite.target}")
        return lacking

    def of_rounds(self, rounds: int) -> RunSpec:
        """The same run with another number of rounds."""
        return replace(self, suite=self.suite.model_copy(update={"rounds": rounds}))

    @property
    def title(self) -> str:
        """What it is called in messages."""
        suite = self.suite
        return f"{self.method.described.name} on {suite.name} ({suite.dataset}), seed {self.seed}"
