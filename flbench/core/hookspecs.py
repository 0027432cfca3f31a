"""The contract between flbench and its plugins: the hooks, and nothing else.

    run_started
    │
    partition            samples -> clients                          once
    setup                first bank, membership, memory              once
    client_module        what one client does with one batch         once
    │
    ├─ round 1..R ────────────────────────────────────────────────────────────────────┐
    │   plan             the stages of this round                                     │
    │   ├─ for each stage ──────────────────────────────────────────────────────┐     │
    │   │   score, cluster   phase "before" training                            │     │
    │   │   dispatch         what each acting client starts from and is told    │     │
    │   │   local_term       added to every batch's loss                        │     │
    │   │   ... local training of the stage's clients ...                       │     │
    │   │   score, cluster   phase "after" training                             │     │
    │   │   aggregate        the new bank (see `Stage.aggregates`)              │     │
    │   └───────────────────────────────────────────────────────────────────────┘     │
    │   personalise      the model each client is judged by                           │
    │   round_finished   sinks listen                                                 │
    └─────────────────────────────────────────────────────────────────────────────────┘
    run_finished

Order: pluggy asks the plugin named last first; then earlier ones; then the suite; then the
defaults, which are FedAvg. "First" below means the first answer that is not None counts; "all"
means every answer is merged. A hook may take any subset of its arguments. Hooks are called per
round, never per batch, and must not change what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from flbench.core.client import ClientModule
    from flbench.core.context import Context
    from flbench.core.dataset import Indices, Partition
    from flbench.core.state import (
        Membership,
        Models,
        Personal,
        Scores,
        Setup,
        Stage,
        Start,
        State,
        Upload,
    )
    from flbench.core.types import Phase
    from flbench.results.events import RoundRecord, RunInfo
    from flbench.results.schema import Result


hookspec = pluggy.HookspecMarker("flbench")


hookimpl = pluggy.HookimplMarker("flbench")
"""Marks a method of a plugin as its answer to the hook of that name, or of `specname`."""


@hookspec(firstresult=True)
def partition(
    labels: Indices, domains: Indices | None, clients: int, rng: np.random.Generator
) -> Partition | None:
    """Say which sample belongs to which client. First; default: the suite's partition.

    Args:
        labels: label of each pooled sample, shape (m,).
        domains: domain of each sample, shape (m,), or None.
        clients: N.
        rng: the only source of randomness to use.
    """


@hookspec
def setup(ctx: Context) -> Setup | None:
    """Declare the first bank, the first membership and what is to be remembered.

    All, merged: memories add up (a name twice is an error); the bank and the membership of the
    plugin named last count; memory of scope "model" with one entry is given to every row.
    Default: one row of common initial weights that serves everybody.
    """


@hookspec(firstresult=True)
def plan(state: State, ctx: Context) -> Sequence[Stage] | None:
    """Say what happens in this round, in order. First; default: the cohort trains."""


@hookspec
def dispatch(state: State, stage: Stage, ctx: Context) -> Start | None:
    """Say what each acting client starts from and is told.

    For each field of `Start` the first answer counts; `extras` and `own` of all are merged.
    Default: the client's home model, which crosses whole.
    """


@hookspec(firstresult=True)
def client_module(net: nn.Module, ctx: Context) -> ClientModule | None:
    """Return the LightningModule that trains on one client. First; default: cross-entropy."""


@hookspec
def local_term(state: State, stage: Stage, ctx: Context) -> Callable[[ClientModule], Tensor] | None:
    """Return a function `term(module) -> scalar` added to every batch's loss. All, added up."""


@hookspec(firstresult=True)
def score(
    state: State, stage: Stage, phase: Phase, upload: Upload | None, ctx: Context
) -> Scores | None:
    """Measure who benefits from what. First; default: no scores.

    Args:
        phase: "before" local training (`upload` is None) or "after" it.
    """


@hookspec(firstresult=True)
def cluster(
    state: State, stage: Stage, phase: Phase, scores: Scores | None, ctx: Context
) -> Membership | None:
    """Decide who is served by which model. First; default: unchanged.

    Where the number of rows changes, `Membership.parent` says which old row each new one is
    copied from.
    """


@hookspec(firstresult=True)
def aggregate(state: State, upload: Upload, membership: Membership, ctx: Context) -> Models | None:
    """Make the new bank from the uploads. First.

    Default: each row is the sample-weighted mean of its members' uploads; a row without any
    keeps its values.
    """


@hookspec(firstresult=True)
def personalise(state: State, clients: Tensor, ctx: Context) -> Personal | None:
    """Say which model each client is judged by. First; default: its home model.

    Args:
        clients: ids, shape (n,).
    """


@hookspec
def run_started(info: RunInfo) -> None:
    """Sinks: a run begins."""


@hookspec
def round_finished(record: RoundRecord, state: State) -> None:
    """Sinks: a round is over; `record` is plain data."""


@hookspec
def run_finished(result: Result, path: str) -> None:
    """Sinks: the run is over and its result lies at `path`."""
