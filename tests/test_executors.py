"""The vectorised executor ends where the sequential one does (same State, one round at a time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import Play, composition, toy_dataset, watching

from flbench import ClientModule, LocalPhase, LocalTraining, Stage, Start, hookimpl
from flbench.engine.vectorised import Vectorised

TOLERANCE = {"rtol": 0.0, "atol": 2e-6}


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


def both(play_toy: Play, make: Any, **changes: Any) -> list[Any]:
    """The first uploads of both executors, from the same State."""
    kept: list[list[Any]] = []
    for executor in ("sequential", "vectorised"):
        uploads: list[Any] = []

        method = composition(("method", make()), ("watch", watching(uploads)))
        played = play_toy(method, executor=executor, rounds=1, **changes)
        if executor == "vectorised":
            assert isinstance(played.run.executor, Vectorised)
            assert played.run.executor.why_not() is None
            assert not played.said
        kept.append(uploads)
    return [uploads[0] for uploads in kept]


def agree(one: Any, other: Any) -> None:
    torch.testing.assert_close(one.params, other.params, **TOLERANCE)
    for name in ("loss", "loss_start", "loss_end"):
        pair = getattr(one, name), getattr(other, name)
        torch.testing.assert_close(*pair, rtol=0, atol=1e-5, equal_nan=True)
    for name in ("ids", "samples", "steps", "chosen", "active"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert one.extras.keys() == other.extras.keys()
    for name, value in one.extras.items():
        torch.testing.assert_close(value, other.extras[name], **TOLERANCE)


@dataclass(frozen=True)
class Plain:
    pass


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_ragged_clients_agree(play_toy: Play, optimizer: str) -> None:
    local = {"epochs": 3, "batch_size": 4, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
    dataset = toy_dataset(samples=105)
    iid = {"partition": {"name": "iid"}, "participation": 1.0}
    pair = both(play_toy, Plain, local={**local, "optimizer": optimizer}, dataset=dataset, **iid)
    assert len(set(pair[0].samples.tolist())) > 1, "clients differ in size"
    agree(*pair)


def test_batchnorm_statistics_agree(play_toy: Play) -> None:
    pair = both(play_toy, Plain, net=batchnorm)
    agree(*pair)
    assert pair[0].params[0, 0, -1] > 0, "the counter moved"


def test_phases_terms_extras_and_candidates_agree(play_toy: Play) -> None:
    class Module(ClientModule):
        def phases(self, epochs: int) -> Sequence[LocalPhase]:
            head = torch.arange(28) >= 12
            return (LocalPhase(epochs - 1, head), LocalPhase(1, ~head))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            scale = self.received["scale"] * (1 + batch_idx / 10)
            return super().training_step(batch, batch_idx) * scale

        def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            steps = torch.tensor(float(self.steps))
            return {"mean": self(x).mean(dim=0), "scale": self.received["scale"], "steps": steps}

    @dataclass(frozen=True)
    class Everything:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return Module(net, ctx.local)

        @hookimpl
        def plan(self, ctx: Any) -> tuple[Stage, ...]:
            return (Stage("trial", ctx.cohort, 3, losses=True),)

        @hookimpl
        def dispatch(self, state: Any, stage: Stage) -> Start:
            n = len(stage.clients)
            pair = torch.stack([state.models[0], state.models[0] * 0.5])
            active = torch.ones(n, 2, dtype=torch.bool)
            active[0, 1] = False
            scale = 1 + stage.clients.float() / 10
            return Start(params=pair.expand(n, -1, -1), active=active, extras={"scale": scale})

        @hookimpl
        def local_term(self) -> Any:
            def term(module: ClientModule) -> Tensor:
                return 0.1 * (module.flat() - module.start[:28]).square().sum()

            return term

    local = LocalTraining(epochs=3, batch_size=4, lr=0.1, momentum=0.9)
    agree(*both(play_toy, Everything, local=local))


def test_frozen_buffers_stay_frozen_in_both(play_toy: Play) -> None:
    class OnlyHead(ClientModule):
        def phases(self, epochs: int) -> Sequence[LocalPhase]:
            return (LocalPhase(epochs, torch.arange(53) >= 24),)  # all but the first layers

        def on_phase_start(self, number: int) -> None:
            assert self.training
            self.net[1].eval()

    @dataclass(frozen=True)
    class Heads:
        @hookimpl
        def client_module(self, ctx: Any) -> ClientModule:
            return OnlyHead(batchnorm(), ctx.local)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        pair = both(play_toy, Heads)
    agree(*pair)
    assert pair[0].params[:, 0, -9:].eq(pair[0].params[0, 0, -9:]).all(), "statistics stood still"


def test_whole_runs_agree_where_no_decision_flips(play_toy: Play) -> None:
    settings = {"warmup": 1, "probe_epochs": 3}
    one, other = (
        play_toy("pfedlia", settings=settings, executor=executor)
        for executor in ("sequential", "vectorised")
    )
    assert one.run.history.membership == other.run.history.membership
    torch.testing.assert_close(one.personal, other.personal, rtol=0, atol=1e-5)
    assert one.marks == other.marks, "the executor is no part of the fingerprint"
    assert other.result.environment["executor"] == "vectorised"


def test_what_cannot_be_vectorised_is_trained_one_by_one_and_said(play_toy: Play) -> None:
    def dropout() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 4))

    plain, fallen = (play_toy("fedavg", net=dropout, executor=e) for e in ("auto", "vectorised"))
    assert torch.equal(plain.state.models, fallen.state.models)
    assert fallen.said == [
        "clients are trained one by one: dropout draws other numbers in company than alone"
    ]
