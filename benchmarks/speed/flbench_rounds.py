"""flbench on a workload: `python -m flbench_benchmarks.speed.flbench_rounds WORK ENGINE FOLDER`.

It does all that `flbench run` does: partition, hooks, executor, communication ledger, checkpoints.
Only the last round evaluates, and it is never reached.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from flbench.engine.processes import own_process as own_process  # the memory is that of a run

# isort: split
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from flbench.core.hookspecs import hookimpl
from flbench.engine.options import EngineOptions
from flbench.results.events import RunInfo
from flbench.run.runner import execute

from .turns import Turns, pin
from .workload import Workload, dataset, run_spec


class StepCounter:
    """Counts the optimiser steps of this process until `stop`."""

    def __init__(self) -> None:
        self.count = 0
        self._hook = register_optimizer_step_post_hook(self._add)

    def _add(self, optimizer: Optimizer, *arguments: object) -> None:
        self.count += 1

    def stop(self) -> int:
        """Stop counting; return the number of steps."""
        self._hook.remove()
        return self.count


class RoundReporter:
    """A sink that reports every round and waits for the next turn."""

    def __init__(self) -> None:
        self.turns, self.steps = Turns(), StepCounter()

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Report that the run is ready."""
        self.turns.report_and_wait()

    @hookimpl
    def round_finished(self) -> None:
        """Report the round; its steps are not known where clients train in lanes."""
        self.turns.report_and_wait(steps=self.steps.stop() or None)


class RoundBarrier:
    """A plugin that keeps all processes waiting while rank 0 waits for its turn."""

    @hookimpl
    def plan(self) -> None:
        """Wait for the other processes; leave the plan as it is."""
        if dist.is_initialized():
            dist.barrier()


def main() -> None:
    """Play rounds until standard input is closed; rank 0 reports."""
    work, options, folder = sys.argv[1:]
    engine, rank = EngineOptions(**json.loads(options)), int(os.environ.get("LOCAL_RANK", 0))
    if engine.devices > 1:
        pin(rank)
    spec = run_spec(
        Workload.read(work), Path(folder), engine, RoundReporter() if rank == 0 else None
    )
    layers = (*spec.method.layers, ("round-barrier", RoundBarrier()))
    spec = replace(spec, method=replace(spec.method, layers=layers))
    execute(spec, lambda name, root: dataset(Workload.read(work)))


if __name__ == "__main__":
    main()
