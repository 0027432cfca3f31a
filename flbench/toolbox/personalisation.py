"""The first models of methods with one per client, and what a newcomer can have of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flbench.core.model_bank import row_of
from flbench.core.state import Membership, Memory, Setup

if TYPE_CHECKING:
    from flbench.core.context import Context


def one_model_per_client(ctx: Context, memory: Mapping[str, Memory] | None = None) -> Setup:
    """Return a `Setup` with one row per client; all rows hold the initial weights.

    Where clients have different networks, each row is that of its client's network. The `memory` of
    the method is "<method>.<name>" -> Memory.
    """
    rows = ctx.repeated(ctx.initial)
    if ctx.networks is not None:
        for network in ctx.networks.unique():
            rows[ctx.networks == network] = ctx.layout.with_network(ctx.initial, network[None])
    return Setup(rows, Membership(ctx.everybody), memory or {})


def same_group(labels: Tensor) -> Tensor:
    """Pairs of clients of one group, 0 or 1, shape (N, N): weights of a row per client.

    Args:
        labels: group of each client, shape (N,); an undecided client (-1) is a group of its own.

    Example:
        >>> same_group(torch.tensor([0, 1, 0, -1])).tolist()
        [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """
    alone = torch.eye(len(labels), dtype=torch.bool)
    return ((labels[:, None] == labels) & (labels >= 0) | alone).float()


def common_part(models: Tensor, clients: Tensor, ctx: Context) -> Tensor:
    """What all models have in common, and each client's initial weights elsewhere, shape (n, W).

    So a newcomer gets what clients share, and nothing of what stays with one of them. Counters of
    batches are the initial ones: clients that took as many steps share none.

    Args:
        models: one per client, shape (N, W).
        clients: ids, shape (n,).
        ctx: the run's context.
    """
    first, common = row_of(models, 0), ctx.layout.common & ~ctx.layout.counters
    common = common.to(first.device)
    for row in models:
        common &= row == first
    rows = ctx.initial_rows(clients).clone()
    rows[:, common] = first[common]
    return rows


def best_model(models: Tensor, clients: Tensor, ctx: Context) -> Tensor:
    """The row with the least loss on each client's validation samples, shape (n,), int64.

    Where clients have different networks, only rows of the client's own are compared.

    Args:
        models: shape (K, W).
        clients: ids, shape (n,).
        ctx: the run's context.

    Raises:
        UserError: a client has no validation samples.
    """
    losses = ctx.evaluate(models, clients)
    if ctx.networks is not None:
        foreign = ctx.networks[clients, None] != ctx.layout.network_of(models)
        losses = losses.masked_fill(foreign, torch.inf)
    return losses.argmin(dim=1)
