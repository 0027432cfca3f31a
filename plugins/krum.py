"""Krum: of the uploads, the server takes those that lie nearest to most others.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant
gradient descent", NeurIPS 2017, Sections 4 and 6 (Multi-Krum).

    s(i) = sum of |u_i - u_j|^2 over the n - f - 2 uploads j nearest to i;  w <- mean of the m
    uploads with the smallest s

Each row of the bank is computed from its own members. With too few uploads for n - f - 2 >= 1 the
nearest one counts. Ties go to the upload that is nearer to all. Only trainable scalars are
compared. `multi-krum` is Krum with m = n - f.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

import flbench as fl

Count = Annotated[int, Ge(1)] | None


@dataclass(frozen=True)
class Krum:
    """Of the uploads, the server takes those that lie nearest to most others."""

    paper: ClassVar[str] = "Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017"
    year: ClassVar[int] = 2017
    kind: ClassVar[str] = "server"

    byzantine: Annotated[int, Ge(0), "f, how many uploads may be false"] = 1
    chosen: Annotated[Count, "m, how many uploads are averaged; none = n - f"] = 1

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The mean of the chosen uploads of each row; a row without uploads keeps its values."""
        rows, counters = state.models.clone(), ctx.layout.counters
        shares = membership.shares(upload.ids, len(rows))
        for row in range(len(rows)):
            members = shares[row].nonzero()[:, 0]
            if len(members):
                uploads = upload.selected()[members]
                chosen = uploads[self.nearest(uploads[:, ctx.layout.trainable])]
                mean = chosen.mean(dim=0)
                mean[counters] = chosen[:, counters].amax(dim=0)
                rows[row] = mean
        return fl.Models(rows)

    def nearest(self, uploads: torch.Tensor) -> list[int]:
        """Places of the m uploads with the smallest score, of uploads (n, P)."""
        rows = uploads.double()
        squares = torch.stack([(rows - row).square().sum(dim=1) for row in rows])
        distances = squares.sort(dim=1).values[:, 1:]
        near = max(1, len(rows) - self.byzantine - 2)
        scores = torch.stack([distances[:, :near].sum(dim=1), distances.sum(dim=1)], dim=1).tolist()
        order = sorted(range(len(rows)), key=scores.__getitem__)
        return order[: self.chosen or max(1, len(rows) - self.byzantine)]


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Of the uploads, the server averages all but the f that lie farthest from most others."""

    chosen: Annotated[Count, "m, how many uploads are averaged; none = n - f"] = None
