"""What fresh processes are asked for in tests; they import it by this name."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flbench.cli.main import app
from flbench.core.dataset import Dataset
from flbench.core.hookspecs import hookimpl
from flbench.engine.options import EngineOptions
from flbench.run.composition import compose
from flbench.run.runner import execute, resolve_dataset
from flbench.run.spec import RunSpec
from flbench.testing.small_run import DEFAULTS, run_small, small_dataset, small_suite


def place() -> list[str]:
    """Where a process of a group is told to meet the others."""
    return [os.environ["LOCAL_RANK"], os.environ["MASTER_ADDR"]]


def dies() -> None:
    """End without an answer."""
    os._exit(7)


def raises() -> None:
    """Refuse."""
    raise ValueError("expected more")


def call(*args: str) -> None:
    """`flbench run` in this process."""
    done = CliRunner().invoke(app, ["run", *args], catch_exceptions=False)
    assert done.exit_code == 0


def clocked_end(clock: dict[str, Any], devices: int) -> dict[str, Any]:
    """The simulated times of a small run, and what was sent."""
    engine = EngineOptions(executor="sequential", accelerator="cpu", devices=devices)
    done = run_small(DEFAULTS, small_suite(clock=clock), engine=engine)
    seconds = done.run.history.curves["simulated_seconds"]
    return {"seconds": seconds, "exact": done.state.seconds, "bytes": done.run.ledger.totals}


def shared_files() -> list[str]:
    """The open files of this process that hold shared samples."""
    names: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder that was listed is closed
            names.append(os.readlink(link))
    return [name for name in names if "flbench" in name]


def run_of_large_samples(folder: str, devices: int) -> dict[str, Any]:
    """Run two rounds with 6 MiB of samples; what this process loaded and mapped, and the result."""
    loads: list[str] = []

    def load(name: str, root: Path) -> Dataset:
        loads.append(name)
        small = small_dataset(samples=2048)
        return replace(small, x=small.x.repeat(1, 256))

    where = Path(folder)
    spec = RunSpec(
        suite=small_suite(rounds=2),
        method=compose("fedavg"),
        seed=0,
        data_root=where,
        out=where,
        engine=EngineOptions("sequential", "cpu", devices=devices),
        say=[].append,
    )
    mapped: list[bool] = []

    @dataclass(frozen=True)
    class Looks:
        @hookimpl
        def plan(self) -> None:
            mapped.append("memfd:flbench-samples" in Path("/proc/self/maps").read_text())

    method = replace(spec.method, layers=(*spec.method.layers, ("looks", Looks())))
    result = execute(*resolve_dataset(replace(spec, method=method), load))
    plain = result.model_dump(exclude={"seconds", "environment"})
    text = json.dumps(plain, sort_keys=True, default=str)
    return {"loads": len(loads), "mapped": all(mapped), "open": shared_files(), "result": text}
