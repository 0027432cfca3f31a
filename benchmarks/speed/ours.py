"""flbench at work: `python -m flbench_benchmarks.speed.ours WORK ENGINE FOLDER`.

The whole way of `flbench run`: partition, hooks, executor, ledger, checkpoints. The last round,
which evaluates, is never played.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from flbench.core.hookspecs import hookimpl
from flbench.core.state import State
from flbench.engine.options import EngineOptions
from flbench.results.events import RoundRecord, RunInfo
from flbench.run.runner import execute

from .baton import Baton, pin
from .work import Work, dataset, job


class Steps:
    """Counts optimiser steps of this process until it is asked for them."""

    def __init__(self) -> None:
        self.count = 0
        self._hook = register_optimizer_step_post_hook(self._add)

    def _add(self, optimizer: Optimizer, *arguments: object) -> None:
        self.count += 1

    def told(self) -> int:
        """The steps so far; no more are counted."""
        self._hook.remove()
        return self.count


class Lapping:
    """A sink that hands the baton over after every round."""

    def __init__(self) -> None:
        self.baton, self.steps = Baton(), Steps()

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Ready."""
        self.baton.lap()

    @hookimpl
    def round_finished(self, record: RoundRecord, state: State) -> None:
        """One round more."""
        self.baton.lap(steps=self.steps.told())


class Together:
    """A plugin that lets no process begin a round while the first one waits for its turn."""

    @hookimpl
    def plan(self) -> None:
        """Decide nothing."""
        if dist.is_initialized():
            dist.barrier()


def main() -> None:
    """Play rounds until nobody waits for them; of several processes the first reports."""
    work, options, folder = sys.argv[1:]
    engine, rank = EngineOptions(**json.loads(options)), int(os.environ.get("LOCAL_RANK", 0))
    if engine.devices > 1:
        pin(rank)
    asked = job(Work.read(work), Path(folder), engine, Lapping() if rank == 0 else None)
    layers = (*asked.method.layers, ("together", Together()))
    asked = replace(asked, method=replace(asked.method, layers=layers))
    execute(asked, lambda name, root: dataset(Work.read(work)))


if __name__ == "__main__":
    main()
