"""Runs on the toy federation that keep files beside their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toy import toy_dataset, toy_suite

from flbench.core.dataset import Dataset
from flbench.core.hookspecs import hookimpl
from flbench.engine.options import EngineOptions
from flbench.results.kept_files import KeepOptions
from flbench.results.schema import Result
from flbench.run.composition import MethodStack, compose
from flbench.run.runner import execute
from flbench.run.spec import RunSpec

SAVED = KeepOptions(models=True, predictions=True)
LAST = KeepOptions(checkpoint=True)


@dataclass
class Rounds:
    """Listens to the rounds of a run."""

    heard: list[int] = field(default_factory=list)

    @hookimpl
    def round_finished(self, record: Any) -> None:
        self.heard.append(record.round)


def kept_spec(
    folder: Path,
    method: str | MethodStack = "fedavg",
    keep: KeepOptions = SAVED,
    *,
    settings: dict[str, object] | None = None,
    executor: str = "auto",
    said: list[str] | None = None,
    **changes: Any,
) -> RunSpec:
    """A run of a method on the toy suite; `changes` are fields of the suite."""
    return RunSpec(
        suite=toy_suite(**changes),
        method=compose(method, settings) if isinstance(method, str) else method,
        seed=0,
        data_root=folder,
        out=folder / "out",
        engine=EngineOptions(accelerator="cpu", executor=executor),
        keep=keep,
        say=[].append if said is None else said.append,
    )


def played_to_disk(spec: RunSpec, data: Dataset | None = None) -> Result:
    """The result of a run, which is on the disk."""
    return execute(spec, lambda name, root: data or toy_dataset())
