"""Functions of methods with one model per client: the first models, and a newcomer's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flbench.core.state import Membership, Memory, Personal, Setup, State

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


def initial_for_newcomers(state: State, clients: Tensor, ctx: Context, shared: Tensor) -> Personal:
    """Models of newcomers: the initial weights, with the shared scalars of the model bank.

    The ids of the newcomers are `clients`, shape (n,). The mask `shared`, shape (W,), bool, holds
    the scalars that are equal in all rows of the bank.
    """
    rows = ctx.initial_rows(clients).clone()
    rows[:, shared] = state.models[0, shared]
    return Personal(params=rows)
