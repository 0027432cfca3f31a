"""FedGen: a generator of features, learnt from the clients' heads, gives clients what they lack.

Zhu, Hong, Zhou, "Data-free knowledge distillation for heterogeneous federated learning", ICML 2021,
Algorithm 1.

    server    min_w E CE(mean_k h_k(G_w(y, e)), y)        y ~ p, e ~ N(0, I); h_k: the heads
              p: labels of the round's clients, from the counts that they send
    client    CE(f(x), y) + weight E CE(h(G_w(y, e)), y)

G is a perceptron with one hidden layer. Clients get w and p with the model; in the first round
there is no generator yet. Departures: a client draws (y, e) once per round, not anew in each step;
no batch normalisation in G and no term for its diversity (as in the authors' code, which also
weights by alpha and beta that fall from round to round). Newcomers have the common model.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

import flbench as fl

W, P = "fedgen.w", "fedgen.p"


class Features(nn.Module):
    """Features of labels and noise: (b,), (b, e) -> (b, d)."""

    def __init__(self, classes: int, noise: int, hidden: int, d: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(classes + noise, hidden), nn.Linear(hidden, d)

    def forward(self, y: Tensor, e: Tensor) -> Tensor:
        """The features."""
        classes = self.hidden.in_features - e.shape[-1]
        made: Tensor = self.out(self.hidden(torch.cat([F.one_hot(y, classes), e], dim=-1)).relu())
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
        weights = [slot.shape for slot in ctx.layout.slots if slot.head and len(slot.shape) == 2]
        if not weights:
            raise fl.Undefined("the network has no head, and features are what enters it")
        d = weights[0][1]
        return fl.FlatNetwork(lambda: Features(ctx.classes, self.noise, self.hidden, d))

    def draw(self, rng: np.random.Generator, p: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and noise: y, shape (b,), and e, shape (b, e)."""
        shares = (p / p.sum()).cpu().numpy()
        y = torch.as_tensor(rng.choice(len(p), self.batch, p=shares)).to(p.device)
        e = rng.standard_normal((self.batch, self.noise), dtype="float32")
        return y, torch.as_tensor(e).to(p.device)

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """The generator, and the shares of the labels, not known yet."""
        w = self.generator(ctx).initial(ctx.rng("fedgen")).to(ctx.initial)
        p = torch.zeros(ctx.classes, dtype=torch.float64, device=w.device)
        return fl.Setup(memory={W: fl.Memory(w), P: fl.Memory(p)})

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start | None:
        """Send the generator and the shares; each client makes features from them."""
        w, p, ids = state.memory[W], state.memory[P], stage.clients
        if not stage.aggregates or not p.any():
            return None
        network = self.generator(ctx)
        rngs = [ctx.rng("fedgen", ctx.round, stage.label, client=i) for i in ids.tolist()]
        y, e = (torch.stack(them) for them in zip(*(self.draw(r, p) for r in rngs), strict=True))
        with torch.no_grad():
            z = network(w, y, e)
        return fl.Start(
            extras={"generator": w.expand(len(ids), -1), "labels": p.expand(len(ids), -1)},
            client_memory={"z": z, "y": y},
        )

    @fl.hookimpl(wrapper=True)
    def batch_loss(self, ctx: fl.Context) -> Generator[None, fl.BatchLoss, fl.BatchLoss]:
        """Add the loss of the head on the generated features."""
        other = yield

        def loss(batch: fl.Batch) -> Tensor:
            received, head = batch.module.received, ctx.layout.head_name or ""
            if "z" not in received:
                return other(batch)
            logits = batch.module.get_submodule(head)(received["z"])
            return other(batch) + self.weight * F.cross_entropy(logits, received["y"])

        return loss if self.weight else other

    @fl.hookimpl
    def report(self, ctx: fl.Context) -> fl.Reporter:
        """How many samples of each label a client has, shape (C,)."""
        return lambda module, x, y: fl.Report({"counts": torch.bincount(y, minlength=ctx.classes)})

    @fl.hookimpl(wrapper=True)
    def aggregate(
        self, state: fl.State, upload: fl.Upload, ctx: fl.Context
    ) -> Generator[None, fl.Models, fl.Models]:
        """Train the generator on the heads of the uploads."""
        models = yield
        counts = upload.extras["counts"].double().sum(dim=0)
        p, heads = counts / counts.sum(), upload.selected()[:, ctx.layout.head]
        w = self.trained(state.memory[W], heads, p, ctx)
        return replace(models, memory={**models.memory, W: w, P: p})

    def trained(self, w: Tensor, heads: Tensor, p: Tensor, ctx: fl.Context) -> Tensor:
        """The generator after the server's steps, on heads of shape (n, h)."""
        network, rng = self.generator(ctx), ctx.rng("fedgen", ctx.round)
        batches = [self.draw(rng, p) for _ in range(self.steps)]

        def loss(point: Tensor, step: int) -> Tensor:
            y, e = batches[step]
            return F.cross_entropy(ensemble(heads, network(point, y, e), ctx.classes), y)

        return fl.minimise(w, loss, self.steps, self.lr, "adam")


def ensemble(heads: Tensor, z: Tensor, classes: int) -> Tensor:
    """Mean of the logits that heads, shape (n, h), give features, shape (b, d): shape (b, C)."""
    head = heads.mean(dim=0)  # of linear heads, which gives the same
    weight, bias = head[: classes * z.shape[1]], head[classes * z.shape[1] :]
    logits = z @ weight.view(classes, -1).T
    return logits + bias if len(bias) else logits
