"""DC-PFL: finer groups while they lower the training loss; similar layers are sent rarely.

Liu, Huang, He, Cao, "Dynamic clustering for personalized federated learning on heterogeneous edge
devices", arXiv 2508.01580 (2025).

    S(x) = (x - min x) / (max x - min x);  D = mean over rounds 1..t_start of mean |S(w_i) - S(w_j)|
    groups(g): average linkage of D, cut at g times the height of its last merge; g = 1 at first
    r = (1 + l'^2)^1.5 / l'' is the radius of the curve of the loss l, averaged over `window` rounds
    when r is smaller than in the t_obs rounds after it, a trial of g - step: every client trains
    the model of its old and of its new group, and the grouping with the lower mean loss is kept;
    a refused trial is repeated after t_sp rounds
    layer l of group g is low if its discrepancy D_gl < threshold D_g; low layers are sent every
    alpha-th round, the others every round; a client alone in its group sends and receives nothing

Round t starts from the layers averaged after round t - 1. The first r needs window + 2 losses, from
the start and again after every change of the groups. Minima of r in rounds 1..t_start do not start
a trial, also later, although these rounds' losses count. Departures: g is lowered (the text says
the step is added), to the next of 1, 1 - step, 1 - 2 step, ..., 0 that changes the groups; exactly
`window` terms; r is infinite where l'' <= 0; trials are made in rounds that start from complete
models; a refused trial is repeated as it was; tau counts local epochs of a round, as in the
experiments, not rounds; all clients take part in every round. A client
that is missing from a round keeps its model, which counts in the discrepancy; layers of a group of
which nobody came are as low as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

import flbench as fl

Share = Annotated[float, Gt(0), Le(1)] | None
TRIALS = fl.only_with("fixed", None)


@dataclass(frozen=True)
class DCPFL:
    """Finer groups while they lower the loss; similar layers are sent rarely."""

    paper: ClassVar[str] = "Liu, Huang, He, Cao, arXiv 2508.01580"
    year: ClassVar[int] = 2025
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {"dc-pfl": {}}
    effort: ClassVar[tuple[str, ...]] = ("tau",)
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"tau": 1, "window": 1, "t_start": 1, "t_obs": 1, "t_sp": 1, "threshold": 1.0},
        rounds=7,
    )

    tau: Annotated[int, Ge(1), "local epochs of a round"] = 5
    alpha: Annotated[int, Ge(1), "low layers are sent every alpha-th round"] = 3
    lambda_step: Annotated[
        float, Ge(0), Le(1), TRIALS, "decrease of g in a trial; 0 = no trials"
    ] = 0.2
    t_start: Annotated[int, Ge(1), "first rounds, in one group; they measure the discrepancy"] = 5
    t_obs: Annotated[int, Ge(1), TRIALS, "rounds a smallest radius must hold"] = 3
    t_sp: Annotated[int, Ge(1), TRIALS, "rounds after which a refused trial is repeated"] = 6
    window: Annotated[int, Ge(1), "s, rounds the loss is averaged over"] = 5
    threshold: Annotated[float, Ge(0), "a layer is low below this share of D_g"] = 0.1
    scale: Annotated[Literal["model", "tensor"], "unit that S scales"] = "model"
    trial_metric: Annotated[Literal["train", "val"], TRIALS, "whose loss decides a trial"] = "train"
    fixed: Annotated[Share, "g from t_start on, without trials"] = None

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model per client, all in one group; g = 1."""
        n, layers = ctx.clients, len(ctx.layout.layers)
        if n < 2:
            raise fl.Undefined("groups need at least two clients")
        steps = ceil(1 / exact(self.lambda_step)) if self.lambda_step and self.fixed is None else 0
        none = torch.zeros(n, layers, dtype=torch.bool)
        memory = {
            "dc-pfl.discrepancy": fl.Memory(torch.zeros(n, n, dtype=torch.float64), "client"),
            "dc-pfl.low": fl.Memory(none, "client"),
            "dc-pfl.crossed": fl.Memory(~none, "client"),  # averaged layers to be sent
            "dc-pfl.last": fl.Memory(ctx.initial.expand(n, -1).clone(), "client"),
            "dc-pfl.losses": fl.Memory(torch.full((ctx.rounds,), torch.nan).double()),
            "dc-pfl.step": fl.Memory(torch.tensor([steps, steps])),  # steps of g: left, in all
            "dc-pfl.changed": fl.Memory(torch.tensor(0)),  # round of the last change of groups
            "dc-pfl.trial": fl.Memory(torch.tensor(0)),  # round of the next trial; 0 = none
        }
        own = fl.one_model_per_client(ctx, memory)
        return fl.Setup(own.models, fl.Membership(ctx.everybody, torch.ones(n, n)), own.memory)

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> Sequence[fl.Stage]:
        """All clients train; a trial has the batches of the round that it replaces."""
        kind: fl.Kind = "trial" if int(state.memory["dc-pfl.trial"]) == ctx.round else "train"
        return (fl.Stage(kind, ctx.everybody, self.tau, name="train", losses=True),)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Averaged layers are sent, due layers return; a trial sends two models, returns one."""
        ctx.send("up", stage.clients, "loss", 2 if stage.kind == "trial" else 1)
        ids = stage.clients
        crossed = state.memory["dc-pfl.crossed"][ids]  # all layers in a trial
        averaged = ctx.layout.of_layers(crossed)
        if stage.kind != "trial":
            due = ctx.layout.of_layers(self.due(state, ctx)[ids])
            return fl.Start(sent_mask=averaged, returned_mask=due)
        finer = fl.same_group(self.groups(state, self.g(state, self.finer(state)))).double()
        last = state.memory["dc-pfl.last"]
        new = fl.weighted_mean(last, last, finer, ctx.layout.counters)
        return fl.Start(torch.stack([state.models, new], dim=1)[ids], sent_mask=averaged)

    def due(self, state: fl.State, ctx: fl.Context, adopted: bool = False) -> Tensor:
        """Layers that are averaged after this round, shape (N, L), bool: all, or those not low."""
        alone = state.membership.shares(ctx.everybody, ctx.clients).sum(dim=1) == 1
        return (adopted | self.complete(ctx) | ~state.memory["dc-pfl.low"]) & ~alone[:, None]

    def groups(self, state: fl.State, g: float) -> Tensor:
        """Group of each client at g, shape (N,): the dendrogram cut at g times its height."""
        merges = fl.clustering.dendrogram(state.memory["dc-pfl.discrepancy"].numpy())
        return torch.as_tensor(fl.clustering.cut(merges, g * merges[-1, 2]))

    def g(self, state: fl.State, left: int) -> float:
        """The grid 1, 1 - lambda_step, 1 - 2 lambda_step, ..., 0, by the number of steps left."""
        taken = int(state.memory["dc-pfl.step"][1]) - left
        return float(max(Fraction(0), 1 - taken * exact(self.lambda_step)))

    def finer(self, state: fl.State) -> int:
        """Steps left at the lowest g that gives the next finer groups; 0 if there are none."""
        left = int(state.memory["dc-pfl.step"][0]) - 1
        finer = self.groups(state, self.g(state, left))
        while left > 0 and self.groups(state, self.g(state, left - 1)).equal(finer):
            left -= 1
        return left

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """Negated discrepancy of the models over the first rounds; the loss of every round."""
        if upload is None:
            return None
        losses, ids = state.memory["dc-pfl.losses"].clone(), upload.ids
        losses[ctx.round - 1] = upload.loss_start[:, 0].mean()
        kept = {"dc-pfl.losses": losses}
        if stage.kind == "trial":
            after = upload.loss_end
            if self.trial_metric == "val":
                pairs = zip(upload.params, ids, strict=True)
                after = torch.cat([ctx.evaluate(both, client[None]) for both, client in pairs])
            return fl.Scores(-after, ids, "models", torch.arange(2), kept)
        summed = state.memory["dc-pfl.discrepancy"]
        if ctx.round <= self.t_start:
            models = with_uploads(state.models, ids, upload.selected())
            summed = summed - self.neg_discrepancy(models, ctx) / self.t_start
            kept["dc-pfl.discrepancy"] = summed
        return fl.Scores(-summed, ctx.everybody, "clients", ctx.everybody, kept)

    def neg_discrepancy(self, models: Tensor, ctx: fl.Context) -> Tensor:
        """Negated discrepancy of all pairs of models, shape (n, n)."""
        tensors = [s.stop - s.start for s in ctx.layout.slots if s.kind == "parameter"]
        parts = tensors if self.scale == "tensor" else None
        return fl.similarity.neg_discrepancy(models[:, : ctx.layout.parameters], parts).cpu()

    @fl.hookimpl
    def cluster(
        self, state: fl.State, stage: fl.Stage, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """Decide a trial, or start one where the loss curve bends."""
        if scores is None or ctx.round < self.t_start:
            return None
        weights, updates = state.membership.weights, dict[str, Any]()
        step, steps = state.memory["dc-pfl.step"].tolist()
        losses = state.memory["dc-pfl.losses"][int(state.memory["dc-pfl.changed"]) : ctx.round]
        losses = losses[~losses.isnan()]
        trial_planned = int(state.memory["dc-pfl.trial"]) >= ctx.round
        may_try = step and not trial_planned and ctx.round - self.t_obs > self.t_start
        radius = fl.elbow.radii(losses, self.window)[-1:].tolist()
        ctx.note("dc-pfl.radius", [r for r in radius if r < torch.inf])
        if ctx.round == self.t_start:
            counts = {str(i / 5): int(self.groups(state, i / 5).max()) + 1 for i in range(6)}
            ctx.note("dc-pfl.groups_by_g", counts)
        elif stage.kind == "trial":
            updates = {"trial": self.next_trial(ctx.round + self.t_sp)}
            old, new = scores.values.mean(dim=0).tolist()
            if new > old:
                left = self.finer(state)
                weights = fl.same_group(self.groups(state, self.g(state, left)))
                updates = {"step": [left, steps], "changed": ctx.round, "trial": 0}
            ctx.note("dc-pfl.trial", [-old, -new])
        elif may_try and fl.elbow.turned(losses, self.window, self.t_obs):
            updates = {"trial": self.next_trial(ctx.round + 1)}
        if self.fixed is not None:
            weights = fl.same_group(self.groups(state, self.fixed))
        memory = {f"dc-pfl.{name}": torch.tensor(value) for name, value in updates.items()}
        return fl.Membership(ctx.everybody, weights, memory=memory)

    def complete(self, ctx: fl.Context) -> bool:
        """Whether all layers are averaged after this round."""
        return ctx.round <= self.t_start or (ctx.round + 1) % self.alpha == 0

    def next_trial(self, round_: int) -> int:
        """The first round, from a given one on, that starts with all layers averaged."""
        return -(-round_ // self.alpha) * self.alpha

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """Average the layers that are due uniformly within groups; the others stay local."""
        adopted = int(state.memory["dc-pfl.changed"]) == ctx.round
        came = upload.params[:, int(adopted)]
        trained = with_uploads(state.models, upload.ids, came)
        shares = membership.shares(upload.ids, ctx.clients)
        mean = fl.weighted_mean(trained, came, shares, ctx.layout.counters)
        due = self.due(state, ctx, adopted)
        crossed = due | state.memory["dc-pfl.crossed"]  # whoever is missing gets both next time
        crossed[upload.ids] = due[upload.ids]
        memory = {"dc-pfl.crossed": crossed}
        if adopted or self.complete(ctx):
            memory["dc-pfl.last"] = trained
            if ctx.round >= self.t_start:
                layers = ctx.layout.layers & ctx.layout.trainable
                of_client = fl.similarity.layer_discrepancy(came, mean[upload.ids], layers).cpu()
                of_group = (shares / shares.sum(dim=1, keepdim=True)) @ of_client  # D_gl
                low = of_group < self.threshold * of_group.mean(dim=1, keepdim=True)
                unknown = ~(shares > 0).any(dim=1, keepdim=True)
                memory["dc-pfl.low"] = torch.where(unknown, state.memory["dc-pfl.low"], low)
        averaged = ctx.layout.of_layers(due).to(mean.device)
        return fl.Models(torch.where(averaged, mean, trained), memory)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer trains the mean once and joins the nearest group."""
        trained = ctx.train(state.models.double().mean(dim=0).float(), clients)
        scores = self.neg_discrepancy(torch.cat([state.models, trained]), ctx)
        scores = scores[ctx.clients :, : ctx.clients]
        labels = state.membership.labels()[: ctx.clients]
        shares = (fl.similarity.best_group(scores, labels)[:, None] == labels).double()
        return fl.Personal(params=fl.weighted_mean(trained, state.models, shares))


def with_uploads(models: Tensor, ids: Tensor, uploads: Tensor) -> Tensor:
    """The models of all clients, shape (N, W), where those that came replace the others."""
    return models.index_copy(0, ids.to(models.device), uploads)


def exact(value: float) -> Fraction:
    """A decimal number as it is written, so that sums of it do not drift."""
    return Fraction(str(value))


@dataclass(frozen=True)
class NoLA(DCPFL):
    """Ablation of DC-PFL: every layer is sent in every round."""

    alpha: Annotated[int, Ge(1), "low layers are sent every alpha-th round"] = 1


@dataclass(frozen=True)
class NoDC(DCPFL):
    """Ablation of DC-PFL: the groups of g = 0.8 from round t_start on, without trials."""

    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"tau": 1, "t_start": 1, "threshold": 1.0}, rounds=7
    )

    fixed: Annotated[Share, "g from t_start on, without trials"] = 0.8
