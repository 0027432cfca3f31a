"""IFCA: K models; every client trains the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated learning", NeurIPS
2020.

    a(i) = argmin_k f_i(w_k), computed in every round by every client that takes part
    w_k <- mean of the cohort's models with a(i) = k; without any, w_k is kept

The first model has the common initial weights, the others have different initial weights: with K
equal models all clients would choose the first in every round. `balanced` draws them again, as the
authors do, until each model is chosen by its share of the clients; `init=heads` keeps a common
body, draws new heads and trains K random groups for an epoch first. With `weighting=uniform` a
client says that it has one sample. Departure: sample-weighted means (the paper's are uniform).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

HEADS = "ifca-heads"
TRIES = 20


@dataclass(frozen=True)
class IFCA:
    """Several models; every client trains the one with the least loss on its data."""

    paper: ClassVar[str] = "Ghosh, Chung, Yin, Ramchandran, NeurIPS 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {"flis": {"k": 2}, "ifca": {"k": 4, "balanced": True}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedavg": {"k": 1}}, fails={"every-hook-answers": "plan acts with init=heads only"}
    )

    k: Annotated[int, Ge(1), "K, number of models"] = 2
    init: Annotated[Literal["fresh", "heads"], "K initial networks, or heads on one body"] = "fresh"
    balanced: Annotated[bool, "draw again, up to 20 times, until each model has its share"] = False
    split: Annotated[Literal["train", "validation"], "whose loss decides"] = "train"
    weighting: Annotated[fl.Weighting, "of the clients in a model's mean"] = "samples"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """K different models; all clients start with the first."""
        least = max(0.4, 1 - 0.15 * self.k) / self.k  # the authors': .35 of two, .1 of four
        for attempt in range(TRIES):
            models = self.draw(attempt, ctx)
            if not self.balanced or self.shares(models, ctx).min() >= least:
                break
        else:
            ctx.warn(f"ifca: no balanced start in {TRIES} tries")
        return fl.Setup(models=models)

    def draw(self, attempt: int, ctx: fl.Context) -> Tensor:
        """One set of initial models, shape (K, W)."""
        first = attempt * self.k
        fresh = [ctx.fresh_initial(first + i) if first + i else ctx.initial for i in range(self.k)]
        models = torch.stack(fresh)
        if self.init == "heads":
            models[:, ctx.layout.body] = ctx.initial[ctx.layout.body]
        return models

    def shares(self, models: Tensor, ctx: fl.Context) -> Tensor:
        """Share of the clients that choose each model, shape (K,)."""
        chosen = ctx.evaluate(models, ctx.everybody, self.split).argmin(dim=1)
        return torch.bincount(chosen, minlength=self.k) / ctx.clients

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage] | None:
        """With `init=heads`, K random groups train for an epoch before the first round."""
        if self.init != "heads" or ctx.round != 1:
            return None
        heads = fl.Stage("train", ctx.everybody, 1, name=HEADS)
        return heads, fl.Stage("train", ctx.cohort, ctx.local.epochs)

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, phase: fl.Phase, ctx: fl.Context
    ) -> fl.Scores | None:
        """The negated loss of every model on every acting client."""
        if phase == "after" or stage.label == HEADS:
            return None
        ctx.send_models(stage.clients, state.models)
        ctx.send("up", stage.clients, "cluster", 1)
        losses = ctx.evaluate(state.models, stage.clients, self.split)
        return fl.Scores(-losses, stage.clients, "models", torch.arange(self.k))

    @fl.hookimpl
    def cluster(
        self,
        state: fl.State,
        stage: fl.Stage,
        phase: fl.Phase,
        scores: fl.Scores | None,
        ctx: fl.Context,
    ) -> fl.Membership | None:
        """Every acting client chooses the best model; ties give the first."""
        if stage.label == HEADS and phase == "before":
            shuffled = torch.as_tensor(ctx.rng("ifca-heads").permutation(ctx.clients))
            return fl.Membership(shuffled % self.k)
        if scores is None:
            return None
        home = state.membership.home.clone()
        home[scores.row_ids] = scores.values.argmax(dim=1)
        return fl.Membership(home)

    @fl.hookimpl
    def encode(self) -> Callable[[fl.Message], fl.Message] | None:
        """For uniform means, every client counts as one sample; the model is sent as it is."""
        if self.weighting == "samples":
            return None
        return lambda message: replace(message, samples=1)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """All clients choose the best model."""
        return fl.Personal(row=ctx.evaluate(state.models, clients, self.split).argmin(dim=1))

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer chooses the best model, too."""
        return self.personalise(state, clients, ctx)
