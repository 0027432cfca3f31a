"""Plugins that use what a client did not send, one each at every hook; and some that send it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class _Alone:
    """A model per client; a newcomer gets the initial one."""

    row_per_client: ClassVar[bool] = True

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def personalise(self, clients: Tensor) -> fl.Personal:
        return fl.Personal(row=clients)

    @fl.hookimpl
    def join(self, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        return fl.Personal(params=ctx.initial.expand(len(clients), -1))


@dataclass(frozen=True)
class ServesMeanOfKeptRows(_Alone):
    """Sends no scalar, and serves everybody the mean of all rows."""

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.none_mask)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        return fl.Personal(
            params=torch.as_tensor(state.models).mean(dim=0).expand(len(clients), -1)
        )


@dataclass(frozen=True)
class _PersonalHead(_Alone):
    """FedPer: the head stays with its client."""

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.body)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        return fl.Models(
            fl.partial_mean(state.models, upload, ctx.layout.body, ctx.layout.counters)
        )


@dataclass(frozen=True)
class HeadsIntoMemory(_PersonalHead):
    """Averages heads that were not sent into a memory, and tests with that."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        memory = {"planted.head": fl.Memory(ctx.initial.clone())}
        return replace(fl.one_model_per_client(ctx), memory=memory)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        models = _PersonalHead.aggregate(self, state, upload, ctx)
        return replace(models, memory={"planted.head": upload.selected().mean(dim=0)})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        rows = state.models[clients]
        return fl.Personal(params=torch.where(ctx.layout.head, state.memory["planted.head"], rows))


@dataclass(frozen=True)
class HeadsInEvaluation(_PersonalHead):
    """Tests with the mean of all heads, which nobody sent."""

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        rows = torch.as_tensor(state.models)
        own = rows[clients]
        return fl.Personal(params=torch.where(ctx.layout.head, rows.mean(dim=0), own))


@dataclass(frozen=True)
class ServesNewcomersHeads(_PersonalHead):
    """Newcomers get the mean of all rows, with heads that nobody sent."""

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor) -> fl.Personal:
        mean = torch.as_tensor(state.models).mean(dim=0)
        return fl.Personal(params=mean.expand(len(clients), -1))


@dataclass(frozen=True)
class GroupsByUnsentHeads:
    """Groups clients by heads that were not sent."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(models=ctx.initial.repeat(2, 1))

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.all_mask, returned_mask=ctx.layout.body)

    @fl.hookimpl
    def cluster(self, state: fl.State, scores: fl.Scores | None) -> fl.Membership | None:
        if scores is None:
            return None
        likeness, home = scores.values.mean(dim=1), state.membership.home.clone()
        home[scores.row_ids] = (likeness > likeness.median()).long()
        return fl.Membership(home)

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership, ctx.layout.counters)
        return fl.Models(torch.where(ctx.layout.body, rows, state.models))

    @fl.hookimpl
    def score(
        self, state: fl.State, phase: str, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        if upload is None:
            return None
        heads = upload.selected()[:, ctx.layout.head].double()
        return fl.Scores(heads @ heads.T, upload.ids, "clients", upload.ids)


@dataclass(frozen=True)
class SharesAmongLikeHeads(_PersonalHead):
    """Averages bodies of clients whose heads, which were not sent, are alike."""

    @fl.hookimpl
    def cluster(self, state: fl.State, phase: str, ctx: fl.Context) -> fl.Membership | None:
        if phase == "before":
            return None
        heads = torch.as_tensor(state.models)[:, ctx.layout.head].double()
        return fl.Membership(ctx.everybody, weights=(-torch.cdist(heads, heads)).softmax(dim=1))


@dataclass(frozen=True)
class HandsARowOn(_PersonalHead):
    """Serves the last client the row of the first one, with its head."""

    @fl.hookimpl
    def cluster(self, phase: str, ctx: fl.Context) -> fl.Membership | None:
        if phase == "before" or ctx.round < 2:
            return None
        home = ctx.everybody
        home[-1] = 0
        return fl.Membership(home)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        return fl.Personal(row=state.membership.home[clients])


def _loss(module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
    return fl.Report(kept={"planted.loss": fl.cross_entropy(module(x), y).detach()[None]})


@dataclass(frozen=True)
class _KeepsLoss:
    """FedAvg; each client keeps its loss."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(memory={"planted.loss": fl.Memory(torch.ones(ctx.clients, 1), "client")})

    @fl.hookimpl
    def report(self) -> fl.Reporter:
        return _loss


@dataclass(frozen=True)
class FineTunesWithOthers(_KeepsLoss):
    """Adapts before the test with a loss whose weight is what all clients keep."""

    @fl.hookimpl
    def batch_loss(self, state: fl.State, stage: fl.Stage) -> Callable[[fl.Batch], Tensor]:
        weight = float(state.memory["planted.loss"].mean()) if stage.name == "adapt" else 1.0
        return lambda batch: weight * fl.cross_entropy(batch.logits, batch.y)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        stage = fl.Stage("train", clients, 1, name="adapt")
        home = state.membership.home[0].expand(len(clients))
        return fl.Personal(row=home, adaptation=stage)


@dataclass(frozen=True)
class WeighsByKept(_KeepsLoss):
    """Averages with weights from what clients keep."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        weights = state.memory["planted.loss"][upload.ids].T.double()
        mean = fl.weighted_mean(state.models, upload.selected(), weights, ctx.layout.counters)
        return fl.Models(mean)


@dataclass(frozen=True)
class PlansByKept(_KeepsLoss):
    """Whoever keeps the largest loss is not asked."""

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> tuple[fl.Stage, ...]:
        losses = state.memory["planted.loss"][ctx.cohort, 0]
        some = ctx.cohort[losses <= losses.median()]
        return (fl.Stage("train", some, ctx.local.epochs),)


@dataclass(frozen=True)
class TellsWhatOthersKeep(_KeepsLoss):
    """Tells every client the mean of what the others keep."""

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        mean = state.memory["planted.loss"].mean(dim=0)
        return fl.Start(extras={"mean": mean.expand(len(stage.clients), -1)})


@dataclass(frozen=True)
class TrainsWithWhatOthersKeep(_KeepsLoss):
    """The weight of a penalty is the mean of what clients keep."""

    @fl.hookimpl
    def local_term(self, state: fl.State) -> Callable[[fl.ClientModule], Tensor]:
        weight = float(state.memory["planted.loss"].mean())
        return lambda module: weight * module.flat().square().sum()


@dataclass(frozen=True)
class PredictsWithWhatOthersKeep(_KeepsLoss):
    """The temperature of predictions is the mean of what clients keep."""

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        heat = float(state.memory["planted.loss"].mean())
        home = state.membership.home[0].expand(len(clients))
        return fl.Personal(row=home, predictor=lambda module, x: module(x) * heat)


@dataclass(frozen=True)
class ClearModelsInEvaluation:
    """Sends signs, keeps the clear model, and tests everybody with the mean of clear models."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        rows = ctx.initial.repeat(ctx.clients, 1)
        return fl.Setup(memory={"planted.clear": fl.Memory(rows, "client")})

    @fl.hookimpl
    def encode(self) -> Callable[[fl.Message], fl.Message]:
        def signs(message: fl.Message) -> fl.Message:
            update = 0.01 * message.update.sign()
            return message.sending(update, bits=2, memory={"planted.clear": message.params})

        return signs

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        mean = state.memory["planted.clear"].mean(dim=0)
        return fl.Personal(params=mean.expand(len(clients), -1))


@dataclass(frozen=True)
class CodesWithOthersUploads:
    """Clients send the distance to the mean of all models, of which they know one."""

    @fl.hookimpl
    def encode(self, upload: fl.Upload) -> Callable[[fl.Message], fl.Message]:
        mean = upload.selected().mean(dim=0)
        return lambda message: message.sending(0.5 * (mean - message.start))


@dataclass(frozen=True)
class ServesByOthersLabels(_Alone):
    """Serves each client the mean of models of clients with the same most frequent label."""

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.all_mask)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        labels = torch.stack([ctx.client_data(int(one))[1].mode().values for one in clients])
        near = (labels[:, None] == labels).float()
        return fl.Personal(params=near @ torch.as_tensor(state.models) / near.sum(dim=1)[:, None])


@dataclass(frozen=True)
class GroupsInSetup:
    """Groups clients by their labels before the first round; nobody told these."""

    counts: bool = False

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        if self.counts:
            ctx.send("up", ctx.everybody, "labels", 1)
        labels = [ctx.client_data(client)[1].mode().values for client in range(ctx.clients)]
        home = torch.stack(labels) // 2
        return fl.Setup(models=ctx.initial.repeat(2, 1), membership=fl.Membership(home))

    @fl.hookimpl
    def join(self, clients: Tensor) -> fl.Personal:
        return fl.Personal(row=torch.zeros_like(clients))


@dataclass(frozen=True)
class AveragesLostCandidates:
    """Two candidates, of which a client sends one; both are averaged."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(models=torch.stack([ctx.initial, ctx.fresh_initial(1)]))

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> tuple[fl.Stage, ...]:
        return (fl.Stage("trial", ctx.cohort, ctx.local.epochs, losses=True),)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        return fl.Start(params=state.models.expand(len(stage.clients), -1, -1))

    @fl.hookimpl
    def aggregate(self, upload: fl.Upload) -> fl.Models:
        return fl.Models(upload.params.mean(dim=0))


SECRETS: tuple[type, ...] = (
    ServesMeanOfKeptRows,
    HeadsIntoMemory,
    HeadsInEvaluation,
    ServesNewcomersHeads,
    GroupsByUnsentHeads,
    SharesAmongLikeHeads,
    HandsARowOn,
    FineTunesWithOthers,
    WeighsByKept,
    PlansByKept,
    TellsWhatOthersKeep,
    TrainsWithWhatOthersKeep,
    PredictsWithWhatOthersKeep,
    ClearModelsInEvaluation,
    CodesWithOthersUploads,
    ServesByOthersLabels,
    GroupsInSetup,
    AveragesLostCandidates,
)
"""They use what a client did not send."""


# --- what is counted, or a client's own ----------------------------------------------------------


@dataclass(frozen=True)
class TellsLabelsInSetup(GroupsInSetup):
    """Groups clients by their labels before the first round, which they send."""

    counts: bool = True


@dataclass(frozen=True)
class CountsItsHeads(HeadsIntoMemory):
    """Averages heads into a memory, and counts them."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        ctx.send("up", upload.ids, "heads", int(ctx.layout.head.sum()))
        return HeadsIntoMemory.aggregate(self, state, upload, ctx)


@dataclass(frozen=True)
class CountsHeadsThatItServes(HeadsInEvaluation):
    """Tests with the mean of all heads, of which each was counted when its client trained it."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        ctx.send("up", upload.ids, "heads", int(ctx.layout.head.sum()))
        return _PersonalHead.aggregate(self, state, upload, ctx)


@dataclass(frozen=True)
class MomentumOfOwnRow(_PersonalHead):
    """Each row has a momentum, of its head too, which serves its client alone."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        setup, nothing = fl.one_model_per_client(ctx), torch.zeros(ctx.clients, ctx.layout.width)
        return replace(setup, memory={"planted.m": fl.Memory(nothing, "model")})

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        models = _PersonalHead.aggregate(self, state, upload, ctx)
        before = torch.as_tensor(state.models)
        momentum = 0.5 * state.memory["planted.m"] + torch.as_tensor(models.rows) - before
        return fl.Models(before + momentum, memory={"planted.m": momentum})


@dataclass(frozen=True)
class SplitLearning:
    """The head is the server's; features and labels go up, gradients go down, at every step."""

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.body)

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        seen = upload.steps * ctx.local.batch_size
        ctx.send("up", upload.ids, "features and labels", seen * 4)
        ctx.send("down", upload.ids, "gradients", seen * 3)
        return fl.Models(fl.member_mean(state.models, upload, membership, ctx.layout.counters))


@dataclass(frozen=True)
class AddsAnExtra:
    """Clients send the norm of their update beside it; the server weighs by it."""

    @fl.hookimpl
    def encode(self) -> Callable[[fl.Message], fl.Message]:
        def with_norm(message: fl.Message) -> fl.Message:
            extras = {**message.extras, "norm": message.update.norm()}
            return replace(message, extras=extras)

        return with_norm

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        weights = upload.extras["norm"][None].double()
        mean = fl.weighted_mean(state.models, upload.selected(), weights, ctx.layout.counters)
        return fl.Models(mean)


@dataclass(frozen=True)
class UsesItsOwnLabels:
    """Clients weigh labels by how often they have them themselves."""

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        counts = ctx.own_label_counts(stage.clients).float()
        return fl.Start(client_memory={"counts": counts})

    @fl.hookimpl
    def batch_loss(self) -> Callable[[fl.Batch], Tensor]:
        def weighted(batch: fl.Batch) -> Tensor:
            received = batch.module.received
            bias = received["counts"].log1p() if "counts" in received else 0.0
            return fl.cross_entropy(batch.logits + bias, batch.y)

        return weighted


HONEST: tuple[type, ...] = (
    TellsLabelsInSetup,
    CountsItsHeads,
    CountsHeadsThatItServes,
    MomentumOfOwnRow,
    SplitLearning,
    AddsAnExtra,
    UsesItsOwnLabels,
)
"""What they use crosses and is counted, or is the client's own."""
