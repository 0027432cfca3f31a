"""pFedMe: clients train the Moreau envelope of their loss, and predict with its inner minimum.

T. Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020,
Algorithm 1.

    F_i(w)     = min_theta f_i(theta) + lambda/2 ||theta - w||^2,  grad F_i(w) = lambda (w - theta)
    batch B    theta <- w; K times: theta <- theta - eta_p (grad f(theta; B) + lambda (theta - w))
               w_i <- w_i - eta lambda (w_i - theta)
    server     w <- (1 - beta) w + beta mean_i w_i;  client i predicts with theta_i(w_i)

K is 5 by default; the steps of w_i are the suite's SGD, with eta its learning rate. The code moves
u = theta - w. With K = 1 and lambda eta_p = 1 the steps of w_i are those of FedAvg. Departures:
theta starts at w for every batch (the paper leaves it open; the authors' code goes on from the last
theta); theta_i is made from all training samples of the client, not from its last batch; it is made
where the client trains (in the authors' code, all clients train in every round). A client that has
none yet, and a newcomer, predicts with the server's model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.func import functional_call, grad

import flbench as fl

MEMORY = "pfedme.theta"
CHUNK = 256  # samples per pass where the gradient of all samples is needed
Weights = dict[str, Tensor]


class Envelope(fl.ClientModule):
    """Makes gradient steps on the Moreau envelope of the loss."""

    method: PFedMe

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """A loss with the value of the envelope and its gradient lambda (w - theta)."""
        x, y = batch
        w, lam = self.weights(), self.method.lam
        u = self.inner(w, x, y)
        flat = torch.cat([part.reshape(-1) for part in u.values()])
        value = self.value(moved(w, u), x, y).detach() + lam / 2 * flat.square().sum()
        if next(self.net.buffers(), None) is not None:
            super().training_step(batch, batch_idx)  # only to update BatchNorm statistics
        slope = -lam * flat @ self.flat()
        return slope - slope.detach() + value

    def weights(self) -> Weights:
        """w: the trained parameters of the network, without gradients."""
        named = self.net.named_parameters()
        return {name: p.detach() for name, p in named if p.requires_grad}

    def inner(self, w: Weights, x: Tensor, y: Tensor) -> Weights:
        """The displacement u = theta - w after K steps on some samples."""
        rate = self.method.inner_lr or self.local.lr
        u = {name: torch.zeros_like(value) for name, value in w.items()}
        for _ in range(self.method.k):
            theta = moved(w, u)
            slope: Weights = {}
            for a, b in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
                part, share = grad(self.value)(theta, a, b), len(b) / len(y)
                slope = {n: share * part[n].detach() + slope.get(n, 0) for n in u}
            u = {n: u[n] - rate * (slope[n] + self.method.lam * u[n]) for n in u}
        return u

    def value(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        """Loss of other weights; statistics are those of the batch, and not kept."""
        kept = {name: buffer.clone() for name, buffer in self.net.named_buffers()}
        logits = functional_call(self.net, {**weights, **kept}, (x,))
        return self.batch_loss(fl.Batch(self, x, y, logits))


def moved(weights: Weights, by: Weights) -> Weights:
    """Sums, by name."""
    return {name: value + by[name] for name, value in weights.items()}


@dataclass(frozen=True)
class PFedMe:
    """Clients train the Moreau envelope of their loss, and predict with its inner minimum."""

    paper: ClassVar[str] = "T. Dinh, Tran, Nguyen, NeurIPS 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "personalised"
    effort: ClassVar[tuple[str, ...]] = ("k",)

    k: Annotated[int, Ge(1), "K, inner steps"] = 5
    lam: Annotated[float, Gt(0), "lambda, weight of the distance between theta and w"] = 15.0
    inner_lr: Annotated[
        Annotated[float, Gt(0)] | None, "eta_p, of the inner steps; none = the suite's lr"
    ] = None
    beta: Annotated[float, Gt(0), "weight of the clients' mean at the server"] = 1.0
    weighting: Annotated[fl.Weighting, "of the clients in this mean"] = "uniform"

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module that trains the envelope."""
        module = Envelope(net, ctx.local)
        module.method = self
        return module

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """No client has a personal model."""
        nothing = torch.full_like(ctx.initial, torch.nan)
        return fl.Setup(memory={MEMORY: fl.Memory(ctx.repeated(nothing), "client")})

    @fl.hookimpl
    def report(self, stage: fl.Stage) -> fl.Reporter | None:
        """Clients keep theta_i, from all of their training samples."""

        def personal(module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
            assert isinstance(module, Envelope), "no other method may bring a module"
            module.eval()
            row, u = module.row(), module.inner(module.weights(), x, y)
            flat = torch.cat([part.reshape(-1) for part in u.values()])
            row[: len(flat)] += flat
            return fl.Report(kept={MEMORY: row})

        return personal if stage.aggregates else None

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The mean of the clients' w_i, mixed with the last w."""
        counters, size = ctx.layout.counters, ctx.layout.parameters
        rows = fl.member_mean(state.models, upload, membership, counters, self.weighting)
        if self.beta != 1:
            before = state.models[:, :size]
            rows[:, :size] = before + self.beta * (rows[:, :size] - before)
        return fl.Models(rows)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """theta_i, or the server's model where there is none; that model is tested as `global`."""
        if ctx.joining:
            return None
        home = state.membership.home[clients]
        if (home < 0).any():
            raise fl.Undefined("a client in no group has no model")
        theta, common = state.memory[MEMORY][clients], state.models[home.clamp(min=0)]
        rows = torch.where(theta.isnan(), common, theta)
        return fl.Personal(params=rows, others={"global": fl.Personal(row=home)})
