"""Power-of-choice: of d candidates, the clients with the largest loss train.

Cho, Wang, Joshi, "Towards understanding biased client selection in federated learning", AISTATS
2022, Algorithm 1. Candidates are drawn without replacement, in proportion to their samples; each
gets its model and sends one loss. The mean over the chosen is uniform, because samples count in the
draw: a client says that it has one, whatever method averages (`weighting=samples`: as that method
says). Stages of a method in which not the cohort acts have their own clients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

Stages = Sequence[fl.Stage]


@dataclass(frozen=True)
class PowerOfChoice:
    """Of d candidates, the clients with the largest loss train."""

    paper: ClassVar[str] = "Cho, Wang, Joshi, AISTATS 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "server"

    d: Annotated[int, Ge(0), "candidates; 0 = twice as many as train"] = 0
    weighting: Annotated[fl.Weighting, "of the chosen in the mean"] = "uniform"

    @fl.hookimpl(wrapper=True)
    def plan(self, state: fl.State, ctx: fl.Context) -> Generator[None, Stages, Stages]:
        """Where the cohort would train, its place is taken by the chosen clients."""
        stages = yield
        if len(ctx.cohort) == ctx.clients:
            return stages
        chosen = self.chosen(state, ctx)
        return [
            replace(stage, clients=chosen) if torch.equal(stage.clients, ctx.cohort) else stage
            for stage in stages
        ]

    @fl.hookimpl
    def encode(self) -> Callable[[fl.Message], fl.Message] | None:
        """Every client counts as one sample; the model is sent as it is."""
        if self.weighting == "samples":
            return None
        return lambda message: replace(message, samples=1)

    def chosen(self, state: fl.State, ctx: fl.Context) -> Tensor:
        """Ids of the candidates with the largest losses, ascending, as many as the cohort has."""
        count = min(ctx.clients, max(self.d or 2 * len(ctx.cohort), len(ctx.cohort)))
        shares = (ctx.samples / ctx.samples.sum()).double().numpy()
        generator = ctx.rng("power-of-choice", ctx.round)
        drawn = generator.choice(ctx.clients, count, replace=False, p=shares / shares.sum())
        candidates = torch.as_tensor(drawn).sort().values
        home = state.membership.home[candidates].clamp(min=0)
        losses = torch.empty(count, dtype=torch.float64)
        for row in home.unique().tolist():
            own = (home == row).nonzero()[:, 0]
            model = state.models[torch.tensor([row])]
            ctx.send_models(candidates[own], model)
            losses[own] = ctx.evaluate(model, candidates[own], "train")[:, 0]
        ctx.send("up", candidates, "loss", 1)
        return candidates[losses.topk(len(ctx.cohort)).indices].sort().values
