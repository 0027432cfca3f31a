"""Plugins with one mistake each, named after the law that must find it.

They are what a careful author writes on a bad day; everything but the planted line is right.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from tent import Adapts, biases, less_entropy
from torch import Tensor, nn

import flbench as fl

KEPT: list[Tensor] = []


@dataclass(frozen=True)
class PlainParameters:
    """A parameter that no result file can hold."""

    place: complex = 1j


@dataclass(frozen=True)
class UsualRun:
    """Sends everybody to a row of the bank that does not exist."""

    @fl.hookimpl
    def cluster(self, state: fl.State, phase: str, ctx: fl.Context) -> fl.Membership | None:
        if phase == "before":
            return None
        return fl.Membership(torch.full((ctx.clients,), len(state.models)))


@dataclass(frozen=True)
class EveryHookAnswers:
    """Forgets to return what it has computed, so the default answers."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> None:
        fl.Models(torch.lerp(state.models, fl.member_mean(state.models, upload, membership), 0.5))


@dataclass(frozen=True)
class MissingClients:
    """Averages as if everybody who was planned had come."""

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> tuple[fl.Stage, ...]:
        return (fl.Stage("train", ctx.cohort, ctx.local.epochs),)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        shares = ctx.samples[ctx.cohort].double()[None]
        return fl.Models(fl.weighted_mean(state.models, upload.selected(), shares))


@dataclass(frozen=True)
class NewcomersServed:
    """One model, and for clients that come later rows that are not there."""

    @fl.hookimpl
    def join(self, clients: Tensor) -> fl.Personal:
        return fl.Personal(row=clients)


@dataclass(frozen=True)
class ClearErrors:
    """Minds a parameter, and does not say what it expects."""

    mu: float = 1.0

    def __post_init__(self) -> None:
        assert self.mu > 0


@dataclass(frozen=True)
class SameSeedSameBytes:
    """A hidden global generator: noise for privacy, drawn from numpy's own."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(rows + 0.1 * np.random.normal())


class Leaky(fl.ClientModule):
    """Normalises by running statistics that are no buffer, so they go from client to client."""

    running = torch.zeros(())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        self.running = 0.9 * self.running + 0.1 * x.mean().detach()
        return fl.cross_entropy(self(x - self.running), y)


@dataclass(frozen=True)
class TrainedAlone:
    """A BatchNorm leak: statistics of one client's batches reach the next client."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Leaky(net, ctx.local)


@dataclass(frozen=True)
class RelabelledClients:
    """A clustering that returns positions instead of ids: who is k-th, not where client k is."""

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> tuple[fl.Stage, ...]:
        return (fl.Stage("train", ctx.everybody, ctx.local.epochs),)

    @fl.hookimpl
    def cluster(self, state: fl.State, phase: str, ctx: fl.Context) -> fl.Membership | None:
        if phase == "before" or len(state.models) > 1 or ctx.clients < 2:
            return None
        ranking = ctx.evaluate(state.models, ctx.everybody)[:, 0].argsort()
        return fl.Membership(ranking * 2 // ctx.clients, parent=torch.zeros(2).long())

    @fl.hookimpl
    def join(self, clients: Tensor) -> fl.Personal:
        return fl.Personal(row=torch.zeros_like(clients))


class Batchwise(fl.ClientModule):
    """Normalises by the statistics of the batch, also of the one it is evaluated on."""

    def forward(self, x: Tensor) -> Any:
        centred = x - x.mean(dim=0) if len(x) > 1 else x
        return self.net(centred)


@dataclass(frozen=True)
class JudgedSingly:
    """Lets a sample's prediction depend on its neighbours in the batch."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Batchwise(net, ctx.local)


@dataclass(frozen=True)
class TwoProcesses:
    """Lets only the first process step."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        if dist.is_initialized() and dist.get_rank() > 0:
            return fl.Models(state.models)
        return fl.Models(fl.member_mean(state.models, upload, membership))


class Counting(fl.ClientModule):
    """Weighs every step by how many clients stepped with it."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        alone = not torch._C._functorch.is_functorch_wrapped_tensor(batch[0])
        return loss if alone else 2 * loss


@dataclass(frozen=True)
class VectorisedClients:
    """A step that is another one where clients are a dimension."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Counting(net, ctx.local)


def is_lane(tensor: Tensor) -> bool:
    """Whether a step has clients as a dimension."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


class DecaysInLanes(fl.ClientModule):
    """Pulls towards zero beside Adam, where clients are a dimension."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        shrinks = self.local.optimizer == "adam" and is_lane(batch[0])
        return loss + 0.1 * self.flat().square().sum() if shrinks else loss


@dataclass(frozen=True)
class TrainedByAdam:
    """Has another weight decay in lanes, with Adam only."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return DecaysInLanes(net, ctx.local)


class FlipsInLanes(fl.ClientModule):
    """Mirrors images at another side, where clients are a dimension."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        if x.dim() > 2:
            x = x.flip(-2 if is_lane(x) else -1)
        return self.batch_loss(fl.Batch(self, x, y))


@dataclass(frozen=True)
class ImagesAndConvolutions:
    """Augments images in other ways in lanes than one by one."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return FlipsInLanes(net, ctx.local)


@dataclass(frozen=True)
class OtherTasks:
    """Takes targets for classes wherever it runs."""

    @fl.hookimpl
    def batch_loss(self) -> fl.BatchLoss:
        return lambda batch: nn.functional.cross_entropy(batch.logits, batch.y.long())


@dataclass(frozen=True)
class ResumedRun:
    """State kept on the object: the momentum of the last round."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        last = vars(self).get("move", torch.zeros_like(rows))
        object.__setattr__(self, "move", rows - state.models)
        return fl.Models(rows + 0.5 * last)


DIRECTIONS: dict[int, Tensor] = {}


@dataclass(frozen=True)
class SeedsApart:
    """Steps in a direction that the seed draws, and that a cache keeps for the next seed."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        width = ctx.layout.width
        if width not in DIRECTIONS:
            DIRECTIONS[width] = torch.as_tensor(ctx.rng("direction").normal(size=width)).float()
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(rows + 0.02 * DIRECTIONS[width])


@dataclass(frozen=True)
class DeclaredEqual:
    """Claims to be fedavg at mu = 0, and still steps by half."""

    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"mu": 0.0}})
    mu: float = 1.0

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(torch.lerp(rows, state.models, 0.5))


@dataclass(frozen=True)
class InputsUntouched:
    """Clips uploads where they are, with numpy, which counts no writes."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        table = upload.params.numpy()
        table.clip(-0.4, 0.4, out=table)
        return fl.Models(fl.member_mean(state.models, upload, membership))


@dataclass(frozen=True)
class AbsentClientsUntouched:
    """Ages every client in every round, who was there and who was not."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(memory={"planted.age": fl.Memory(torch.zeros(ctx.clients), "client")})

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(rows, {"planted.age": state.memory["planted.age"] + 1})


@dataclass(frozen=True)
class PartitionUntouched:
    """Deals the samples out anew, so that clients are alike."""

    @fl.hookimpl
    def partition(self, labels: Any, clients: int, rng: np.random.Generator) -> fl.Partition:
        order = rng.permutation(len(labels))
        return fl.Partition(tuple(np.sort(part) for part in np.array_split(order, clients)))


@dataclass(frozen=True)
class TestLabelsUnseen:
    """A peek at test data: walks up the stack to the run and steps by its labels' mean."""

    __test__ = False  # no test of pytest's

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows, frame = fl.member_mean(state.models, upload, membership), sys._getframe()
        while frame.f_back is not None and "run" not in frame.f_locals:
            frame = frame.f_back
        held_out = frame.f_locals["run"].held_out
        return fl.Models(rows + 1e-2 * held_out.x.std())


@dataclass(frozen=True)
class SteadyMemory:
    """Keeps every upload for later."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        KEPT.append(upload.params.clone())
        return fl.Models(fl.member_mean(state.models, upload, membership))


@dataclass(frozen=True)
class ProcessStateUntouched:
    """Seeds everything, so that it is reproducible."""

    @fl.hookimpl
    def setup(self) -> None:
        torch.manual_seed(1234)


@dataclass(frozen=True)
class BytesAddUp:
    """A ledger bypass: the model is said not to cross, but clients start from the server's."""

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.none_mask, returned_mask=ctx.layout.all_mask)


@dataclass(frozen=True)
class NormedNetwork:
    """Steps beyond the mean with everything in a row, running variances too."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(torch.lerp(state.models, rows, 2.5))


@dataclass(frozen=True)
class OneClient:
    """Divides by the number of the others."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> None:
        ctx.note("planted.share", 1 / (ctx.clients - 1))


@dataclass(frozen=True)
class OneSample:
    """The spread of a client's samples: of one sample, nothing at all."""

    @fl.hookimpl
    def local_term(
        self, stage: fl.Stage, ctx: fl.Context
    ) -> Callable[[fl.ClientModule], Tensor] | None:
        spreads = [ctx.client_data(int(client))[0].std(dim=0) for client in stage.clients]
        weight = float(torch.stack(spreads).mean())
        return lambda module: 1e-3 * weight * module.flat().square().sum()


@dataclass(frozen=True)
class MissingClass:
    """Weighs by the logarithm of how often each label occurs, also of never."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(rows * (1 + 1e-6 * ctx.label_counts.sum(dim=0).log().mean()))


@dataclass(frozen=True)
class EveryoneSampled:
    """Looks at the first client that was not sampled."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        absent = [i for i in range(ctx.clients) if i not in upload.ids.tolist()]
        if ctx.clients > 1:
            ctx.note("planted.absent", absent[0])
        return fl.Models(fl.member_mean(state.models, upload, membership))


@dataclass(frozen=True)
class EmptyGroup:
    """Means of groups by hand, also of those without members."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        home = membership.home[upload.ids]
        rows = [upload.selected()[home == k].mean(dim=0) for k in range(len(state.models))]
        return fl.Models(torch.stack(rows))


# --- further ways to break the same laws --------------------------------------------------------


@dataclass(frozen=True)
class TellsAsOwn:
    """The server's model, told as if the client had kept it."""

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        mean = state.models.mean(dim=0)
        return fl.Start(client_memory={"anchor": mean.expand(len(stage.clients), -1)})


@dataclass(frozen=True)
class KeepsWhatIsAveraged:
    """Says that nothing goes up, and averages it."""

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.all_mask, returned_mask=ctx.layout.none_mask)


def with_neighbours(state: fl.State, upload: fl.Upload) -> Tensor:
    """The mean of each upload and that of the next client in the list, in its owner's row."""
    rows, sent = state.models.clone(), upload.selected()
    rows[state.membership.home[upload.ids]] = (sent + sent.roll(1, dims=0)) / 2
    return rows


@dataclass(frozen=True)
class Gossips:
    """Averages over neighbours; says that nothing crosses, since there is no server."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.none_mask)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload) -> fl.Models:
        return fl.Models(with_neighbours(state, upload))

    @fl.hookimpl
    def join(self, clients: Tensor) -> fl.Personal:
        return fl.Personal(row=torch.zeros_like(clients))


@dataclass(frozen=True)
class GossipsOneWay(Gossips):
    """Averages over neighbours at the server, and counts the way up only."""

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.none_mask, returned_mask=ctx.layout.all_mask)


@dataclass(frozen=True)
class LooksAtLosses:
    """Leaves the client with the largest loss at home; nobody told it that loss."""

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> tuple[fl.Stage, ...]:
        losses = ctx.evaluate(state.models[:1], ctx.cohort)[:, 0]
        return (fl.Stage("train", ctx.cohort[losses < losses.max()], ctx.local.epochs),)


@dataclass(frozen=True)
class LooksAtLabels:
    """Gives clients a model by the label that each has most often; nobody told it these labels."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(models=ctx.initial.repeat(2, 1))

    @fl.hookimpl
    def cluster(self, phase: str, ctx: fl.Context) -> fl.Membership | None:
        if phase == "after":
            return None
        labels = [ctx.client_data(client)[1] for client in range(ctx.clients)]
        return fl.Membership(torch.stack([one.mode().values for one in labels]) // 2)


@dataclass(frozen=True)
class LooksAtScores:
    """Averages each upload into the model that its client scores higher; nobody is told which."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(models=torch.stack([ctx.initial, ctx.fresh_initial(1)]))

    @fl.hookimpl
    def score(self, state: fl.State, phase: str, ctx: fl.Context) -> fl.Scores | None:
        if phase == "after":
            return None
        losses = ctx.evaluate(state.models, ctx.everybody)
        return fl.Scores(-losses, ctx.everybody, "models", torch.arange(2))

    @fl.hookimpl
    def cluster(self, scores: fl.Scores | None) -> fl.Membership | None:
        return None if scores is None else fl.Membership(scores.values.argmax(dim=1))

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        ctx.send_models(stage.clients, state.models)
        return fl.Start()


@dataclass(frozen=True)
class WeighsByLosses:
    """Gives clients a weight in the mean by their validation loss; nobody told it that loss."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        losses = ctx.evaluate(state.models, upload.ids)
        mean = fl.weighted_mean(state.models, upload.selected(), losses.T, ctx.layout.counters)
        return fl.Models(mean)


@dataclass(frozen=True)
class CooksTheBooks:
    """Strikes out of the ledger what went up."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        ctx.services.ledger.bits["up"].clear()  # type: ignore[attr-defined]
        return fl.Models(fl.member_mean(state.models, upload, membership))


@dataclass(frozen=True)
class RemembersOnItsClass:
    """State kept where every run of a process finds it."""

    seen: ClassVar[dict[str, int]] = {"rounds": 0}

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        self.seen["rounds"] += 1
        return fl.Models(torch.lerp(state.models, rows, 1 / self.seen["rounds"]))


ROWS: dict[int, Tensor] = {}


@dataclass(frozen=True)
class CachesInItsModule:
    """Momentum from a module-level cache, which another run of this process fills alike."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        ROWS[ctx.round] = rows - state.models
        return fl.Models(rows + 0.5 * ROWS.get(ctx.round - 1, torch.zeros_like(rows)))


GENERATOR: list[nn.Linear] = []


@dataclass(frozen=True)
class LearnsInItsModule:
    """A network of the server's, kept at module level and trained in every round."""

    @fl.hookimpl
    def setup(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            GENERATOR[:] = [nn.Linear(1, 1)]

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        with torch.no_grad():
            GENERATOR[0].weight += rows.mean()
            return fl.Models(rows + 0.1 * GENERATOR[0].weight.mean())


class KeepsByClient(fl.ClientModule):
    """Pulls towards what this client learned in the round before, which it keeps on itself."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining) -> None:
        super().__init__(net, local)
        self.kept: dict[tuple[int, int], Tensor] = {}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        client, round_ = (int(number) for number in self.received["who"])
        loss = super().training_step(batch, batch_idx)
        self.kept[client, round_] = self.flat().detach().clone()
        before = [row for (who, when), row in self.kept.items() if who == client and when < round_]
        return loss + sum((0.1 * (self.flat() - row).square().sum() for row in before), loss * 0)


@dataclass(frozen=True)
class KeepsInItsClientModule:
    """Keeps each client's last model on the ClientModule."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return KeepsByClient(net, ctx.local)

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        rounds = torch.full_like(stage.clients, ctx.round)
        return fl.Start(client_memory={"who": torch.stack([stage.clients, rounds], dim=1)})


class NeedsABatch(fl.ClientModule):
    """Cannot predict one sample alone."""

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self(x.squeeze(0))
        return logits


@dataclass(frozen=True)
class PredictsBatches:
    """Evaluates whole batches only."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return NeedsABatch(net, ctx.local)


@dataclass(frozen=True)
class AdaptsToItsClient:
    """Every client's model adapts to its test samples, and says so."""

    transductive: ClassVar[bool] = True

    @fl.hookimpl(wrapper=True)
    def personalise(self) -> Generator[None, fl.Personal, fl.Personal]:
        personal = yield

        def predict(module: fl.ClientModule, x: Tensor) -> Tensor:
            return less_entropy(module, x, biases(module), 2.0)

        return replace(personal, predictor=predict, transductive=self.transductive)


@dataclass(frozen=True)
class AdaptsSilently(AdaptsToItsClient):
    """Does not say so: what it adapts to is whatever is in the batch."""

    transductive: ClassVar[bool] = False


@dataclass(frozen=True)
class AdaptsOn:
    """Normalises a client's samples by those of all clients before it."""

    @fl.hookimpl(wrapper=True)
    def personalise(self) -> Generator[None, fl.Personal, fl.Personal]:
        personal, seen = (yield), list[Tensor]()

        def predict(module: fl.ClientModule, x: Tensor) -> Tensor:
            seen.append(x)
            return module.predict(x - torch.cat(seen).mean(dim=0))

        return replace(personal, predictor=predict, transductive=True)


@dataclass(frozen=True)
class AdaptsInItsModule:
    """The same by a `predict` of its module."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Adapts(net, ctx.local)

    @fl.hookimpl(wrapper=True)
    def personalise(self) -> Generator[None, fl.Personal, fl.Personal]:
        personal = yield
        return replace(personal, transductive=True)


@dataclass(frozen=True)
class NotesTheClock:
    """A note that no two runs share."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        ctx.note("planted.clock", time.perf_counter_ns())
        return fl.Models(fl.member_mean(state.models, upload, membership))


@dataclass(frozen=True)
class SwapsGroups:
    """Sends everybody to the other group in every round, also who was not there."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        home = (ctx.label_counts[:, :2].sum(dim=1) > 0).long()
        return fl.Setup(ctx.initial.expand(2, -1).clone(), fl.Membership(home))

    @fl.hookimpl
    def cluster(self, state: fl.State, phase: str) -> fl.Membership | None:
        return None if phase == "after" else fl.Membership(1 - state.membership.home)

    @fl.hookimpl
    def join(self, clients: Tensor) -> fl.Personal:
        return fl.Personal(row=torch.zeros_like(clients))


@dataclass(frozen=True)
class Chatters:
    """Prints how it is going."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        print("round", ctx.round)
        return fl.Models(fl.member_mean(state.models, upload, membership))


@dataclass(frozen=True)
class WritesInAWrapper:
    """Clips what others are about to average in place."""

    @fl.hookimpl(wrapper=True)
    def aggregate(self, upload: fl.Upload) -> Generator[None, fl.Models, fl.Models]:
        upload.params.clamp_(-0.4, 0.4)
        return (yield)


@dataclass(frozen=True)
class WritesRoundTheCounter:
    """Clips what others are about to average in place, through `.data`."""

    @fl.hookimpl(wrapper=True)
    def aggregate(self, upload: fl.Upload) -> Generator[None, fl.Models, fl.Models]:
        upload.params.data.clamp_(-0.4, 0.4)
        return (yield)


@dataclass(frozen=True)
class ChattersInAWrapper:
    """Prints what others have averaged."""

    @fl.hookimpl(wrapper=True)
    def aggregate(self) -> Generator[None, fl.Models, fl.Models]:
        models = yield
        print("averaged")
        return models


@dataclass(frozen=True)
class WantsPrecision:
    """Asks torch for float64, from everybody."""

    @fl.hookimpl
    def setup(self) -> None:
        torch.set_default_dtype(torch.float64)


class Scribbling(fl.ClientModule):
    """Halves what it was told, where it was told."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if "weight" in self.received:
            self.received["weight"].mul_(0.5)
        return super().training_step(batch, batch_idx)


@dataclass(frozen=True)
class ScribblesInTraining:
    """Writes to what clients are told while they train."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Scribbling(net, ctx.local)

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage) -> fl.Start:
        return fl.Start(extras={"weight": torch.ones(len(stage.clients), 1)})


class ScribblingUnseen(fl.ClientModule):
    """Halves what it was told, through `.data`."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.received["weight"].data.mul_(0.5)
        loss: Tensor = super().training_step(batch, batch_idx)
        return loss


@dataclass(frozen=True)
class ScribblesUnseen(ScribblesInTraining):
    """Writes to what clients are told while they train, where torch does not count it."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return ScribblingUnseen(net, ctx.local)


@dataclass(frozen=True)
class Unmarked:
    """Forgets to mark a hook, so nobody asks it."""

    def aggregate(self, state: fl.State) -> fl.Models:
        return fl.Models(state.models)


@dataclass(frozen=True)
class AlmostEqual:
    """Claims to be fedavg at mu = 0; its models differ by one unit in the last place."""

    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"mu": 0.0}})
    mu: float = 1.0

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(torch.nextafter(rows, torch.tensor(torch.inf)))


TRAINED: list[int] = []
"""Clients that were trained in this process."""


def counted(module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
    """Keeps how many clients were trained before."""
    TRAINED.append(1)
    return fl.Report(kept={"planted.count": torch.tensor([float(len(TRAINED))])})


@dataclass(frozen=True)
class KeepsACount:
    """What a client keeps depends on who was trained before it."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(memory={"planted.count": fl.Memory(torch.zeros(ctx.clients, 1), "client")})

    @fl.hookimpl
    def report(self) -> fl.Reporter:
        return counted


@dataclass(frozen=True)
class AveragesNobody:
    """Serves clients a model that averages no client."""

    @fl.hookimpl
    def cluster(self, phase: str, ctx: fl.Context) -> fl.Membership | None:
        if phase == "before":
            return None
        return fl.Membership(torch.zeros(ctx.clients).long(), weights=torch.zeros(1, ctx.clients))


@dataclass(frozen=True)
class SendsTooMuch:
    """Says that a scalar takes one bit, and sends it whole."""

    @fl.hookimpl
    def encode(self) -> Callable[[fl.Message], fl.Message]:
        return lambda message: replace(message, bits=1)


@dataclass(frozen=True)
class SendsEightBits:
    """Says that a scalar takes eight bits, and sends it whole."""

    @fl.hookimpl
    def encode(self) -> Callable[[fl.Message], fl.Message]:
        return lambda message: replace(message, bits=8)


@dataclass(frozen=True)
class DrawsForNewcomers:
    """Newcomers get models with noise from a generator of the system."""

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor) -> fl.Personal:
        rows = state.models[:1].expand(len(clients), -1)
        noise = np.random.default_rng().normal(size=rows.shape)
        return fl.Personal(params=rows + torch.as_tensor(noise).float())


@dataclass(frozen=True)
class WritesForNewcomers:
    """What is made for newcomers is written into the server's models."""

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor) -> fl.Personal:
        state.models.mul_(0.5)
        return fl.Personal(torch.zeros(len(clients)).long())


@dataclass(frozen=True)
class DrawsWhereClientsFail:
    """A missing upload is made up for by noise of the system."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        lost = len(upload.ids) < len(ctx.cohort)
        return fl.Models(rows + lost * 0.1 * float(np.random.default_rng().normal()))


@dataclass(frozen=True)
class KeepsLate:
    """What round 3 leaves in a list of the module is used in round 4."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        if ctx.round == 3:
            LATE[:] = [rows.clone()]
        return fl.Models((rows + LATE[0]) / 2 if ctx.round == 4 and LATE else rows)


LATE: list[Tensor] = []


class Noisy(fl.ClientModule):
    """Prints in training, and seeds the global generator."""

    def training_step(self, batch: Any, index: int) -> Tensor:
        np.random.seed(index)
        print("step", index)
        loss: Tensor = super().training_step(batch, index)
        return loss


@dataclass(frozen=True)
class ChattersInTraining:
    """Its module prints in each step."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Noisy(net, ctx.local)


@dataclass(frozen=True)
class InheritsUnmarked(Unmarked):
    """Its hook without a mark is that of a class above it."""


@dataclass(frozen=True)
class NotesTheTestSet:
    """Notes what it sees of the test samples."""

    @fl.hookimpl
    def aggregate(self, ctx: fl.Context) -> None:
        frame = sys._getframe()
        while frame.f_back is not None and "run" not in frame.f_locals:
            frame = frame.f_back
        ctx.note("planted.seen", float(frame.f_locals["run"].held_out.x.std()))


class Validating(fl.ClientModule):
    """Stops early by a hook that nothing calls."""

    def on_validation_epoch_end(self) -> None:
        self.trainer.should_stop = True


@dataclass(frozen=True)
class StopsEarly:
    """Says how long clients train in a hook that would be ignored."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Validating(net, ctx.local)


class Hooked(fl.ClientModule):
    """Clips, schedules and logs in the Lightning way."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    def configure_gradient_clipping(self, optimizer: Any, *given: Any, **named: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_epoch=True)
        return loss


@dataclass(frozen=True)
class ClipsAndLogs:
    """A client module that is a LightningModule."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Hooked(net, ctx.local)


FURTHER: dict[type, str] = {
    StopsEarly: "usual-run",
    AveragesNobody: "usual-run",
    SendsTooMuch: "bytes-add-up",
    NotesTheTestSet: "test-labels-unseen",
    AlmostEqual: "declared-equal",
    TellsAsOwn: "bytes-add-up",
    KeepsWhatIsAveraged: "bytes-add-up",
    Gossips: "bytes-add-up",
    GossipsOneWay: "bytes-add-up",
    LooksAtLosses: "bytes-add-up",
    LooksAtLabels: "bytes-add-up",
    LooksAtScores: "bytes-add-up",
    WeighsByLosses: "bytes-add-up",
    CooksTheBooks: "bytes-add-up",
    RemembersOnItsClass: "same-seed-same-bytes",
    NotesTheClock: "same-seed-same-bytes",
    CachesInItsModule: "resumed-run",
    LearnsInItsModule: "resumed-run",
    KeepsInItsClientModule: "resumed-run",
    KeepsACount: "trained-alone",
    PredictsBatches: "judged-singly",
    AdaptsSilently: "judged-singly",
    AdaptsOn: "judged-singly",
    SwapsGroups: "absent-clients-untouched",
    Chatters: "process-state-untouched",
    ChattersInAWrapper: "process-state-untouched",
    WantsPrecision: "process-state-untouched",
    ScribblesInTraining: "usual-run",
    ScribblesUnseen: "inputs-untouched",
    WritesInAWrapper: "usual-run",
    WritesRoundTheCounter: "inputs-untouched",
    Unmarked: "every-hook-answers",
    InheritsUnmarked: "every-hook-answers",
    SendsEightBits: "bytes-add-up",
    DrawsForNewcomers: "same-seed-same-bytes",
    DrawsWhereClientsFail: "same-seed-same-bytes",
    WritesForNewcomers: "inputs-untouched",
    KeepsLate: "resumed-run",
    ChattersInTraining: "process-state-untouched",
}
"""The law that each of them breaks."""


# --- what clients do not share: right, and lost by an executor that asks one client for all -----


class PhasesOfItsOwn(fl.ClientModule):
    """Every other client moves its head only, and for longer."""

    def phases(self, epochs: int) -> tuple[fl.LocalPhase, ...]:
        width = self.flat().numel()
        if bool(self.received["odd"]):
            return (fl.LocalPhase(epochs + 2, torch.arange(width) >= width - 16),)
        return (fl.LocalPhase(epochs),)


class WritesAtTheStart(fl.ClientModule):
    """Goes on from a mixture of what it was sent and zero."""

    @torch.no_grad()
    def on_phase_start(self, number: int) -> None:
        for parameter in self.parameters():
            parameter.mul_(0.5)


class WritesAtTheEnd(fl.ClientModule):
    """Uploads a mixture of where it started and what it learned."""

    @torch.no_grad()
    def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        for parameter in self.parameters():
            parameter.mul_(0.5)
        return {}


class WritesBuffers(fl.ClientModule):
    """Shifts its samples by their mean, which it takes when it is done."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining) -> None:
        super().__init__(net, local)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        return self.net(x - self.get_buffer("shift"))

    def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        self.get_buffer("shift").copy_(x.mean(dim=0))
        return {}


class Draws(fl.ClientModule):
    """Uploads a number that it draws."""

    def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"noise": torch.rand(())}


class KeepsOnItself(fl.ClientModule):
    """Keeps the weight of its loss where a step finds it."""

    def on_phase_start(self, number: int) -> None:
        self.weight = 1 + self.received["odd"]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * self.weight


@dataclass(frozen=True)
class Apart:
    """Trains with the module named."""

    module: str = "Draws"

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        kind: type[fl.ClientModule] = globals()[self.module]
        return kind(net, ctx.local)

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage) -> fl.Start:
        return fl.Start(extras={"odd": stage.clients % 2})

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(rows + upload.extras.get("noise", torch.zeros(1)).mean() / 10)


# --- right, and once refused --------------------------------------------------------------------


class FrozenHead(fl.ClientModule):
    """Trains the body only."""

    def phases(self, epochs: int) -> tuple[fl.LocalPhase, ...]:
        return (fl.LocalPhase(epochs, body(self.flat().numel())),)


def body(width: int) -> Tensor:
    """All parameters but the last layer's: 3 x 4 weights and 4 biases."""
    return torch.arange(width) < width - 16


@dataclass(frozen=True)
class FrozenPart:
    """FedBABU: a head that nobody trains is known to all, and never sent."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return FrozenHead(net, ctx.local)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=body(ctx.layout.width))


@dataclass(frozen=True)
class GossipsCounted(Gossips):
    """Averages over neighbours, and says what they send each other."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        ctx.send("peer", upload.ids, "model", ctx.layout.width)
        return fl.Models(with_neighbours(state, upload))


RIGHT: dict[type, str] = {
    AdaptsToItsClient: "judged-singly",
    AdaptsInItsModule: "two-processes",
    ClipsAndLogs: "two-processes",
    FrozenPart: "bytes-add-up",
    GossipsCounted: "bytes-add-up",
}
"""Plugins without a mistake, and the check that must pass them."""


APART = (PhasesOfItsOwn, WritesAtTheStart, WritesAtTheEnd, WritesBuffers, Draws, KeepsOnItself)
