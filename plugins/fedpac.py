"""FedPAC: features near the global mean of their class, and heads combined for each client.

Xu, Tong, Huang, "Personalized federated learning with feature alignment and classifier
collaboration", ICLR 2023.

    client    download theta and c; train phi_i for E_h epochs, then theta_i with the loss
              CE(phi_i(z), y) + lambda mean_{batch, dim} (z - c_y)^2,  z = theta_i(x)
              upload theta_i, phi_i, mean features c_iy and counts n_iy,
              and of the downloaded theta: h_iy = p_i(y) E[z | y] and
              V_i = (E ||z||^2 - sum_y ||h_iy||^2) / n_i
    server    theta <- sum n_i theta_i / sum n_i;  c_y <- sum n_iy c_iy / sum n_iy
              phi_i <- sum_j a_ij phi_j,  where a_i minimises over the simplex
              sum_j a_j^2 V_j + sum_jk a_j a_k sum_y <h_iy - h_jy, h_iy - h_ky>

A combination is made of the heads of the round, for the clients of the round, and sent to them at
its end. Classes of which nobody has told are not aligned. The minimum is exact: with P = B'B, the
minimum of ||B u||^2 + (1'u - 1)^2 over u >= 0 is a multiple of it, because that of each direction
grows with its a'Pa; a millionth of P's mean is added to its diagonal, so that it is unique.
Departures: E_h epochs are of the suite's E, of which theta gets the others; one learning rate.
Epochs of the head update BatchNorm statistics, which FedRep freezes. Newcomers have the initial
head.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from annotated_types import Ge
from scipy.optimize import nnls
from torch import Tensor

import flbench as fl

MEMORY = "fedpac.centroids"
Matrix = npt.NDArray[Any]


def simplex_minimum(p: Matrix) -> Matrix:
    """Minimum of a'Pa over a >= 0 with sum 1, shape (n,).

    Args:
        p: symmetric, without negative eigenvalues, shape (n, n).

    Example:
        >>> simplex_minimum(np.diag([1.0, 3.0])).round(4).tolist()
        [0.75, 0.25]
    """
    n, mean = len(p), np.trace(p) / len(p)
    values, vectors = np.linalg.eigh((p / mean if mean > 0 else p) + 1e-6 * np.eye(n))
    root = np.sqrt(values.clip(min=0))[:, None] * vectors.T
    u: Matrix = nnls(np.vstack([root, np.ones(n)]), np.append(np.zeros(n), 1.0))[0]
    minimum: Matrix = u / u.sum()
    return minimum


def combinations(h: Tensor, v: Tensor) -> Tensor:
    """a_ij, shape (n, n), float64; row i is for client i.

    Args:
        h: h_iy, shape (n, C, d); NaN where client i does not have class y.
        v: V_i, shape (n,).
    """
    flat, rows = h.nan_to_num().double().flatten(1).cpu().numpy(), []
    for own in flat:
        gap = own - flat
        rows.append(simplex_minimum(gap @ gap.T + np.diag(v.double().cpu().numpy())))
    return torch.as_tensor(np.stack(rows))


@dataclass(frozen=True)
class FedPAC:
    """Features near the global mean of their class, and heads combined for each client."""

    paper: ClassVar[str] = "Xu, Tong, Huang, ICLR 2023"
    year: ClassVar[int] = 2023
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedrep": {"lam": 0.0, "combine": False}}
    )

    lam: Annotated[float, Ge(0), "lambda, weight of the alignment"] = 1.0
    head_epochs: Annotated[int, Ge(0), "E_h, epochs of the head; the body gets the others"] = 1
    combine: Annotated[bool, "heads are combined; false = each client keeps its own"] = True

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row per client; the mean of no class is known; warn if a part never trains."""
        heads = [slot.shape for slot in ctx.layout.slots if slot.head and len(slot.shape) == 2]
        if not heads:
            raise fl.Undefined("the network has no head, and what is aligned enters it")
        if self.head_epochs > ctx.local.epochs:
            raise fl.Undefined(
                f"head_epochs={self.head_epochs}: expected at most local.epochs={ctx.local.epochs}"
            )
        if self.head_epochs in (0, ctx.local.epochs):
            still = "body" if self.head_epochs else "head"
            epochs = f"head_epochs={self.head_epochs} of local.epochs={ctx.local.epochs}"
            ctx.warn(f"fedpac: {epochs}: the {still} is not trained")
        unknown = torch.full((ctx.classes, heads[0][1]), torch.nan, device=ctx.initial.device)
        return fl.one_model_per_client(ctx, {MEMORY: fl.Memory(unknown)})

    @fl.hookimpl
    def phases(self, ctx: fl.Context) -> fl.PhaseRule:
        """The head, then the body."""

        def head_then_body(module: fl.ClientModule, epochs: int) -> Sequence[fl.LocalPhase]:
            first = min(self.head_epochs, epochs)
            head, body = ctx.layout.head, ctx.layout.body
            return fl.LocalPhase(first, head), fl.LocalPhase(epochs - first, body)

        return head_then_body

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """The body and the class means are sent; the whole model returns."""
        known = state.memory[MEMORY].expand(len(stage.clients), -1, -1)
        return fl.Start(
            sent_mask=ctx.layout.body,
            returned_mask=ctx.layout.all_mask,
            extras={"centroids": known},
        )

    @fl.hookimpl(wrapper=True)
    def batch_loss(self) -> Generator[None, fl.BatchLoss, fl.BatchLoss]:
        """Add the alignment to another method's loss, or to cross-entropy."""
        other = yield

        def loss(batch: fl.Batch) -> Tensor:
            known = batch.module.received.get("centroids")
            if known is None:
                return other(batch)
            target, z = known[batch.y], batch.features
            gap = torch.where(target.isnan(), torch.zeros_like(z), z - target.nan_to_num())
            return other(batch) + self.lam * gap.square().mean()

        return loss if self.lam else other

    @fl.hookimpl
    def report(self, ctx: fl.Context) -> fl.Reporter:
        """Mean features after training; h_i and V_i before it; NaN where a client has no sample."""

        @torch.no_grad()
        def statistics(module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
            module.eval()
            of_class = F.one_hot(y, ctx.classes).to(x)
            counts = of_class.sum(dim=0)
            before = module.with_row(module.start, lambda x: module.features(x)[0], x)
            after = module.features(x)[0]
            c, mu = (of_class.T @ z / counts[:, None] for z in (after, before))
            h = counts[:, None] / len(y) * mu
            variance = before.square().sum(dim=1).mean() - h.nan_to_num().square().sum()
            known = torch.where(counts > 0, counts, torch.nan)
            sent = {"centroids": c, "counts": known, "h": h, "variance": variance[None] / len(y)}
            return fl.Report(sent)

        return statistics

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """The mean of the bodies, the means of the classes, and the combinations of the heads."""
        sent, head = upload.extras, ctx.layout.head
        counts, known = sent["counts"].nan_to_num().double(), state.memory[MEMORY]
        total = counts.sum(dim=0)[:, None]
        mean = (counts[:, :, None] * sent["centroids"].nan_to_num()).sum(dim=0) / total
        known = torch.where(total > 0, mean.to(known), known)
        if self.combine:
            weights = combinations(sent["h"], sent["variance"][:, 0])
            ctx.send("down", upload.ids, "head", int(head.sum()))
            params = upload.params.clone()
            heads = params[:, 0, head].double()
            params[:, 0, head] = (weights.to(heads) @ heads).to(params)
            upload = replace(upload, params=params)
        rows = fl.partial_mean(state.models, upload, ctx.layout.body, ctx.layout.counters)
        return fl.Models(rows, {MEMORY: known})
