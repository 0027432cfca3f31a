"""PACFL: clients grouped once, before training, by the principal angles between their data.

Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, "Efficient distribution similarity
identification in clustered federated learning via principal angles between client data subspaces",
AAAI 2023.

    client i sends U_i: the first p left singular vectors of its samples, one sample a column
    angle=smallest   A_ij = smallest principal angle of span U_i and span U_j             (Eq. 2)
    angle=trace      A_ij = tr arccos(U_i^T U_j), the sum over pairs of vectors           (Eq. 3)
    hierarchical clustering of A, cut at beta degrees; then fedavg in each group, from w_0

The paper takes one SVD of all samples of a client. The released code for label skew takes one for
each of the client's labels and joins the vectors (`per=class`), and its angle is the smallest
between any two vectors (`angle=vectors`; preset `cifar10`). Samples are as the network gets them,
not centred; beta depends on them. In `trace` the first vectors are a pair, then the second ones; a
vector that a client does not have (fewer samples than p) is at 90 degrees to all. A singular vector
has no sign: here its largest scalar is positive. Departure: a newcomer joins the group with the
smallest mean angle; the paper clusters again with the newcomers, of whom some may then be a group
without a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

Angle = Literal["smallest", "trace", "vectors"]


@dataclass(frozen=True)
class PACFL:
    """Clients grouped once by the principal angles between their data."""

    paper: ClassVar[str] = "Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, AAAI 2023"
    year: ClassVar[int] = 2023
    kind: ClassVar[str] = "clustered"
    tasks: ClassVar[tuple[str, ...]] = ("classes",)
    presets: ClassVar[fl.Presets] = {
        "cifar10": {"per": "class", "angle": "vectors", "beta": 4.9, "linkage": "weighted"}
    }
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"p": 1, "per": "class", "angle": "vectors", "beta": 30.0},
        equals={"fedavg": {"beta": 180.0}, "local-only": {"beta": 0.0}},
    )

    p: Annotated[int, Ge(1), "p, singular vectors that a client sends"] = 3
    beta: Annotated[float, Ge(0), "beta, degrees at which groups are cut"] = 15.0
    angle: Annotated[Angle, "of two clients: Eq. 2, Eq. 3, or the released code's"] = "smallest"
    per: Annotated[Literal["client", "class"], "p vectors of all samples, or of each class"] = (
        "client"
    )
    linkage: Annotated[
        Literal["average", "weighted", "complete", "single"], "of the clustering"
    ] = "average"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """The server keeps the clients' vectors if newcomers will join."""
        return fl.Setup(memory={"pacfl.vectors": fl.Memory(torch.zeros(0))})

    @fl.hookimpl
    def score(self, state: fl.State, phase: fl.Phase, ctx: fl.Context) -> fl.Scores | None:
        """Negated angles between all clients, before the first round."""
        if ctx.round > 1 or phase == "after" or len(state.models) > 1:
            return None
        vectors = [self.vectors(*ctx.client_data(client)) for client in range(ctx.clients)]
        ctx.send("up", ctx.everybody, "vectors", torch.tensor([v.numel() for v in vectors]))
        table = fl.padded(vectors)
        memory = {"pacfl.vectors": table} if ctx.newcomers else {}
        values = -self.angles(table, table)
        return fl.Scores(values, ctx.everybody, "clients", ctx.everybody, memory)

    def vectors(self, x: Tensor, y: Tensor) -> Tensor:
        """What a client sends of its samples, shape (r, d), float64: the rows are U_i^T."""
        if y.dim() > 1:
            raise fl.Undefined("singular vectors of text have no meaning")
        samples, y = x.flatten(1).double().cpu(), y.cpu()
        if self.per == "client":
            return first_vectors(samples, self.p)
        found = torch.cat([first_vectors(samples[y == label], self.p) for label in y.unique()])
        if self.angle == "smallest":  # of the common span of all classes
            found = torch.linalg.qr(found.T).Q.T
        return found

    def angles(self, left: Tensor, right: Tensor) -> Tensor:
        """Angles in degrees, shape (n, m), of tables of vectors, (n, r, d) and (m, q, d)."""
        products = torch.einsum("iad,jbd->ijab", left.nan_to_num(), right.nan_to_num())
        if self.angle == "smallest":
            cosines = torch.linalg.svdvals(products)[..., :1]
        elif self.angle == "trace":
            cosines = products.diagonal(dim1=2, dim2=3)
        else:
            cosines = products.flatten(2).amax(dim=2, keepdim=True)
        # rounded, because arccos makes much of rounding errors near 1
        angles: Tensor = cosines.round(decimals=12).clamp(-1, 1).arccos().rad2deg()
        return angles.sum(dim=2)

    @fl.hookimpl
    def cluster(
        self, state: fl.State, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """Cut the dendrogram once; every group starts from the one model there is."""
        if scores is None:
            return None
        merges = fl.clustering.dendrogram(-scores.values.numpy(), self.linkage)
        home = torch.as_tensor(fl.clustering.cut(merges, self.beta))
        return fl.Membership(home, parent=torch.zeros_like(home.unique()))

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer joins the group with the smallest mean angle."""
        if len(state.models) == 1:
            return None
        known = state.memory["pacfl.vectors"]
        own = fl.padded([self.vectors(*ctx.client_data(int(client))) for client in clients])
        home = state.membership.home[: ctx.clients]
        return fl.Personal(row=fl.similarity.best_group(-self.angles(own, known), home))


def first_vectors(samples: Tensor, p: int) -> Tensor:
    """The first left singular vectors of samples^T, shape (m, d) -> (min(p, m, d), d)."""
    vectors: Tensor = torch.linalg.svd(samples, full_matrices=False).Vh[:p]
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign()
