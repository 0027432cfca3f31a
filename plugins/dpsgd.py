"""D-PSGD: no server; every client averages its model with those of its neighbours in a graph.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu, "Can decentralized algorithms outperform centralized
algorithms? A case study for decentralized parallel stochastic gradient descent", NeurIPS 2017,
Algorithm 1.

    x_i <- sum_j W_ij LocalTrain(x_j)
    W_ij = 1 / (1 + max(d_i, d_j)) for neighbours, W_ii = 1 - sum_j W_ij       (Metropolis)

W is symmetric and doubly stochastic; on a ring every weight is 1/3. The graph joins the clients of
a round's cohort: with everybody sampled it is the same in all rounds; otherwise it is another one
in each round, and clients that are not sampled keep their models. Places in the graph are drawn
once for each client. A torus of n clients has a rows and n / a columns, a the largest divisor of n
up to its root; a prime n gives a ring. With fewer clients than the degree asks for, all are joined.

Departures: local epochs instead of one step; the average is taken after training, not beside it
(the paper computes the gradient at x_i and adds it to the average). Every client is tested with its
own model. A newcomer has the mean of all models, the paper's result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class DPSGD:
    """Every client averages its model with those of its neighbours; there is no server."""

    paper: ClassVar[str] = "Lian, Zhang, Zhang, Hsieh, Zhang, Liu, NeurIPS 2017"
    year: ClassVar[int] = 2017
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"local-only": {"graph": "regular", "degree": 0}}
    )

    graph: Annotated[Literal["ring", "torus", "regular", "complete"], "who are neighbours"] = "ring"
    degree: Annotated[int, Ge(0), fl.only_with("graph", "regular"), "neighbours of a client"] = 4

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model per client."""
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """Clients have their models; nothing passes a server."""
        return fl.Start(sent_mask=ctx.layout.none_mask)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """Neighbours send each other their trained models and average them."""
        links, trained = self.links(upload.ids, ctx), upload.selected()
        ctx.send("peer", upload.ids, "model", links.sum(dim=1) * ctx.layout.width)
        rows = state.models.clone()
        rows[upload.ids] = fl.weighted_mean(
            trained, trained, metropolis(links), ctx.layout.counters
        )
        return fl.Models(rows)

    def links(self, ids: Tensor, ctx: fl.Context) -> Tensor:
        """Which clients are neighbours, shape (n, n), bool, of clients with ids (n,)."""
        drawn = [ctx.rng("place", client=i).random() for i in ids.tolist()]
        place = torch.tensor(drawn).argsort().argsort()
        graph = GRAPHS[self.graph](len(ids), self.degree, ctx.rng("graph", len(ids)))
        return graph[place[:, None], place]

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer has the mean of all models."""
        uniform = torch.ones(1, ctx.clients, dtype=torch.float64)
        mean = fl.weighted_mean(ctx.initial[None], state.models, uniform, ctx.layout.counters)
        return fl.Personal(params=mean.expand(len(clients), -1))


def metropolis(links: Tensor) -> Tensor:
    """The weights W of a graph: bool (n, n) -> (n, n), float64, symmetric, rows sum to 1."""
    degree = links.sum(dim=1).double()
    weights = links / (1 + torch.maximum(degree[:, None], degree))
    return weights + torch.diag(1 - weights.sum(dim=1))


def joined(n: int, pairs: Tensor) -> Tensor:
    """The graph of n places with some edges, shape (e, 2): shape (n, n), bool, without loops."""
    graph = torch.zeros(n, n, dtype=torch.bool)
    graph[pairs[:, 0], pairs[:, 1]] = graph[pairs[:, 1], pairs[:, 0]] = True
    return graph.fill_diagonal_(False)


def torus(n: int, *_: object) -> Tensor:
    """A grid whose ends are joined."""
    rows = max(a for a in range(1, isqrt(n) + 1) if n % a == 0)
    grid = torch.arange(n).view(rows, -1)
    beside = [torch.stack([grid, grid.roll(1, axis)], dim=-1).view(-1, 2) for axis in (0, 1)]
    return joined(n, torch.cat(beside))


def ring(n: int, *_: object) -> Tensor:
    """Everybody has two neighbours."""
    return joined(n, torch.stack([torch.arange(n), torch.arange(n).roll(1)], dim=1))


def complete(n: int, *_: object) -> Tensor:
    """Everybody is everybody's neighbour."""
    return torch.ones(n, n, dtype=torch.bool).fill_diagonal_(False)


def regular(n: int, degree: int, rng: np.random.Generator) -> Tensor:
    """A random graph in which everybody has `degree` neighbours (one less where both are odd).

    Edges of a circulant graph exchange their ends at random, wherever no edge becomes double.
    """
    degree = min(degree, n - 1)
    degree -= degree * n % 2
    steps = [*range(1, degree // 2 + 1), *[n // 2] * (degree % 2)]
    edges = {frozenset((i, (i + step) % n)) for step in steps for i in range(n)}
    listed = [sorted(edge) for edge in sorted(edges, key=sorted)]
    for _ in range(10 * len(listed)):
        one, other = rng.integers(len(listed), size=2)
        (a, b), (c, d) = listed[one], rng.permutation(listed[other]).tolist()
        swapped = {frozenset((a, d)), frozenset((c, b))}
        if len({a, b, c, d}) == 4 and not swapped & edges:
            edges -= {frozenset((a, b)), frozenset((c, d))}
            edges |= swapped
            listed[one], listed[other] = [a, d], [c, b]
    return joined(n, torch.tensor(listed, dtype=torch.int64).view(-1, 2))


GRAPHS: dict[str, Callable[[int, int, np.random.Generator], Tensor]] = {
    "ring": ring,
    "torus": torus,
    "regular": regular,
    "complete": complete,
}
