"""Methods of families that no built-in method stands for, by public names and documents alone.

Each is the shortest that does what its paper is about; plugins/README.md names them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import flbench as fl


class _ByHand(fl.ClientModule):
    """A step of more than one pass."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining) -> None:
        super().__init__(net, local)
        self.automatic_optimization = False

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return self.batch_loss(fl.Batch(self, x, y))


class SharpSteps(_ByHand):
    """The gradient at the place within `rho` where the loss is largest, to first order."""

    rho = 0.05

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters()]
        length = torch.cat([one.flatten() for one in slopes]).norm()
        moves = [self.rho * one / (length + 1e-12) for one in slopes]
        with torch.no_grad():
            for parameter, move in zip(self.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        with torch.no_grad():
            for parameter, move in zip(self.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()


class TwoLosses(_ByHand):
    """A step along a random direction, by the difference of two losses: no gradient is taken."""

    far = 1e-3

    @torch.no_grad()
    def training_step(self, batch: Any, batch_idx: int) -> None:
        ways = [torch.randn_like(parameter) for parameter in self.parameters()]
        before = self.loss(batch)
        for parameter, way in zip(self.parameters(), ways, strict=True):
            parameter.add_(self.far * way)
        slope = (self.loss(batch) - before) / self.far
        for parameter, way in zip(self.parameters(), ways, strict=True):
            parameter.sub_(self.far * way)
            parameter.grad = slope * way
        self.optimizers().step()


@dataclass(frozen=True)
class SharpnessAware:
    """FedSAM: Qu, Li, Duan, Liu, Tang, Lu, ICML 2022."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return SharpSteps(net, ctx.local)


@dataclass(frozen=True)
class ZerothOrder:
    """FedZO: Fang, Yu, Jiang, Shi, Jones, Zhou, IEEE TSP 2022, with one direction a step."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return TwoLosses(net, ctx.local)


@dataclass(frozen=True)
class MixesData:
    """Mixup of a client's own samples, on top of any loss: Zhang et al., ICLR 2018."""

    share: float = 0.7

    @fl.hookimpl(wrapper=True)
    def batch_loss(self) -> Generator[None, fl.BatchLoss, fl.BatchLoss]:
        other = yield

        def mixed(batch: fl.Batch) -> Tensor:
            x = self.share * batch.x + (1 - self.share) * batch.x.flip(0)
            own = other(fl.Batch(batch.module, x, batch.y))
            return self.share * own + (1 - self.share) * other(
                fl.Batch(batch.module, x, batch.y.flip(0))
            )

        return mixed


class OnHead(fl.ClientModule):
    """Something between features and head; `own` is the name of what it adds."""

    own = "added"

    def __init__(self, net: nn.Module, local: fl.LocalTraining, head: str) -> None:
        super().__init__(net, local)
        self.head_name = head
        layer = self.head()
        self.added = self.parts(layer.in_features, layer.out_features)

    def head(self) -> nn.Linear:
        layer = self.get_submodule(self.head_name)
        assert isinstance(layer, nn.Linear)
        return layer

    def parts(self, width: int, classes: int) -> Any:
        raise NotImplementedError

    def from_features(self, features: Tensor) -> Tensor:
        raise NotImplementedError

    def predict(self, x: Tensor) -> Tensor:
        return self.from_features(self.features(x)[0])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        features = self.features(x)[0]
        logits = self.from_features(features)
        return self.batch_loss(fl.Batch(self, x, y, logits, features))


class OwnShift(OnHead):
    """A vector of the client's own is added."""

    def parts(self, width: int, classes: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(width))

    def from_features(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head()(features + self.added)
        return logits


class OwnGate(OnHead):
    """A gate of the client's own divides features among the common head and its own."""

    def parts(self, width: int, classes: int) -> nn.ModuleList:
        return nn.ModuleList([nn.Linear(width, width), nn.Linear(width, classes)])

    def from_features(self, features: Tensor) -> Tensor:
        gate = self.added[0](features).sigmoid()
        logits: Tensor = self.head()(gate * features) + self.added[1]((1 - gate) * features)
        return logits


class Sampled(OnHead):
    """The weights of the head are normal in training, with deviations that are learnt."""

    def parts(self, width: int, classes: int) -> nn.Parameter:
        return nn.Parameter(torch.full((classes, width), -3.0))

    def from_features(self, features: Tensor) -> Tensor:
        layer, weight = self.head(), self.head().weight
        if self.training:
            weight = weight + self.added.exp() * torch.randn_like(weight)
        return nn.functional.linear(features, weight, layer.bias)


class Prompted(fl.ClientModule):
    """Only what is added to samples is trained."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining, shape: tuple[int, ...]) -> None:
        super().__init__(net, local)
        self.requires_grad_(False)
        self.prompt = nn.Parameter(torch.zeros(shape))

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self(x + self.prompt)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return self.batch_loss(fl.Batch(self, x, y, self.predict(x)))


@dataclass(frozen=True)
class Prompts:
    """A frozen network with a prompt: Guo, Guo, Wang, Tang, Xu, IEEE TMC 2024."""

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Prompted(net, ctx.local, tuple(ctx.client_data(0)[0].shape[1:]))


def with_head(kind: type[OnHead], net: nn.Module, ctx: fl.Context) -> OnHead:
    if ctx.layout.head_name is None:
        raise fl.Undefined("the network has no head")
    return kind(net, ctx.local, ctx.layout.head_name)


@dataclass(frozen=True)
class Bayesian:
    """A normal distribution of the head's weights, averaged with its deviations.

    Zhang, Li, Li, Guo, Shao, ICML 2022, without the divergence from the server's.
    """

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return with_head(Sampled, net, ctx)


@dataclass(frozen=True)
class DomainBias:
    """The representation's own part of a client: Zhang, Hua, Cao, Wang et al., NeurIPS 2023."""

    row_per_client: ClassVar[bool] = True
    kind_of_module: ClassVar[type[OnHead]] = OwnShift

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return with_head(self.kind_of_module, net, ctx)

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.one_model_per_client(ctx)

    @staticmethod
    def common(ctx: fl.Context) -> Tensor:
        mask = ctx.layout.all_mask
        for slot in ctx.layout.slots:
            mask[slot.start : slot.stop] = not slot.name.startswith(OnHead.own)
        return mask

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=self.common(ctx))

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        common, counters = self.common(ctx), ctx.layout.counters
        return fl.Models(fl.partial_mean(state.models, upload, common, counters))


@dataclass(frozen=True)
class ConditionalPolicy(DomainBias):
    """A gate by sample, of each client: Zhang, Hua, Wang, Song, Xue, Ma, Guan, KDD 2023."""

    kind_of_module: ClassVar[type[OnHead]] = OwnGate


@dataclass(frozen=True)
class MatchesNeurons:
    """Hidden units are put in the order of the server's before they are averaged.

    Of the first layer, whose units the second one takes: Wang, Yurochkin, Sun, Papailiopoulos,
    Khazaeni, ICLR 2020.
    """

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        rows = upload.params.clone()
        for at, row in enumerate(upload.selected()):
            home = int(membership.home[upload.ids[at]])
            rows[at, 0] = matched(row, state.models[home], ctx)
        changed = fl.weighted_mean(
            state.models,
            rows[:, 0],
            membership.shares(upload.ids, len(state.models)) * upload.client_weights,
            ctx.layout.counters,
        )
        return fl.Models(changed)


def matched(row: Tensor, like: Tensor, ctx: fl.Context) -> Tensor:
    """A model, shape (W,), with its hidden units in the order of another one's."""
    first, bias, second = ctx.layout.slots[:3]
    own, other = (
        torch.cat([one[s.start : s.stop].view(s.shape[0], -1) for s in (first, bias)], dim=1)
        for one in (row, like)
    )
    _, order = linear_sum_assignment(torch.cdist(other, own).cpu().numpy())
    found = row.clone()
    for slot, dim in ((first, 0), (bias, 0), (second, 1)):
        table = row[slot.start : slot.stop].view(slot.shape)
        found[slot.start : slot.stop] = table.index_select(dim, torch.as_tensor(order)).flatten()
    return found


@dataclass(frozen=True)
class Unlearns:
    """In a round, what one client has added to the model is taken off again."""

    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        fails={"relabelled-clients": "a parameter names a client"}
    )

    client: int = 0
    round: int = 2

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(memory={"unlearns.added": fl.Memory(torch.zeros_like(ctx.initial))})

    @fl.hookimpl(wrapper=True)
    def aggregate(
        self, state: fl.State, upload: fl.Upload, ctx: fl.Context
    ) -> Generator[None, fl.Models, fl.Models]:
        found = yield
        mine = (upload.ids == self.client).nonzero()[:, 0]
        share = upload.client_weights / upload.client_weights.sum()
        moved = upload.selected()[mine] - state.models[:1]
        added = state.memory["unlearns.added"] + share[mine].float() @ moved
        rows = found.rows
        if ctx.round == self.round:
            rows, added = rows - added, torch.zeros_like(added)
        return fl.Models(rows, {**found.memory, "unlearns.added": added})


FAMILIES: tuple[type, ...] = (
    SharpnessAware,
    ZerothOrder,
    MixesData,
    DomainBias,
    ConditionalPolicy,
    Bayesian,
    Prompts,
    MatchesNeurons,
    Unlearns,
)
"""Each passes the checks."""
