"""FedALA: each client mixes the last layers of the global model and of its own, scalar by scalar.

Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: adaptive local aggregation for personalized
federated learning", AAAI 2023, Algorithm 1.

    start   u_i = W_i * w + (1 - W_i) * w_i  in the last p layers,  u_i = w  in the others
    W_i     <- clip(W_i - eta grad_u L(u_i) * (w - w_i), 0, 1)  on a share s of the client's samples
    local   w_i <- local training from u_i;  w <- sum n_i w_i / sum n_i

w is the downloaded model, w_i the client's own after its last training. All W_i start at 1, which
is FedAvg. When a client uses W_i for the first time, in its second round, it is trained until the
losses of the last `WINDOW` epochs have a deviation below the threshold (as in the authors' code);
later for one epoch. Clients are tested with u_i, of the latest w and the client's last W_i; w_i is
tested as `local`. A client without W_i, and a newcomer, has the global model.

Departures: W_i is not learned for a test, but in rounds in which the client trains; BatchNorm uses
its statistics while W_i is learned; the loss of these steps is cross-entropy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

import flbench as fl

LOCAL, WEIGHTS = "fedala.local", "fedala.weights"
WINDOW, MOST = 10, 100
"""Epochs whose losses are compared, and most epochs of the first use."""


@dataclass(frozen=True)
class FedALA:
    """Each client mixes the last layers of the global model and of its own, scalar by scalar."""

    paper: ClassVar[str] = "Zhang, Hua, Wang, Song, Xue, Ma, Guan, AAAI 2023"
    year: ClassVar[int] = 2023
    kind: ClassVar[str] = "personalised"
    effort: ClassVar[tuple[str, ...]] = ("share", "threshold")

    layers: Annotated[int, Ge(1), "p, last layers that are mixed"] = 1
    share: Annotated[float, Gt(0), Le(1), "s, of the samples, from which W_i is learned"] = 0.8
    eta: Annotated[float, Ge(0), "learning rate of W_i; 0 = W_i stays 1"] = 1.0
    threshold: Annotated[float, Ge(0), "deviation of losses at which the first use ends"] = 0.1

    def top(self, ctx: fl.Context) -> Tensor:
        """Places of the scalars that are mixed, shape (p,), int64."""
        layers = ctx.layout.layers
        last = layers[len(layers) - min(self.layers, len(layers)) :].any(dim=0)
        return (last & ctx.layout.trainable).nonzero()[:, 0]

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """No client has a model of its own, or weights."""
        nothing = torch.full_like(ctx.initial, torch.nan)
        memory = {
            LOCAL: fl.Memory(ctx.repeated(nothing), "client"),
            WEIGHTS: fl.Memory(ctx.repeated(nothing[: len(self.top(ctx))]), "client"),
        }
        return fl.Setup(memory=memory)

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, phase: fl.Phase, ctx: fl.Context
    ) -> fl.Scores | None:
        """Clients learn W_i; the score of a model is the mean W_i, NaN before the second round."""
        if phase == "after" or stage.kind != "train":
            return None
        ids, top, weights = stage.clients, self.top(ctx), state.memory[WEIGHTS].clone()
        home = state.membership.home[ids].clamp(min=0)
        values = torch.full((len(ids), len(state.models)), torch.nan, dtype=torch.float64)
        for place, (client, row) in enumerate(zip(ids.tolist(), home.tolist(), strict=True)):
            own = state.memory[LOCAL][client][top]
            if not own.isnan().any():
                w = self.learned(state.models[row], own, weights[client], client, ctx)
                weights[client], values[place, row] = w, float(w.double().mean())
        return fl.Scores(values, ids, "models", torch.arange(len(state.models)), {WEIGHTS: weights})

    def learned(
        self, common: Tensor, own: Tensor, w: Tensor, client: int, ctx: fl.Context
    ) -> Tensor:
        """W_i after one epoch, or, the first time, after as many as it takes, shape (p,).

        Args:
            common: the global model, shape (W,).
            own: the client's own last layers, shape (p,).
            w: the last W_i, shape (p,); NaN if there is none.
            client: its id.
            ctx: the run's context.
        """
        x, y = ctx.client_data(client)
        order = torch.as_tensor(ctx.rng("fedala", ctx.round, client=client).permutation(len(y)))
        batches = order[: max(1, round(self.share * len(y)))].split(ctx.local.batch_size)
        top, first, losses = self.top(ctx), bool(w.isnan().any()), list[float]()
        gap, w = common[top] - own, torch.ones_like(w) if first else w
        while not losses or (first and not self.settled(losses)):
            total = 0.0
            for batch in batches:
                row = common.clone()
                row[top] = w * common[top] + (1 - w) * own
                with torch.enable_grad():
                    row.requires_grad_()
                    loss = fl.cross_entropy(ctx.forward(row[None], x[batch])[0], y[batch])
                    slope = torch.autograd.grad(loss, row)[0][top]
                w = (w - self.eta * slope * gap).clamp(0, 1)
                total += float(loss.detach()) / len(batches)
            losses.append(total)
        return w

    def settled(self, losses: list[float]) -> bool:
        """Whether the last losses differ little, or there are too many."""
        last = torch.tensor(losses[-WINDOW:], dtype=torch.float64)
        still = len(losses) > WINDOW and float(last.std(correction=0)) < self.threshold
        return still or len(losses) >= MOST

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start | None:
        """The whole global model is sent; clients start from their mixtures."""
        if stage.kind != "train":
            return None
        return fl.Start(params=self.mixed(state, stage.clients, ctx)[:, None])

    def mixed(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> Tensor:
        """u_i of some clients, shape (n, W); the global model without W_i or w_i."""
        top = self.top(ctx)
        rows = state.models[state.membership.home[clients].clamp(min=0)].clone()
        w, own = state.memory[WEIGHTS][clients], state.memory[LOCAL][clients][:, top]
        mixed = w * rows[:, top] + (1 - w) * own
        rows[:, top] = torch.where(mixed.isnan(), rows[:, top], mixed)
        return rows

    @fl.hookimpl
    def report(self, stage: fl.Stage) -> fl.Reporter | None:
        """Clients keep the model that they trained."""
        if not stage.aggregates:
            return None
        return lambda module, x, y: fl.Report(kept={LOCAL: module.row()})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The client's mixture; its own model is tested as `local`, the global one as `global`."""
        home = state.membership.home[clients]
        own, common = state.memory[LOCAL][clients], state.models[home.clamp(min=0)]
        others = {
            "local": fl.Personal(params=torch.where(own.isnan(), common, own)),
            "global": fl.Personal(row=home),
        }
        return fl.Personal(params=self.mixed(state, clients, ctx), others=others)
