"""FedGen: a generator of features, learnt from the clients' heads, gives clients what they lack.

Zhu, Hong, Zhou, "Data-free knowledge distillation for heterogeneous federated learning", ICML 2021,
Algorithm 1.

    server    min_w E CE(mean_k h_k(G_w(y, e)), y)        y ~ p, e ~ N(0, I); h_k: the heads
              p: labels of the round's clients, from the counts that they send
    client    CE(f(x), y) + weight E CE(h(G_w(y, e)), y)

h is a linear head with biases, G a perceptron with one hidden layer. Clients get w and p with the
model; in the first round there is no generator yet. Departures: a client draws (y, e) once per
round, not anew in each step; no batch normalisation in G and no term for its diversity (as in the
authors' code, which also weights by alpha and beta that fall from round to round). Newcomers have
the common model. Beside a method whose clients keep the heads that they train, it is undefined.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

import flbench as fl

W, P = "fedgen.w", "fedgen.p"
Starts = Sequence[fl.Start]


class Features(nn.Module):
    """Features of one-hot labels and noise: (b, C), (b, e) -> (b, d)."""

    def __init__(self, classes: int, noise: int, hidden: int, d: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(classes + noise, hidden), nn.Linear(hidden, d)

    def forward(self, y: Tensor, e: Tensor) -> Tensor:
        """The features."""
        made: Tensor = self.out(self.hidden(torch.cat([y, e], dim=-1)).relu())
        return made


@dataclass(frozen=True)
class FedGen:
    """Clients also learn from features that the server's generator makes for each label."""

    paper: ClassVar[str] = "Zhu, Hong, Zhou, ICML 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "global"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"weight": 0.0}})

    weight: Annotated[float, Ge(0), "of the loss on generated features; 0 = FedAvg"] = 1.0
    batch: Annotated[int, Ge(1), "generated features of a client, and of a step of the server"] = 32
    steps: Annotated[int, Ge(0), "gradient steps of the generator per round"] = 50
    lr: Annotated[float, Gt(0), "alpha, learning rate of the generator (Adam)"] = 0.01
    noise: Annotated[int, Ge(1), "entries of e"] = 8
    hidden: Annotated[int, Ge(1), "width of the generator"] = 32

    def generator(self, ctx: fl.Context) -> fl.FlatNetwork:
        """The generator G, from a label and noise to what enters the head."""
        shapes = [slot.shape for slot in ctx.layout.slots if slot.head]
        d = shapes[0][-1] if shapes else 0
        if shapes != [(ctx.classes, d), (ctx.classes,)]:
            raise fl.Undefined("the network has no linear head with biases to make features for")
        return fl.FlatNetwork(lambda: Features(ctx.classes, self.noise, self.hidden, d))

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """What labels are drawn with, shape (b,), from 0 to 1, and noise e, shape (b, noise)."""
        u, e = rng.random(self.batch), rng.standard_normal((self.batch, self.noise))
        return torch.as_tensor(u).float(), torch.as_tensor(e).float()

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """The generator, and the shares of the labels, not known yet."""
        w = self.generator(ctx).initial(ctx.rng("fedgen")).to(ctx.initial)
        p = torch.zeros(ctx.classes, device=w.device)
        return fl.Setup(memory={W: fl.Memory(w), P: fl.Memory(p)})

    @fl.hookimpl(wrapper=True)
    def dispatch(
        self, state: fl.State, stage: fl.Stage, ctx: fl.Context
    ) -> Generator[None, Starts, Starts]:
        """Send the generator and the shares; each client draws what it makes features of."""
        starts = yield
        w, p, ids = state.memory[W], state.memory[P], stage.clients
        if not stage.aggregates:
            return starts
        masks = [s.returned_mask for s in starts] + [s.sent_mask for s in starts]
        kept = ~next(mask for mask in masks if mask is not None)
        trained = next((s.trained_mask for s in starts if s.trained_mask is not None), True)
        if (kept & trained)[..., ctx.layout.head].any():
            raise fl.Undefined("it learns from heads, and clients of this method keep theirs")
        if not p.any():
            return starts
        rngs = [ctx.rng("fedgen", ctx.round, stage.label, client=i) for i in ids.tolist()]
        u, e = (torch.stack(drawn).to(w) for drawn in zip(*map(self.draw, rngs), strict=True))
        sent = {"generator": w.expand(len(ids), -1), "labels": p.expand(len(ids), -1)}
        return [fl.Start(extras=sent, client_memory={"fedgen.u": u, "fedgen.e": e}), *starts]

    @fl.hookimpl(wrapper=True)
    def batch_loss(self, ctx: fl.Context) -> Generator[None, fl.BatchLoss, fl.BatchLoss]:
        """Add the loss of the head on the generated features."""
        other, network, head = (yield), self.generator(ctx), ctx.layout.head_name or ""

        def loss(batch: fl.Batch) -> Tensor:
            module, received = batch.module, batch.module.received
            if "generator" not in received:
                return other(batch)
            y = drawn_labels(received["labels"], received["fedgen.u"])
            with torch.no_grad():
                z = network(received["generator"], y, received["fedgen.e"])
            return other(batch) + self.weight * F.cross_entropy(module.get_submodule(head)(z), y)

        return loss if self.weight else other

    @fl.hookimpl
    def report(self, ctx: fl.Context) -> fl.Reporter:
        """How many samples of each label a client has, shape (C,)."""
        return lambda module, x, y: fl.Report(
            {"label counts": torch.bincount(y, minlength=ctx.classes)}
        )

    @fl.hookimpl(wrapper=True)
    def aggregate(
        self, state: fl.State, upload: fl.Upload, ctx: fl.Context
    ) -> Generator[None, fl.Models, fl.Models]:
        """Train the generator on the heads of the uploads."""
        models = yield
        counts = upload.extras["label counts"].sum(dim=0)
        p, heads = counts / counts.sum(), upload.selected()[:, ctx.layout.head]
        w = self.trained(state.memory[W], heads, p, ctx)
        return replace(models, memory={**models.memory, W: w, P: p.to(w)})

    def trained(self, w: Tensor, heads: Tensor, p: Tensor, ctx: fl.Context) -> Tensor:
        """The generator after the server's steps, on heads of shape (n, h)."""
        network, rng = self.generator(ctx), ctx.rng("fedgen", ctx.round)
        batches = [self.draw(rng) for _ in range(self.steps)]

        def loss(point: Tensor, step: int) -> Tensor:
            u, e = (drawn.to(w) for drawn in batches[step])
            y = drawn_labels(p.to(w), u)
            return F.cross_entropy(ensemble(heads, network(point, y, e)), y)

        return fl.minimise(w, loss, self.steps, self.lr, "adam")


def drawn_labels(p: Tensor, u: Tensor) -> Tensor:
    """Labels with shares p, shape (C,), from numbers u between 0 and 1, (b,): one-hot, (b, C)."""
    y = (u[:, None] >= p.cumsum(dim=0)[:-1]).sum(dim=1)
    return (y[:, None] == torch.arange(len(p), device=p.device)).to(p)


def ensemble(heads: Tensor, z: Tensor) -> Tensor:
    """Mean of the logits that linear heads, (n, C d + C), give features, (b, d): shape (b, C)."""
    d = z.shape[1]
    classes = heads.shape[1] // (d + 1)
    weight, bias = heads.mean(dim=0).split((classes * d, classes))
    logits: Tensor = z @ weight.view(classes, d).T + bias
    return logits
