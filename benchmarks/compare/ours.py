"""Play the federation of a comparison with flbench."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import flbench as fl
from flbench.core.dataset import Indices
from flbench.engine import sequential
from flbench.run.composition import compose
from flbench.run.rounds import round_context
from flbench.suite import Suite
from flbench.testing.small_run import SmallRun, run_small, small_dataset, small_suite

from .changes import CHANGES
from .exchange import Array, Exchange

CLIENTS = 5
ROUNDS = 4
LOCAL = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.0}


def suite(
    local: Mapping[str, object], participation: float, seconds: Sequence[float] = ()
) -> Suite:
    """Five clients of different sizes and labels, three of them in each of four rounds by 0.6."""
    clock = {"clock": {"seconds_per_step": list(seconds)}} if seconds else {}
    return small_suite(
        name="compare",
        summary="a small federation that several frameworks play",
        clients=CLIENTS,
        participation=participation,
        rounds=ROUNDS,
        partition={"name": "dirichlet", "alpha": 1.0, "min_samples": 12},
        model={"name": "mlp", "hidden": 6},
        local={**LOCAL, **local},
        **clock,
    )


def play(
    method: str,
    params: Mapping[str, object],
    models: Sequence[str],
    local: Mapping[str, object],
    change: str | None = None,
    participation: float = 0.6,
    seconds: Sequence[float] = (),
) -> Exchange:
    """Play; every epoch uses a client's samples in the order in which they are stored.

    Args:
        method: a method of flbench, with its `params`.
        models: which models are kept after each round: "server", "clients", "centres" (all K).
        local: settings of local training that differ from `LOCAL`.
        change: a name of `CHANGES`: how our side departs from the method, to explain a difference.
        participation: share of the clients in a round.
        seconds: what a step takes each client, for a server that does not wait for cohorts.
    """
    arrivals = Arrivals()
    extra: list[tuple[str, object]] = [("arrivals", arrivals)] if seconds else []
    if change:
        extra.append(("change", CHANGES[change]))
    with stored_order():
        run = run_small(
            compose(method, params),
            suite(local, participation, seconds),
            small_dataset(0, 240),
            extra_plugins=extra,
        )
    found = facts(run, local)
    if seconds:
        found["arrivals"] = list(arrivals.rounds.values())
    return Exchange(found, arrays(run, models))


class Arrivals:
    """Notes which clients' uploads the server gets, and in which order.

    Attributes:
        rounds: ids of the clients, for each round.
    """

    def __init__(self) -> None:
        self.rounds: dict[int, list[int]] = {}

    @fl.hookimpl(tryfirst=True)
    def aggregate(self, upload: fl.Upload, ctx: fl.Context) -> None:
        """Leave the aggregation to others."""
        self.rounds.setdefault(ctx.round, []).extend(upload.ids.tolist())


@contextmanager
def stored_order() -> Iterator[None]:
    """Use the samples of a client in their stored order, in every epoch."""

    def orders(samples: int, epochs: int, seed: int, *address: int | str) -> Iterator[Indices]:
        for _ in range(epochs):
            yield np.arange(samples)

    shuffled = vars(sequential)["orders"]
    vars(sequential)["orders"] = orders
    try:
        yield
    finally:
        vars(sequential)["orders"] = shuffled


def facts(run: SmallRun, local: Mapping[str, object]) -> dict[str, Any]:
    """What is not a tensor; see `Exchange`."""
    net = run.run.executor.workspace.module.net
    contexts = [round_context(run.run, r) for r in range(1, ROUNDS + 1)]
    return {
        "parameters": [[name, list(p.shape)] for name, p in net.named_parameters()],
        "cohorts": [ctx.cohort.tolist() for ctx in contexts],
        "local": {**LOCAL, **local},
        "clients": CLIENTS,
        "classes": 4,
    }


def arrays(run: SmallRun, models: Sequence[str]) -> dict[str, Array]:
    """The samples, the initial model and the models of every round; see `Exchange`."""
    samples = run.run.executor.samples
    kept: dict[str, Array] = {}
    for client in range(CLIENTS):
        rows = samples.splits["train"][client]
        kept[f"x/{client}"] = samples.x[rows].numpy()
        kept[f"y/{client}"] = samples.y[rows].numpy()
    first = round_context(run.run, 1)
    layout = first.layout
    common = layout.submodule("net")
    own = layout.submodule("own") if hasattr(run.run.executor.workspace.module, "own") else common
    kept["initial"] = first.initial[common].numpy()
    if "centres" in models:
        fresh = [first.fresh_initial(k) for k in range(1, len(run.states[0].models))]
        kept["start"] = torch.stack([first.initial, *fresh])[:, common].numpy()
    for number, state in enumerate(run.states, 1):
        ctx = round_context(run.run, number)
        if "centres" in models:
            for k, row in enumerate(state.models[:, common]):
                kept[f"{number}/centre-{k}"] = row.numpy()
        if "server" in models:
            kept[f"{number}/server"] = state.models[0, common].numpy()
        if "clients" in models:
            served = run.run.hooks.personalise(state, ctx.everybody, ctx).models(state)
            for client in range(CLIENTS):
                kept[f"{number}/client-{client}"] = served[client, own].numpy()
    return {name: array.copy() for name, array in kept.items()}
