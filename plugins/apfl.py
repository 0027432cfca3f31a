"""APFL: a client predicts with a mixture of the global model and its own.

Deng, Kamani, Mahdavi, "Adaptive personalized federated learning", arXiv 2003.13461 (2020),
Algorithm 1 and equation 10.

    global     w   <- w   - eta grad f_i(w), then averaged
    own        v_i <- v_i - eta grad_v f_i(u_i),   u_i = alpha_i v_i + (1 - alpha_i) w
    share      alpha_i <- clip(alpha_i - eta <v_i - w, grad f_i(u_i)>, 0, 1)
    predicts with  u_i

alpha_i is moved once in a round in which client i trains, with the gradient of its first step, as
in the authors' code: on one batch, at the models that the round starts from. It starts at `alpha`;
`adaptive=false` keeps it there for all clients.

Departure: in the gradient of alpha_i BatchNorm uses its statistics, and the loss is cross-entropy.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.func import functional_call

import flbench as fl

SHARE = "apfl.alpha"


class Mixture(fl.ClientModule):
    """The global network and the client's own network."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining, alpha: float) -> None:
        super().__init__(net, local)
        self.own, self.alpha = copy.deepcopy(net), alpha

    def predict(self, x: Tensor) -> Tensor:
        """Logits of the mixture, shape (b, C)."""
        return self.mixture(x, [*self.net.parameters()])

    def mixture(self, x: Tensor, common: Sequence[Tensor]) -> Tensor:
        """Logits of the mixture with a global model, given by its parameters, shape (b, C)."""
        alpha = self.received.get(SHARE, self.alpha)
        pairs = zip(self.own.named_parameters(), common, strict=True)
        mixed = {name: alpha * v + (1 - alpha) * w for (name, v), w in pairs}
        logits: Tensor = functional_call(self.own, mixed, (x,))
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """The loss of the global model plus that of the mixture, which trains the own one alone."""
        x, y = batch
        common = [w.detach() for w in self.net.parameters()]
        mixed = fl.Batch(self, x, y, self.mixture(x, common))
        return self.batch_loss(fl.Batch(self, x, y)) + self.batch_loss(mixed)


@dataclass(frozen=True)
class APFL:
    """A client predicts with a mixture of the global model and its own."""

    paper: ClassVar[str] = "Deng, Kamani, Mahdavi, arXiv 2003.13461"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedavg": {"alpha": 0.0, "adaptive": False}}
    )

    alpha: Annotated[float, Ge(0), Le(1), "first share of the own model; 0 = the global one"] = 0.5
    adaptive: Annotated[bool, "each client moves its share along the gradient"] = True

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client: the global model, equal in all of them, and its own; and a share."""
        shares = torch.full((ctx.clients,), self.alpha)
        memory = {SHARE: fl.Memory(shares, "client")} if self.adaptive else {}
        return fl.one_model_per_client(ctx, memory)

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module with two networks."""
        return Mixture(net, ctx.local, self.alpha)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Only the global model is sent, in both directions; clients move their shares first."""
        sent = ctx.layout.submodule("net")
        if not self.adaptive:
            return fl.Start(sent_mask=sent)
        known = state.memory[SHARE][stage.clients]
        pairs = zip(stage.clients.tolist(), known, strict=True)
        shares = torch.stack([self.moved(state.models[i], alpha, i, ctx) for i, alpha in pairs])
        return fl.Start(sent_mask=sent, client_memory={SHARE: shares})

    def moved(self, row: Tensor, alpha: Tensor, client: int, ctx: fl.Context) -> Tensor:
        """A client's alpha after a step along its gradient on a batch, a scalar.

        Args:
            row: the global model and the client's own, shape (W,).
            alpha: its share so far, a scalar.
            client: its id.
            ctx: the run's context.
        """
        x, y = ctx.client_data(client)
        order = ctx.rng("apfl", ctx.round, client=client).permutation(len(y))
        batch = torch.as_tensor(order[: ctx.local.batch_size])
        common, own = (ctx.layout.submodule(name).to(row.device) for name in ("net", "own"))
        weights = ctx.layout.trainable.to(row.device)[common]
        with torch.enable_grad():
            share = alpha.detach().to(row.device, copy=True).requires_grad_()
            mixed = row.clone()
            mixed[own] = row[common] + share * (row[own] - row[common])
            mixed[own] = torch.where(weights, mixed[own], row[own])
            mixed[common] = mixed[own]  # what predictions mix is this model twice
            loss = fl.cross_entropy(ctx.forward(mixed[None], x[batch])[0], y[batch])
            (slope,) = torch.autograd.grad(loss, share)
        return (alpha - ctx.local.lr * slope.to(alpha)).clamp(0, 1)

    @fl.hookimpl
    def report(self, stage: fl.Stage) -> fl.Reporter | None:
        """Clients keep the share that they trained with."""
        if not self.adaptive or not stage.aggregates:
            return None
        return lambda module, x, y: fl.Report(kept={SHARE: module.received[SHARE]})

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The mean of the global models goes into every row; own models stay local."""
        shared, counters = ctx.layout.submodule("net"), ctx.layout.counters
        return fl.Models(fl.partial_mean(state.models, upload, shared, counters))

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """The mixture, by the client's share; without one, as of newcomers, by `alpha`."""
        extras = {SHARE: state.memory[SHARE][clients]} if self.adaptive else {}
        return fl.Personal(state.membership.home[clients], extras=extras)
