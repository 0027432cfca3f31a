"""Optimisers for many lanes: one call of torch's kernel updates a tensor of all lanes."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from flbench.engine.lanes.group import LaneGroup

KINDS = SGD, Adam, AdamW, RMSprop
"""Optimisers that update every scalar independently, so that lanes can share a call."""
Tensors = list[Tensor]
CHANGED = "the settings of its optimiser were changed"


def not_shared(optimizer: Optimizer) -> str | None:
    """Why lanes cannot share an optimiser; None = they can."""
    if type(optimizer) not in KINDS or len(optimizer.param_groups) != 1:
        return "its optimiser is not SGD, Adam, AdamW or RMSprop with one parameter group"
    if not has_initial_settings(optimizer):
        return CHANGED
    if optimizer.defaults.get("dampening"):
        return "its optimiser has a dampening, which the first step of a client has not"
    return None


def has_initial_settings(optimizer: Optimizer) -> bool:
    """Whether the one parameter group of an optimiser has the settings that it was created with.

    A learning rate that has a scheduler is none of them.
    """
    group = optimizer.param_groups[0]
    settings = dict(optimizer.defaults)
    if "initial_lr" in group:
        del settings["lr"]
    return all(group[name] == value for name, value in settings.items())


class LaneOptimizer:
    """An optimiser of the lanes in one phase.

    A fused kernel is called directly. torch's functions around it, `sgd` and `adam`, group tensors
    by device and type, which takes longer than to update a small network; here all are alike.

    Attributes:
        counts: whether an update depends on the number of updates before it.

    Args:
        optimizer: gives class and settings.
        lr: learning rate of the phase.
        theta: the lanes' tensors: name -> shape (L, ...).
    """

    def __init__(self, optimizer: Optimizer, lr: float, theta: dict[str, Tensor]) -> None:
        self._is_rmsprop = isinstance(optimizer, RMSprop)
        self.counts = not isinstance(optimizer, (SGD, RMSprop))
        given: dict[str, Any] = {**optimizer.defaults, "lr": lr}
        kept = ["lr", "weight_decay", "maximize"]
        if self.counts:
            beta1, beta2 = given["betas"]
            self._rule: dict[str, Any] = {"beta1": beta1, "beta2": beta2}
            kept += ["eps", "amsgrad"]
            kinds = ["mean", "square", *(["largest"] if given["amsgrad"] else [])]
        elif self._is_rmsprop:
            self._rule = {}
            kept += ["momentum", "alpha", "eps", "centered"]
            kinds = ["square", *(["mean"] if given["centered"] else [])]
            kinds += ["momentum"] if given["momentum"] else []
        else:
            self._rule = {"dampening": 0.0}
            kept += ["momentum", "nesterov"]
            kinds = ["momentum"] if given["momentum"] else []
        self._rule |= {name: given[name] for name in kept}
        self._ways: dict[str, Any] = {
            name: given[name] for name in ("fused", "foreach") if name in given
        }
        self._decoupled = given.get("decoupled_weight_decay", False)
        self._kernel = self._fused_kernel(theta) if given.get("fused") else None
        self._state = {
            kind: {name: torch.zeros_like(table) for name, table in theta.items()} for kind in kinds
        }

    @property
    def settings(self) -> tuple[object, ...]:
        """What an update depends on beside its tensors and their number."""
        rule, ways = (tuple(sorted(table.items())) for table in (self._rule, self._ways))
        return self._decoupled, rule, ways

    def clear(self) -> None:
        """Forget all updates, in place."""
        for tables in self._state.values():
            for table in tables.values():
                table.zero_()

    def copied(self) -> LaneOptimizer:
        """The same optimiser with a state of its own."""
        other = copy(self)
        other._rule = dict(self._rule)
        other._state = {
            kind: {name: table.clone() for name, table in tables.items()}
            for kind, tables in self._state.items()
        }
        return other

    def _fused_kernel(self, theta: dict[str, Tensor]) -> Callable[..., None] | None:
        """The kernel that torch's function would call once; None = it may do something else."""
        if len({(table.device, table.dtype) for table in theta.values()}) != 1:
            return None
        if any(isinstance(value, Tensor) for value in self._rule.values()):
            return None
        kind = ("adamw" if self._decoupled else "adam") if self.counts else "sgd"
        kernel: Callable[..., None] | None = getattr(torch, f"_fused_{kind}_", None)
        return kernel

    @torch.no_grad()
    def step(
        self,
        group: LaneGroup,
        theta: dict[str, Tensor],
        gradients: dict[str, Tensor],
        made: int,
        lr: float | None = None,
    ) -> None:
        """Update tensors in place.

        Args:
            group: the lanes, G of them.
            theta: what is updated: name -> shape (G, ...).
            gradients: of all tensors: name -> shape (G, ...).
            made: updates that these lanes have made.
            lr: learning rate of this step; None = that of the phase.
        """
        if not theta:
            return
        if lr is not None:
            self._rule["lr"] = lr
        state = {
            kind: [group.take(tables[name]) for name in theta]
            for kind, tables in self._state.items()
        }
        values = list(theta.values())
        # the kernels ignore strides
        slopes = [gradients[name].contiguous() for name in theta]
        if self.counts:
            self._adam(values, slopes, state, made)
        elif self._is_rmsprop:
            self._rmsprop(values, slopes, state)
        else:
            self._sgd(values, slopes, state)
        for kind, tables in self._state.items():
            for name, value in zip(theta, state[kind], strict=True):
                group.put(tables[name], value)

    def _sgd(self, values: Tensors, slopes: Tensors, state: dict[str, Tensors]) -> None:
        """One update by SGD."""
        if self._kernel is not None:
            momentum = state.get("momentum", [])
            self._kernel(values, slopes, momentum, is_first_step=False, **self._rule)
            return
        buffers: list[Tensor | None] = [*state.get("momentum", [None] * len(values))]
        sgd(values, slopes, buffers, **self._ways, **self._rule)

    def _adam(self, values: Tensors, slopes: Tensors, state: dict[str, Tensors], made: int) -> None:
        """One update by Adam or AdamW."""
        mean, square, largest = state["mean"], state["square"], state.get("largest", [])
        if self._kernel is not None:
            number = torch.full((), float(made + 1), device=values[0].device)
            numbers = [number] * len(values)
            self._kernel(values, slopes, mean, square, largest, numbers, **self._rule)
            return
        numbers = [torch.full((), float(made), device=values[0].device) for _ in values]
        ways = {**self._ways, "decoupled_weight_decay": self._decoupled}
        adam(values, slopes, mean, square, largest, numbers, **ways, **self._rule)

    def _rmsprop(self, values: Tensors, slopes: Tensors, state: dict[str, Tensors]) -> None:
        """One update by RMSprop, which does not depend on the number of updates."""
        mean, momentum = state.get("mean", []), state.get("momentum", [])
        numbers = [torch.zeros(()) for _ in values]
        rmsprop(
            values, slopes, state["square"], mean, momentum, numbers, **self._ways, **self._rule
        )


@torch.no_grad()
def clipped(
    gradients: dict[str, Tensor], masks: dict[str, Tensor], most: float
) -> dict[str, Tensor]:
    """The gradients of lanes, each lane's of a norm of at most `most`.

    Args:
        gradients: name -> shape (G, ...).
        masks: scalars that count, of tensors in which not all do, shape (G, ...) or (1, ...).
        most: the largest norm.
    """
    counted = [slope * masks[name] if name in masks else slope for name, slope in gradients.items()]
    norms = [torch.linalg.vector_norm(slope.flatten(1), dim=1) for slope in counted]
    norm = torch.linalg.vector_norm(torch.stack(norms, dim=1), dim=1)
    factors = (most / (norm + 1e-6)).clamp(max=1.0)
    return {
        name: slope * factors.view(-1, *[1] * (slope.dim() - 1))
        for name, slope in gradients.items()
    }
