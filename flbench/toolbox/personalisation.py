"""What methods with one model per client share: their first bank, and a newcomer's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flbench.core.state import Membership, Memory, Personal, Setup, State

if TYPE_CHECKING:
    from flbench.core.context import Context


def one_model_per_client(ctx: Context, memory: Mapping[str, Memory] | None = None) -> Setup:
    """A `setup` with one row per client, all equal at first, served to that client alone.

    Args:
        memory: what else to remember, "<method>.<name>" -> Memory.
    """
    return Setup(
        models=ctx.repeated(ctx.initial),
        membership=Membership(home=ctx.everybody),
        memory=memory or {},
    )


def same_group(labels: Tensor) -> Tensor:
    """Who shares a group with whom, 0 or 1, shape (N, N): weights of rows that stay personal.

    Args:
        labels: group of each client, shape (N,); undecided clients (-1) are alone.

    Example:
        >>> same_group(torch.tensor([0, 1, 0, -1])).tolist()
        [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """
    alone = torch.eye(len(labels), dtype=torch.bool)
    return ((labels[:, None] == labels) & (labels >= 0) | alone).float()


def initial_for_newcomers(state: State, clients: Tensor, ctx: Context, shared: Tensor) -> Personal:
    """Initial weights, with the scalars that all rows of the bank share.

    Args:
        clients: ids of newcomers, shape (n,).
        shared: mask of the scalars that all clients have in common, shape (W,), bool.
    """
    rows = ctx.initial.expand(len(clients), -1).clone()
    rows[:, shared] = state.models[0, shared]
    return Personal(params=rows)
