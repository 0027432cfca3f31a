"""Runs of a small federation, which take milliseconds: 6 clients, 2 groups."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from flbench.core.client_module import LocalWork
from flbench.core.dataset import Dataset
from flbench.core.hookspecs import hookimpl
from flbench.core.state import Dispatched, Stage, State, Upload
from flbench.engine.options import EngineOptions
from flbench.results.schema import VOLATILE, Method, Result
from flbench.run.checkpoint import pack, write
from flbench.run.composition import MethodStack
from flbench.run.history import Evaluation
from flbench.run.newcomers import evaluate_newcomers
from flbench.run.result import build_result
from flbench.run.rounds import Run, round_context, run_rounds
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.suite import Suite, build_suite
from flbench.testing.federations import FEDERATIONS, SAMPLES, points

CLIENTS = 6
SERVER_SAMPLES = 8
"""Samples that the server owns, for methods that need some."""
USUAL = FEDERATIONS["small"]
DEFAULTS = MethodStack((), Method(name="defaults", params={}, plugins=[]))
"""No plugin: the defaults (FedAvg) answer every hook."""
FitFunction = Callable[[Dispatched, Stage, LocalWork, int], Upload]
AroundFit = Callable[[FitFunction, Dispatched, Stage, LocalWork, int], Upload]
"""Called in place of an executor's `fit`, with that `fit` and its arguments."""


def small_dataset(seed: int = 0, samples: int = SAMPLES) -> Dataset:
    """The samples of the usual small federation; see `points`."""
    return points(samples, seed)


def small_suite(**changes: Any) -> Suite:  # noqa: ANN401 - fields of a suite
    """Two groups of three clients, two labels a group, half of them sampled in each round.

    With the `dataset` of another small federation it has the network that goes with it.
    `changes` are fields as `--set` takes them, such as `rounds` or `**{"local.epochs": 1}`; a table
    such as `local` replaces the whole table.
    """
    settings: dict[str, Any] = {
        "name": "small",
        "version": 1,
        "summary": "a small federation for tests",
        "dataset": "small",
        "partition": {"name": "label-groups", "groups": 2},
        "model": {"name": "mlp", "hidden": 3},
        "clients": CLIENTS,
        "participation": 0.5,
        "rounds": 3,
        "local": {"epochs": 2, "batch_size": 4, "lr": 0.1, "momentum": 0.5},
    }
    further = FEDERATIONS.get(changes.get("dataset", ""))
    settings |= further.settings if further else {}
    tables = {name: value for name, value in changes.items() if isinstance(value, dict)}
    fields = {name: value for name, value in changes.items() if name not in tables}
    return build_suite("small", settings | tables, fields)


@dataclass
class SmallRun:
    """A finished run, its last state, its messages to the user and the state after each round."""

    run: Run
    state: State
    job: RunSpec
    said: list[str] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    @property
    def result(self) -> Result:
        """The result, with the evaluation of newcomers."""
        newcomers = evaluate_newcomers(self.run, self.state)
        return build_result(self.job, self.run, self.state, newcomers)

    @property
    def last(self) -> Evaluation:
        """The evaluation of the last round."""
        assert self.run.history.last is not None, "the last round is evaluated"
        return self.run.history.last

    @property
    def served(self) -> Tensor:
        """The model of each client before it adapts, shape (N, W)."""
        run, ctx = self.run, round_context(self.run, self.state.round)
        return run.hooks.personalise(self.state, ctx.everybody, ctx).models(self.state)

    @property
    def checkpoint(self) -> bytes:
        """The checkpoint after the last round that was run, as `flbench run` writes it."""
        run = self.run
        with tempfile.TemporaryDirectory(prefix="flbench-") as folder:
            path = Path(folder) / "checkpoint"
            write(path, pack(self.state, run.ledger, run.history, run.origin))
            return path.read_bytes()

    @property
    def stable(self) -> dict[str, Any]:
        """The content of the result file without the volatile fields (times, environment)."""
        table = json.loads(self.result.canonical())
        return {key: value for key, value in table.items() if key not in VOLATILE}


@dataclass
class StateRecorder:
    """A listener that keeps the state of every round."""

    states: list[State] = field(default_factory=list)

    @hookimpl
    def round_finished(self, state: State) -> None:
        """Keep it."""
        self.states.append(state)


def run_small(
    method: MethodStack,
    suite: Suite | None = None,
    dataset: Dataset | None = None,
    *,
    seed: int = 0,
    engine: EngineOptions | None = None,
    order: Sequence[int] | None = None,
    extra_plugins: Sequence[tuple[str, object]] = (),
    around_fit: AroundFit | None = None,
    before_first_round: Callable[[Run], None] = lambda run: None,
    last: int | None = None,
    checkpoint: bytes | None = None,
    record_states: bool = True,
) -> SmallRun:
    """Run a method on the small federation.

    Args:
        suite: default: `small_suite()`.
        dataset: default: that of the small federation which the suite names.
        seed: of the run; the samples are those of every seed.
        engine: default: sequential clients, one process, CPU.
        order: relabel the clients (`Federation.relabelled`).
        extra_plugins: plugins that are called before the method; they should answer None.
        around_fit: called in place of the executor's `fit`.
        before_first_round: called with the run before its first round.
        last: stop after this round; 0 = only prepare the run.
        checkpoint: resume from this one (`SmallRun.checkpoint`).
        record_states: keep the state of every round.
    """
    said: list[str] = []
    recorder = StateRecorder()
    suite = suite or small_suite()
    dataset = dataset or FEDERATIONS.get(suite.dataset, USUAL).samples(SAMPLES)
    method = replace(method, layers=(*method.layers, *extra_plugins))
    with tempfile.TemporaryDirectory(prefix="flbench-") as folder:
        job = RunSpec(
            suite=suite,
            method=method,
            seed=seed,
            data_root=Path(folder),
            out=Path(folder),
            engine=engine or EngineOptions(executor="sequential", accelerator="cpu"),
            sinks=(("state-recorder", recorder),) if record_states else (),
            say=said.append,
        )
        if checkpoint is not None:
            job = replace(job, resume=True)
            job.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            job.checkpoint.write_bytes(checkpoint)
        run, state = prepare(job, dataset, order)
        run.checkpoint = None
        if around_fit is not None:
            setattr(run.executor, "fit", partial(around_fit, run.executor.fit))  # noqa: B010 - mypy
        before_first_round(run)
        return SmallRun(run, run_rounds(run, state, last), job, said, recorder.states)
