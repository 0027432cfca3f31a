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

CGPFL: Tang, Guo, Guo, "Personalized federated learning with contextualized generalization", IJCAI
2022, arXiv 2106.13044. The server has a model of each of K contexts; client i of context c(i)
trains as above around w_c(i), and then

    c   <- k-means of the cohort's w_i, which starts from the contexts' models
    w_k <- (1 - beta) w_k + beta mean of w_i over c(i) = k;  one without any is kept

K is `contexts`. CGPFL-Heur, which chooses K by a heuristic, is not implemented. Only the beginning
of the paper and summaries of it could be read, so these equations are not compared with its own.
Left open here: the first models and contexts, and values. Decided: all w_k start at w_0, and the
first k-means is a k-means++; a client without a context trains from w_0. A client that was never
sampled is evaluated with the model of the largest context, a newcomer with the one that is nearest
to its w_i, trained from w_0. The context's model is tested as `global`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
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
    def weights(self, upload: fl.Upload) -> Tensor:
        """By samples, or uniform."""
        return fl.client_weights(upload, self.weighting)

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The mean of the clients' w_i, mixed with the last w."""
        counters, size = ctx.layout.counters, ctx.layout.parameters
        rows = fl.member_mean(state.models, upload, membership, counters)
        if self.beta != 1:
            before = state.models[:, :size]
            rows[:, :size] = before + self.beta * (rows[:, :size] - before)
        return fl.Models(rows)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """theta_i, or the server's model where there is none; that model is tested as `global`."""
        home = state.membership.home[clients]
        if (home < 0).any():
            raise fl.Undefined("a client in no group has no model")
        theta, common = state.memory[MEMORY][clients], state.models[home.clamp(min=0)]
        rows = torch.where(theta.isnan(), common, theta)
        return fl.Personal(params=rows, others={"global": fl.Personal(row=home)})


@dataclass(frozen=True)
class CGPFL(PFedMe):
    """pFedMe around several models, one for each context that k-means finds."""

    paper: ClassVar[str] = "Tang, Guo, Guo, IJCAI 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "clustered"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"contexts": 2}, equals={"pfedme": {"contexts": 1}}
    )

    contexts: Annotated[int, Ge(1), "K, number of contexts"] = 5

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """K models, all w_0; clients have no context unless there is only one."""
        models = ctx.initial.expand(self.contexts, -1).clone()
        home = torch.full((ctx.clients,), 0 if self.contexts == 1 else -1)
        return replace(super().setup(ctx), models=models, membership=fl.Membership(home))

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """The model of the client's context, or w_0."""
        home = state.membership.home[stage.clients]
        params = state.models[home.clamp(min=0)].clone()
        params[home < 0] = ctx.initial
        return fl.Start(params=params[:, None])

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """Negated distance of every w_i from the centres of the k-means."""
        if upload is None or not stage.aggregates:
            return None
        size, uniform = ctx.layout.parameters, self.weighting == "uniform"
        trained, centres = upload.selected()[:, :size], state.models[:, :size]
        weights = (torch.ones_like(upload.samples) if uniform else upload.samples).double()
        if (state.membership.home < 0).all():
            rows, k = trained.double().cpu().numpy(), min(self.contexts, len(trained))
            labels = fl.clustering.k_means(rows, k, ctx.rng("cgpfl"), weights.numpy())
            shares = F.one_hot(torch.as_tensor(labels), self.contexts).T * weights
            centres = fl.weighted_mean(centres, trained, shares)
        values = fl.similarity.neg_distance(trained, fl.lloyd(centres, trained, weights)).cpu()
        return fl.Scores(values, upload.ids, "models", torch.arange(self.contexts))

    @fl.hookimpl
    def cluster(self, state: fl.State, scores: fl.Scores | None) -> fl.Membership | None:
        """The context of every acting client."""
        if scores is None:
            return None
        home = state.membership.home.clone()
        home[scores.row_ids] = scores.values.argmax(dim=1)
        return fl.Membership(home)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """theta_i, or the model of a context."""
        home = state.membership.home
        sizes = torch.bincount(home[home >= 0], minlength=self.contexts)
        settled = fl.Membership(torch.where(home < 0, sizes.argmax(), home))
        return super().personalise(replace(state, membership=settled), clients)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer trains once and takes the model of the nearest context."""
        size = ctx.layout.parameters
        trained = ctx.train(ctx.initial, clients)[:, :size]
        scores = fl.similarity.neg_distance(trained, state.models[:, :size])
        return fl.Personal(row=scores.cpu().argmax(dim=1))
