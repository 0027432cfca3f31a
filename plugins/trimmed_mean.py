"""Trimmed mean and median: of every scalar, the server leaves out the extremes.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal
statistical rates", ICML 2018, Definitions 1 and 2, Algorithm 1.

    w_d <- mean of the u_id without the k smallest and the k largest,  k = floor(beta n)
    median: k = floor((n - 1) / 2); of an even number of uploads the mean of the middle two

Each row of the bank is computed from its own members. Uploads are not weighted by samples, so
beta = 0 is FedAvg with uniform weights. The paper has one gradient step per round, not epochs. Of
counters (BatchNorm) the maximum is taken, as everywhere.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class Trimming(ABC):
    """Of every scalar, the server leaves out the extremes."""

    paper: ClassVar[str] = "Yin, Chen, Ramchandran, Bartlett, ICML 2018"
    year: ClassVar[int] = 2018
    kind: ClassVar[str] = "server"

    @abstractmethod
    def trimmed(self, uploads: int) -> int:
        """k, how many of some uploads are left out at each end."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """The trimmed mean of each row's members; a row without uploads keeps its values."""
        counters = ctx.layout.counters
        rows = fl.member_mean(state.models, upload, membership, counters, "uniform")
        for row, shares in enumerate(membership.shares(upload.ids, len(rows))):
            members = shares.nonzero()[:, 0]
            if len(members):
                uploads = upload.selected()[members.to(rows.device)][:, ~counters]
                rows[row, ~counters] = self.mean(uploads)
        return fl.Models(rows)

    def mean(self, uploads: Tensor) -> Tensor:
        """The trimmed mean of uploads, shape (n, W), summed in their order: shape (W,)."""
        n, k = len(uploads), self.trimmed(len(uploads))
        ranks = uploads.argsort(dim=0, stable=True).argsort(dim=0)
        total = torch.zeros_like(uploads[0], dtype=torch.float64)
        for values, rank in zip(uploads.double(), ranks, strict=True):
            total += torch.where((rank >= k) & (rank < n - k), values, 0.0)
        return (total / (n - 2 * k)).float()


@dataclass(frozen=True)
class TrimmedMean(Trimming):
    """Of every scalar, the server averages what is left without the extremes."""

    beta: Annotated[float, Ge(0), Lt(0.5), "share of the uploads left out at each end"] = 0.2

    def trimmed(self, uploads: int) -> int:
        """floor(beta n); 0.29 of 100 uploads are 29."""
        return math.floor(self.beta * uploads + 1e-9)


@dataclass(frozen=True)
class Median(Trimming):
    """Of every scalar, the server takes the median."""

    def trimmed(self, uploads: int) -> int:
        """All but the middle one, or the middle two."""
        return (uploads - 1) // 2
