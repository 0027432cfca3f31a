"""Samples of several clients in one batch, for models that are evaluated on all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.federation.federation import Samples

SMALL = 2**19
"""Bytes of samples up to which a batch is remembered."""


@dataclass(frozen=True)
class Pooled:
    """Samples of several clients in one batch; a sample that several clients own occurs once.

    Attributes:
        x: samples, shape (m, ...).
        y: labels, shape (m,), or tokens, (m, T).
        positions: positions of the clients' samples in `x`, one client after the other; None = the
            samples are in this order already.
        lengths: number of samples of each client, shape (n,).
        owners: number of clients that own each sample, shape (m,).
    """

    x: Tensor
    y: Tensor
    positions: Tensor | None
    lengths: Tensor
    owners: Tensor

    @classmethod
    def of(cls, samples: Samples, split: str, clients: Tensor) -> Pooled:
        """Pool a split of some clients.

        Small batches are remembered, as clients stay in their groups for long: in the samples
        themselves, so that whoever cannot reach these reaches no copy of them either.
        """
        key = split, clients.numpy(force=True).tobytes()
        pooled = samples.pooled.get(key)
        if not isinstance(pooled, cls):
            pooled = cls._gathered(samples, split, clients)
            if pooled.x.nbytes <= SMALL:
                samples.pooled.put(key, pooled, pooled.x.nbytes)
        return pooled

    @classmethod
    def union(cls, samples: Samples, split: str, clients: Tensor) -> Pooled:
        """The samples of a split of some clients, each once, as those of one client."""
        rows = torch.cat([samples.splits[split][client] for client in clients.tolist()]).unique()
        x, y = samples.x[rows], samples.y[rows]
        return cls(x, y, None, torch.tensor([len(rows)], device=y.device), torch.ones_like(rows))

    @classmethod
    def _gathered(cls, samples: Samples, split: str, clients: Tensor) -> Pooled:
        lists = [samples.splits[split][client] for client in clients.tolist()]
        device = samples.y.device
        lengths = torch.tensor([len(rows) for rows in lists], device=device)
        rows = torch.cat(lists)
        distinct, positions = rows.unique(return_inverse=True) if len(lists) > 1 else (rows, rows)
        if len(distinct) == len(rows):
            owners = torch.ones_like(rows, device=device)
            return cls(samples.x[rows], samples.y[rows], None, lengths, owners)
        x, y = samples.x[distinct], samples.y[distinct]
        return cls(x, y, positions.to(device), lengths, positions.bincount().to(device))
