"""SGD, Adam and AdamW for many lanes: one call of torch's kernel updates a tensor of all lanes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from flbench.engine.lane_group import LaneGroup

KINDS = SGD, Adam, AdamW
"""Optimisers that update every scalar independently, so that lanes can share a call."""
CHANGED = "the settings of its optimiser were changed"


def not_shared(optimizer: Optimizer) -> str | None:
    """Why lanes cannot share an optimiser; None = they can."""
    if type(optimizer) not in KINDS or len(optimizer.param_groups) != 1:
        return "its optimiser is not SGD, Adam or AdamW with one parameter group"
    if not has_initial_settings(optimizer):
        return CHANGED
    if optimizer.defaults.get("dampening"):
        return "its optimiser has a dampening, which the first step of a client has not"
    return None


def has_initial_settings(optimizer: Optimizer) -> bool:
    """Whether the one parameter group of an optimiser has the settings that it was created with."""
    group = optimizer.param_groups[0]
    return all(group[name] == value for name, value in optimizer.defaults.items())


class LaneOptimizer:
    """An optimiser of the lanes in one phase.

    Attributes:
        counts: whether an update depends on the number of updates before it.

    Args:
        optimizer: gives class and settings.
        lr: learning rate of the phase.
        theta: the lanes' tensors: name -> shape (L, ...).
    """

    def __init__(self, optimizer: Optimizer, lr: float, theta: dict[str, Tensor]) -> None:
        self.counts = not isinstance(optimizer, SGD)
        given: dict[str, Any] = {**optimizer.defaults, "lr": lr}
        self._settings = given
        if self.counts:
            kept = ["mean", "square", *(["largest"] if given["amsgrad"] else [])]
        else:
            kept = ["momentum"] if given["momentum"] else []
        self._state = {
            kind: {name: torch.zeros_like(table) for name, table in theta.items()} for kind in kept
        }

    @torch.no_grad()
    def step(
        self, group: LaneGroup, theta: dict[str, Tensor], gradients: dict[str, Tensor], made: int
    ) -> None:
        """Update tensors in place.

        Args:
            group: the lanes, G of them.
            theta: what is updated: name -> shape (G, ...).
            gradients: of all tensors: name -> shape (G, ...).
            made: updates that these lanes have made.
        """
        names = list(theta)
        state = {
            kind: [group.take(tables[name]) for name in names]
            for kind, tables in self._state.items()
        }
        values = list(theta.values())
        slopes = [gradients[name].contiguous() for name in names]  # the kernels ignore strides
        rule = self._settings
        names_shared = "lr", "weight_decay", "maximize", "fused", "foreach"
        shared = {name: rule[name] for name in names_shared}
        if self.counts:
            beta1, beta2 = rule["betas"]
            adam(
                values,
                slopes,
                state["mean"],
                state["square"],
                state.get("largest", []),
                [torch.tensor(float(made), device=values[0].device) for _ in names],
                amsgrad=rule["amsgrad"],
                beta1=beta1,
                beta2=beta2,
                eps=rule["eps"],
                decoupled_weight_decay=rule["decoupled_weight_decay"],
                **shared,
            )
        else:
            sgd(
                values,
                slopes,
                list(state.get("momentum", [None] * len(names))),
                momentum=rule["momentum"],
                dampening=0.0,
                nesterov=rule["nesterov"],
                **shared,
            )
        for kind, tables in self._state.items():
            for name, value in zip(names, state[kind], strict=True):
                group.put(tables[name], value)
