"""FedAMP: every client stays near a mixture of the models that are similar to its own.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, "Personalized cross-silo federated learning on non-IID
data", AAAI 2021, Algorithm 1.

    u_i      = xi_ii w_i + sum_{j != i} xi_ij w_j,  xi_ii = 1 - sum_{j != i} xi_ij
    xi_ij    = alpha_k A'(||w_i - w_j||^2),  A(x) = 1 - exp(-x / sigma)
    client   minimises f_i(w) + lam / 2 ||w - u_i||^2, starting from u_i

alpha_k = sigma (1 - own) / (N - 1), so that xi_ii is at least `own`; lam is lambda / alpha_k. Of
sigma the paper's value is for its networks: by default it is the mean squared distance of the
round's models. `weights=cosine` is the paper's HeurFedAMP, with sigma 10 by default:

    xi_ii    = own,  xi_ij = (1 - own) softmax_j(sigma cos(w_i, w_j))

Departure: a client that does not act keeps its last model, which the others continue to mix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

import flbench as fl

Scale = Annotated[float, Gt(0)] | None


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

    weights: Annotated[Literal["distance", "cosine"], "FedAMP or HeurFedAMP"] = "distance"
    own: Annotated[float, Ge(0), Le(1), "least weight of the own model in the mixture"] = 0.5
    sigma: Annotated[Scale, "scale of squared distances, or of the cosine; none = see above"] = None
    lam: Annotated[float, Ge(0), "weight of the distance from the mixture"] = 0.1

    @fl.hookimpl
    def needs(self, ctx: fl.Context) -> fl.Needs:
        """The models of all clients, compared with each other in every round."""
        n, size = ctx.clients, ctx.layout.parameters
        return fl.Needs(operations=ctx.rounds * n * n * size, scalars=n * size + 4 * n * n)

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
        count, itself = len(models), torch.eye(len(models), dtype=torch.bool)
        if self.weights == "cosine":
            similarity = (self.sigma or 10.0) * fl.similarity.cosine(models).cpu().double()
            others = similarity.masked_fill(itself, -torch.inf).softmax(dim=1)
        else:
            distance = fl.similarity.neg_distance(models, models).cpu().double().square()
            usual = distance[~itself].mean().clamp(min=1e-12)
            others = (-distance / (self.sigma or usual)).exp() / (count - 1)
            others = others.masked_fill(itself, 0.0)
        xi = (1 - self.own) * others
        return xi + (1 - xi.sum(dim=1)).clamp(min=0).diag()

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
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer takes the model with the least loss on its validation samples."""
        return fl.Personal(row=ctx.evaluate(state.models, clients).argmin(dim=1))
