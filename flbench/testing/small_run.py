"""A federation small enough to play in a blink: 6 clients in 2 groups, 3 features, 4 labels."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset
from flbench.core.hookspecs import hookimpl
from flbench.core.state import State
from flbench.engine.options import EngineOptions
from flbench.engine.sequential import Sequential
from flbench.results.schema import VOLATILE, Method, Result
from flbench.run.checkpoint import pack, write
from flbench.run.composition import MethodStack
from flbench.run.newcomers import evaluate_newcomers
from flbench.run.result import build_result
from flbench.run.rounds import Run, round_context, run_rounds
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.suite import Suite

CLIENTS = 6


SERVER = 8
"""Samples the server owns, for methods that need some."""


DEFAULTS = MethodStack((), Method(name="defaults", params={}, plugins=[]))
"""No plugin at all: every hook is answered by the defaults."""


Watch = tuple[str, object]


Wrap = Callable[[Run], Sequential]


def small_dataset(seed: int = 0, samples: int = 72) -> Dataset:
    """Four labels around four points in three dimensions.

    Returns:
        x of shape (samples, 3), float32; labels 0, 1, 2, 3, 0, 1, ...
    """
    generator = np.random.default_rng(seed)
    y = np.arange(samples) % 4
    centres = np.array([[2, 0, 0], [0, 2, 0], [0, 0, 2], [-2, -2, 0]], dtype=np.float32)
    x = centres[y] + generator.normal(0, 0.7, (samples, 3)).astype(np.float32)
    return Dataset("small", torch.as_tensor(x), torch.as_tensor(y), 4)


def small_suite(**changes: Any) -> Suite:  # noqa: ANN401 - fields of a suite
    """Two groups of three clients, two labels a group, half of them sampled in each round."""
    settings: dict[str, Any] = {
        "name": "small",
        "version": 1,
        "summary": "a federation to play in a blink",
        "dataset": "small",
        "partition": {"name": "label-groups", "groups": 2},
        "model": {"name": "mlp", "hidden": 3},
        "clients": CLIENTS,
        "participation": 0.5,
        "rounds": 3,
        "local": {"epochs": 2, "batch_size": 4, "lr": 0.1, "momentum": 0.5},
    }
    return Suite.model_validate({**settings, **changes})


@dataclass
class SmallRun:
    """A finished run.

    Attributes:
        run: the run.
        state: the last state.
        job: what was asked for.
        said: what the run told the person.
        states: the state after each round.
    """

    run: Run
    state: State
    job: RunSpec
    said: list[str] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    @property
    def result(self) -> Result:
        """The result, newcomers included."""
        return build_result(
            self.job, self.run, self.state, evaluate_newcomers(self.run, self.state)
        )

    @property
    def served(self) -> Tensor:
        """The model that each client is evaluated by, before it adapts, shape (N, W)."""
        run, ctx = self.run, round_context(self.run, self.state.round)
        return run.hooks.personalise(self.state, ctx.everybody, ctx).models(self.state)

    @property
    def stable(self) -> dict[str, Any]:
        """The result file's content, but for what differs between two runs of the same thing."""
        table = json.loads(self.result.canonical())
        return {key: value for key, value in table.items() if key not in VOLATILE}


@dataclass
class Film:
    """A listener that keeps the state of every round."""

    states: list[State] = field(default_factory=list)

    @hookimpl
    def round_finished(self, state: State) -> None:
        """Keep it."""
        self.states.append(state)


def play_small(
    method: MethodStack,
    suite: Suite | None = None,
    dataset: Dataset | None = None,
    *,
    seed: int = 0,
    engine: EngineOptions | None = None,
    order: Sequence[int] | None = None,
    watch: Sequence[Watch] = (),
    wrap: Wrap | None = None,
    before: Callable[[Run], None] = lambda run: None,
    cut: int | None = None,
    film: bool = True,
) -> SmallRun:
    """Play a method on the small federation.

    Args:
        suite: another one.
        dataset: another one.
        engine: default: one process on the CPU, one client after the other.
        order: relabel the clients (`Federation.relabelled`).
        watch: further plugins, asked before the method; they should answer None.
        wrap: gives an executor to train with instead of the run's own.
        before: told of the run before its first round.
        cut: stop after so many rounds, and go on from the checkpoint in a fresh run.
        film: keep the state of every round.
    """
    said: list[str] = []
    seen = Film()
    untouched = copy.deepcopy(method.layers)
    method = replace(method, layers=(*method.layers, *watch))
    with tempfile.TemporaryDirectory(prefix="flbench-") as folder:
        job = RunSpec(
            suite=suite or small_suite(),
            method=method,
            seed=seed,
            data_root=Path(folder),
            out=Path(folder),
            engine=engine or EngineOptions(executor="sequential", accelerator="cpu"),
            sinks=(("film", seen),) if film else (),
            say=said.append,
        )
        data = dataset or small_dataset()

        def begun(job: RunSpec) -> tuple[Run, State]:
            run, state = prepare(job, data, order)
            run.checkpoint = None
            if wrap is not None:
                run.executor = run.services.executor = wrap(run)
            before(run)
            return run, state

        run, state = begun(job)
        if cut is not None:
            rounds = run.suite
            run.suite = rounds.model_copy(update={"rounds": cut})
            state = run_rounds(run, state)
            job.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            write(job.checkpoint, pack(state, run.ledger, run.history, run.marks))
            fresh = replace(method, layers=(*untouched, *watch))  # as another process has it
            job = replace(job, method=fresh, resume=True)
            run, state = begun(job)
        return SmallRun(run, run_rounds(run, state), job, said, seen.states)
