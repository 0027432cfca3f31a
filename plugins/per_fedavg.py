"""Per-FedAvg: meta-learning of a model that every client adapts in one step.

Fallah, Mokhtari, Ozdaglar, "Personalized federated learning with theoretical guarantees: a
model-agnostic meta-learning approach", NeurIPS 2020.

Each local step takes fresh batches A (support), Q (query) and, but for `fo`, H (Hessian):

    u' = u - alpha grad f(u; A);  g = grad f(u'; Q)
    fo:     u <- u - beta g
    hf:     u <- u - beta (g - alpha [grad f(u + d g; H) - grad f(u - d g; H)] / 2d)
    exact:  u <- u - beta (g - alpha Hess f(u; H) g)

The cohort's models are averaged uniformly. A client is evaluated with a copy after `adapt_steps`
plain steps of size alpha on one fixed batch of its training data (or `adapt_epochs` epochs, with
the suite's momentum). Departures: alpha and beta are the suite's learning rate unless given (the
released 0.01 and 0.001 are slow); meta-steps are the suite's SGD with learning rate beta;
`scale_delta` divides d by |g|, so that the step of the finite difference has a fixed length. Only
one pass per step updates BatchNorm statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.func import functional_call, grad

import flbench as fl

Weights = dict[str, Tensor]
Version = Literal["fo", "hf", "exact"]
Rate0 = Annotated[float, Ge(0)] | None
Rate = Annotated[float, Gt(0)] | None


class MetaStep(fl.ClientModule):
    """Makes meta-steps; with `adapt` in `received`, plain steps of size alpha."""

    method: PerFedAvg
    alpha: float

    @property
    def batches_per_step(self) -> int:  # type: ignore[override]
        """Support and query, and a batch for the Hessian unless `version` is "fo"."""
        return 2 if self.method.version == "fo" else 3

    def phases(self, epochs: int) -> tuple[fl.LocalPhase, ...]:
        """Adaptation takes one batch per step; the momentum is reset in each epoch."""
        if "adapt" in self.received:
            return (fl.LocalPhase(1, None, 1),) * epochs
        return (fl.LocalPhase(epochs),)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """A loss whose gradient is the meta-gradient; its value is the query's loss."""
        if "adapt" in self.received:
            loss = super().training_step(batch, batch_idx)
            decay = self.local.weight_decay / 2 * self.flat().square().sum()  # what SGD adds
            scaled = loss * (self.alpha / self.local.lr) - decay
            return scaled - scaled.detach() + loss.detach()
        alpha, (support, query, *hessian) = self.alpha, batch
        here = {name: p.detach() for name, p in self.net.named_parameters()}
        ahead = moved(here, self.slope(here, support), -alpha)
        value = self.value(ahead, query).detach()
        step = g = self.slope(ahead, query)
        if hessian:
            step = moved(g, self.curved(here, g, hessian[0]), -alpha)
        # A loss with the value of the query's loss and the gradient `step`.
        inner = torch.stack([(step[name] * p).sum() for name, p in self.net.named_parameters()])
        if next(self.net.buffers(), None) is not None:
            super().training_step(query, batch_idx)  # only to update BatchNorm statistics
        return inner.sum() - inner.sum().detach() + value

    def value(self, weights: Weights, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Loss of other weights on a batch; statistics are those of the batch, and not kept."""
        x, y = batch
        kept: Mapping[str, Tensor] = {n: b.clone() for n, b in self.net.named_buffers()}
        logits = functional_call(self.net, {**weights, **kept}, (x,))
        return self.batch_loss(fl.Batch(self, x, y, logits))

    def slope(self, weights: Weights, batch: tuple[Tensor, Tensor]) -> Weights:
        """Gradient of the loss at some weights."""
        found: Weights = grad(self.value)(weights, batch)
        return {name: value.detach() for name, value in found.items()}

    def curved(self, here: Weights, g: Weights, batch: tuple[Tensor, Tensor]) -> Weights:
        """The Hessian at `here` times g: exactly, or from two gradients."""
        if self.method.version == "exact":

            def along(weights: Weights) -> Tensor:
                slope = grad(self.value)(weights, batch)
                return torch.stack([(slope[name] * g[name]).sum() for name in g]).sum()

            found: Weights = grad(along)(here)
            return {name: value.detach() for name, value in found.items()}
        d = torch.as_tensor(self.method.delta)
        if self.method.scale_delta:
            d = d / torch.stack([v.square().sum() for v in g.values()]).sum().sqrt().clamp(
                min=1e-12
            )
        up, down = (self.slope(moved(here, g, sign * d), batch) for sign in (1, -1))
        return {name: (up[name] - down[name]) / (2 * d) for name in g}


def moved(weights: Weights, direction: Weights, by: float | Tensor) -> Weights:
    """Weights + by * direction."""
    return {name: value + by * direction[name] for name, value in weights.items()}


@dataclass(frozen=True)
class PerFedAvg:
    """Meta-learning of a model that every client adapts in one step."""

    paper: ClassVar[str] = "Fallah, Mokhtari, Ozdaglar, NeurIPS 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "personalised"
    presets: ClassVar[fl.Presets] = {"flis": {"alpha": 0.01, "beta": 0.01}}
    effort: ClassVar[tuple[str, ...]] = ("adapt_steps", "adapt_epochs")

    version: Annotated[Version, "first order, Hessian-free, or the exact Hessian"] = "fo"
    alpha: Annotated[Rate0, "size of the adapting step; none = the suite's lr"] = None
    beta: Annotated[Rate, "learning rate of the meta-steps; none = the suite's lr"] = None
    delta: Annotated[
        float, Gt(0), fl.only_with("version", "hf"), "step of the finite difference"
    ] = 0.001
    scale_delta: Annotated[
        bool, fl.only_with("version", "hf"), "divide delta by the gradient's norm"
    ] = False
    adapt: Annotated[Literal["steps", "epochs"], "unit of the adaptation before evaluation"] = (
        "steps"
    )
    adapt_steps: Annotated[
        int, Ge(0), fl.only_with("adapt", "steps"), "steps on one fixed batch"
    ] = 1
    adapt_epochs: Annotated[int, Ge(0), fl.only_with("adapt", "epochs"), "epochs"] = 1

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> None:
        """Refuse data of which no client has enough batches for one step."""
        if ctx.local.optimizer != "sgd":
            raise fl.Undefined(
                f"Per-FedAvg is defined for SGD, the suite trains with {ctx.local.optimizer}"
            )
        needed, size = (2 if self.version == "fo" else 3), ctx.local.batch_size
        batches = (ctx.samples + size - 1) // size
        if ctx.local.drop_last:
            batches = (ctx.samples // size).clamp(min=1)
        short = int((batches < needed).sum())
        if short == ctx.clients:
            raise fl.Undefined(
                f"a meta-step takes {needed} batches and no client has more than"
                f" {int(ctx.samples.max())} samples: lower local.batch_size={size}"
            )
        if short:
            ctx.warn(
                f"per-fedavg: {short} clients have fewer than {needed} batches and stand still"
            )

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module that takes meta-steps, at learning rate beta."""
        module = MetaStep(net, replace(ctx.local, lr=self.beta or ctx.local.lr))
        module.method = self
        module.alpha = ctx.local.lr if self.alpha is None else self.alpha
        return module

    @fl.hookimpl
    def weights(self, upload: fl.Upload) -> Tensor:
        """All clients count the same."""
        return fl.client_weights(upload, "uniform")

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The uniform mean."""
        counters = ctx.layout.counters
        return fl.Models(fl.member_mean(state.models, upload, membership, counters))

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """Each client adapts a copy; the model itself is evaluated as `meta`."""
        home = state.membership.home[clients]
        if (home < 0).any():
            raise fl.Undefined("a client in no group has no model")
        steps = self.adapt == "steps"  # with one batch of samples an epoch is a step
        stage = fl.Stage(
            "train",
            clients,
            self.adapt_steps if steps else self.adapt_epochs,
            name="adapt",
            samples=ctx.local.batch_size if steps else None,
        )
        extras = {"adapt": torch.ones(len(clients))}
        meta = fl.Personal(home)
        return fl.Personal(home, adaptation=stage, extras=extras, others={"meta": meta})

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer adapts a copy, too."""
        return self.personalise(state, clients, ctx)
