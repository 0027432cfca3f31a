"""FedAMP: every client stays near a mixture of the models that are similar to its own.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, "Personalized cross-silo federated learning on non-IID
data", AAAI 2021; weights as in its HeurFedAMP.

    u_i      = xi_ii w_i + sum_{j != i} xi_ij w_j
    xi_ij    = (1 - xi_ii) softmax_j(sigma cos(w_i, w_j))
    client   minimises f_i(w) + lam / 2 ||w - u_i||^2, starting from u_i

Departures: lam is the paper's lambda / alpha_k; a client that does not act keeps its last model,
which the others continue to mix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FedAMP:
    """Every client stays near a mixture of the models that are similar to its own."""

    paper: ClassVar[str] = "Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, AAAI 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"local-only": {"own": 1.0, "lam": 0.0}}
    )

    own: Annotated[float, Ge(0), Le(1), "xi_ii, weight of the own model in the mixture"] = 0.5
    sigma: Annotated[float, Ge(0), "scale of the cosine in the softmax; 0 = uniform"] = 10.0
    lam: Annotated[float, Ge(0), "weight of the distance from the mixture"] = 0.1

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client."""
        if ctx.clients < 2:
            raise fl.Undefined("a mixture of others' models needs at least two clients")
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Every acting client downloads its mixture u_i."""
        weights = self.attention(state.models[:, : ctx.layout.parameters])[stage.clients]
        own = state.models[stage.clients]
        mixed = fl.weighted_mean(own, state.models, weights, ctx.layout.counters)
        return fl.Start(params=mixed[:, None])

    def attention(self, models: Tensor) -> Tensor:
        """xi, shape (N, N), float64: row i mixes u_i."""
        itself = torch.eye(len(models), dtype=torch.bool)
        similarity = self.sigma * fl.similarity.cosine(models).cpu().double()
        others = similarity.masked_fill(itself, -torch.inf).softmax(dim=1)
        return torch.where(itself, self.own, (1 - self.own) * others)

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], Tensor]:
        """Half lam times the squared distance from u_i."""

        def term(module: fl.ClientModule) -> Tensor:
            w = module.flat()
            return self.lam / 2 * (w - module.start[: len(w)]).square().sum()

        return term

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload) -> fl.Models:
        """Every client's row becomes its trained model; nothing is averaged."""
        rows = state.models.clone()
        rows[upload.ids] = upload.selected()
        return fl.Models(rows)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer takes the model with the least loss on its validation samples."""
        if not ctx.joining:
            return None
        return fl.Personal(row=ctx.evaluate(state.models, clients).argmin(dim=1))
