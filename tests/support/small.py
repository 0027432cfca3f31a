"""What tests of single hooks share: a federation of two scalars, and clients told how to move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from toy import Play, Played, toy_dataset

import flbench as fl
from flbench.run import checkpoint
from flbench.run.rounds import cohort, run_rounds
from flbench.run.setup import prepare

STEP = {"epochs": 1, "batch_size": 1000, "lr": 1.0}
NEWCOMERS: dict[str, Any] = {
    "clients": 9,
    "unseen": 0.34,
    "unseen_epochs": 1,
    "dataset": toy_dataset(samples=108),
}
TRAIN = fl.Stage("train", torch.arange(3), 1)


class Small:
    """Three clients, two scalars; client i loses half the squared distance to `minds[i]`."""

    clients, rounds, networks = 3, 9, None
    layout, initial = fl.ParameterLayout((), 2, 0), torch.zeros(2)
    everybody, samples = torch.arange(3), torch.tensor([1, 2, 3])

    def __init__(self, minds: Any = ((0, 0),) * 3, round_: int = 1) -> None:
        self.minds, self.round, self.sent = torch.tensor(minds).double(), round_, []

    def evaluate(self, models: torch.Tensor, clients: torch.Tensor) -> torch.Tensor:
        return ((models.double() - self.minds[clients][:, None]) ** 2).sum(dim=2) / 2

    def repeated(self, row: torch.Tensor) -> torch.Tensor:
        return row.expand(self.clients, -1)

    def rng(self, *_: Any) -> Any:
        return np.random.default_rng(0)

    def send(self, way: str, ids: Any, item: str, scalars: torch.Tensor) -> None:
        self.sent.append((way, item, scalars.tolist()))


def begin(rule: Any, ctx: Any, rows: Any = None) -> fl.State:
    """State(0) of a plugin alone."""
    setup = rule.setup(ctx)
    models = setup.models if rows is None else torch.tensor(rows)
    memory = {name: kept.value for name, kept in setup.memory.items()}
    return fl.State(0, models, setup.membership, memory)


def uploaded(rows: Any, ids: Any = (0, 1, 2)) -> fl.Upload:
    n = len(ids)
    nothing = torch.full((n, 1), torch.nan, dtype=torch.float64)
    return fl.Upload(
        ids=torch.tensor(ids),
        params=torch.tensor(rows, dtype=torch.float32)[:, None],
        active=torch.ones(n, 1, dtype=torch.bool),
        samples=Small.samples[list(ids)],
        steps=torch.ones(n, dtype=torch.int64),
        loss=nothing[:, 0],
        loss_start=nothing,
        loss_end=nothing,
        chosen=torch.zeros(n, dtype=torch.int64),
    )


def weighed(rule: Any, upload: fl.Upload) -> fl.Upload:
    """The upload as `aggregate` gets it from a plugin that answers `weights`."""
    return replace(upload, weights=rule.weights(upload))


@dataclass(frozen=True)
class Drift:
    """Client i moves by `moves[i]`, wherever it starts."""

    moves: torch.Tensor

    @fl.hookimpl
    def client_module(self, net: Any, ctx: fl.Context) -> fl.ClientModule:
        class Module(fl.ClientModule):
            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                return -(self.received["move"] @ self.flat())

        return Module(net, ctx.local)

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage) -> fl.Start:
        return fl.Start(client_memory={"move": self.moves[stage.clients]})


@dataclass(frozen=True)
class Uniform:
    """FedAvg that counts every client alike."""

    @fl.hookimpl
    def aggregate(self, state: Any, upload: Any, membership: Any) -> fl.Models:
        return fl.Models(fl.member_mean(state.models, upload, membership, weighting="uniform"))


@dataclass(frozen=True)
class Door:
    """Keeps what `look(state, clients, ctx)` finds when newcomers join."""

    look: Callable[..., Any]
    found: list[Any]

    @fl.hookimpl
    def join(self, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> None:
        self.found.append(self.look(state, clients, ctx))


def cohorts(played: Played) -> list[list[int]]:
    """Who was sampled, round by round."""
    suite = played.job.suite
    return [cohort(suite, played.job.seed, r + 1).tolist() for r in range(suite.rounds)]


def resumed(whole: Played, folder: Path, after: int, executor: str | None = None) -> Played:
    """The same run, stopped after some rounds and taken up from its checkpoint.

    Args:
        executor: by which it goes on; None = as before.
    """
    job = replace(whole.job, out=folder / "again")
    stopped, state = prepare(job, toy_dataset())
    stopped.suite = stopped.suite.model_copy(update={"rounds": after})
    with patch.object(checkpoint, "pause", return_value=0.0):  # after every round
        run_rounds(stopped, state)
    engine = replace(job.engine, executor=executor or job.engine.executor)
    run, state = prepare(replace(job, resume=True, engine=engine), toy_dataset())
    assert state.round == after
    return Played(run, run_rounds(run, state), job)


def same_end(one: Played, other: Played) -> None:
    """Models, homes and memories, bit for bit."""
    assert torch.equal(one.state.models, other.state.models)
    assert torch.equal(one.state.membership.home, other.state.membership.home)
    assert one.state.memory.keys() == other.state.memory.keys()
    for name, value in one.state.memory.items():
        torch.testing.assert_close(value, other.state.memory[name], rtol=0, atol=0, equal_nan=True)


def executors_agree(play_toy: Play, method: str, atol: float = 1e-5, **more: Any) -> None:
    """One client after the other, or all at once."""
    pair = [play_toy(method, executor=name, **more) for name in ("sequential", "vectorised")]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=atol)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
