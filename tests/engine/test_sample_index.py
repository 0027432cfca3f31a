"""`Batch.index`: the number that a sample keeps, in the sequential executor and in lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from toy import Play, composition, toy_dataset

import flbench as fl
from flbench.engine.lanes.vectorised import Vectorised

UNEVEN = {"partition": {"name": "iid"}, "dataset": toy_dataset(samples=105), "participation": 1.0}
"""Clients of unequal numbers of samples, so that lanes do not share every step."""


@dataclass(frozen=True)
class Checks:
    """Compares what a batch says of its samples with the client's own data, in every step.

    `mistaken` counts samples whose features or labels are not those of their number; it is kept in
    the loss, so that lanes tell it too.
    """

    stage: fl.Stage

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> list[fl.Stage]:
        return [replace(self.stage, clients=ctx.everybody)]

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        owned = [ctx.client_data(client) for client in stage.clients.tolist()]
        if stage.pooled:
            joined = [torch.cat(part) for part in zip(*owned, strict=True)]
            owned = [(joined[0], joined[1])] * len(owned)
        longest = max(len(y) for _, y in owned)
        table = torch.full((len(owned), longest, 4), torch.nan)
        for row, (x, y) in zip(table, owned, strict=True):
            row[: len(y)] = torch.cat([x, y[:, None]], dim=1)
        return fl.Start(client_memory={"owned": table})

    @fl.hookimpl
    def batch_loss(self) -> fl.BatchLoss:
        def loss(batch: fl.Batch) -> torch.Tensor:
            own = batch.module.received["owned"][batch.index]
            given = torch.cat([batch.x, batch.y[:, None].float()], dim=1)
            mistaken = (own != given).any(dim=1).sum()
            return fl.cross_entropy(batch.logits, batch.y) * 0 + mistaken

        return loss


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    "stage",
    [
        fl.Stage("train", torch.empty(0), 2),
        fl.Stage("train", torch.empty(0), 2, samples=7),
        fl.Stage("train", torch.empty(0), 1, pooled=True),
    ],
    ids=["all", "subset", "pooled"],
)
def test_an_index_is_the_place_in_the_data_of_the_client(
    play_toy: Play, executor: str, stage: fl.Stage
) -> None:
    local = {"epochs": 2, "batch_size": 4, "lr": 0.1}
    method = replace_flag(Checks(stage))
    played = play_toy(
        composition(("checks", method)), executor=executor, rounds=2, local=local, **UNEVEN
    )
    if executor == "vectorised":
        assert isinstance(played.run.executor, Vectorised)
        assert played.run.executor.reason is None
    assert played.run.history.curves["train_loss"] == [0, 0]


def replace_flag(method: Checks) -> Checks:
    """The method, with leave to pool data if it does."""

    @dataclass(frozen=True)
    class Pools(Checks):
        pools_data = True

    return Pools(method.stage) if method.stage.pooled else method


class TwoBatches(fl.ClientModule):
    """A step of two batches, whose loss compares the numbers of the second."""

    batches_per_step = 2

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (x, y), (other, label) = batch
        first, second = fl.Batch(self, x, y), fl.Batch(self, other + 1, label)
        return self.batch_loss(first) + (second.index * second.logits.mean(dim=1)).sum()


@dataclass(frozen=True)
class Relabels:
    """Keeps a label per sample, which moves to what the model says: what pseudo-labels need."""

    module: type[fl.ClientModule] = fl.ClientModule

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        samples = int(ctx.samples.max())
        return fl.Setup(
            memory={"relabels.y": fl.Memory(-torch.ones(ctx.clients, samples), "client")}
        )

    @fl.hookimpl
    def client_module(self, net: torch.nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return self.module(net, ctx.local)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        return fl.Start(client_memory={"pseudo": state.memory["relabels.y"][stage.clients]})

    @fl.hookimpl
    def batch_loss(self) -> fl.BatchLoss:
        def loss(batch: fl.Batch) -> torch.Tensor:
            pseudo = batch.module.received["pseudo"][batch.index].long()
            return fl.cross_entropy(batch.logits, torch.where(pseudo < 0, batch.y, pseudo))

        return loss

    @fl.hookimpl
    def report(self) -> fl.Reporter:
        def report(module: fl.ClientModule, x: torch.Tensor, y: torch.Tensor) -> fl.Report:
            with torch.no_grad():
                said = module.predict(x).argmax(dim=1).float()
            empty = module.received["pseudo"].new_full((len(module.received["pseudo"]),), -1)
            empty[: len(said)] = said
            return fl.Report(kept={"relabels.y": empty})

        return report


@pytest.mark.parametrize("module", [fl.ClientModule, TwoBatches])
def test_a_method_that_relabels_by_sample_trains_alike_in_lanes(
    play_toy: Play, module: type[fl.ClientModule]
) -> None:
    local = {"epochs": 2, "batch_size": 4, "lr": 0.1}
    ends: Sequence[Any] = [
        play_toy(
            composition(("relabels", Relabels(module))),
            executor=executor,
            rounds=3,
            local=local,
            **UNEVEN,
        )
        for executor in ("sequential", "vectorised")
    ]
    one, other = ends
    assert other.run.executor.reason is None
    torch.testing.assert_close(one.state.models, other.state.models, rtol=0, atol=1e-5)
    kept = [end.state.memory["relabels.y"] for end in ends]
    assert torch.equal(*kept)
    assert bool((kept[0] >= 0).any())


def test_what_the_step_was_not_given_has_no_index() -> None:
    module = fl.ClientModule(torch.nn.Linear(3, 2), fl.LocalTraining())
    with pytest.raises(fl.Undefined, match="no index"):
        _ = fl.Batch(module, torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)).index
