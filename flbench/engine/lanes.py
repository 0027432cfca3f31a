"""Lanes: models that are trained together, and one step of theirs as a function for `vmap`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from flbench.core.client import ClientModule
from flbench.core.layout import ParameterLayout
from flbench.engine.sequential import Term
from flbench.engine.workspace import Workspace

Named = dict[str, Tensor]


@dataclass
class Lanes:
    """Models that are trained together: L lanes.

    Attributes:
        places: (acting client, candidate) of each lane.
        clients: name of each lane's client (`Samples.name`).
        owned: rows of the pool that each lane trains on.
        start: the rows as they came, shape (L, W).
        theta: trainable scalars, shape (L, P).
        buffers: buffer scalars, shape (L, B).
        told: what each client was told, name -> (L, ...).
        dice: what each lane draws dropout from.
        loss: sum over the steps, shape (L,), float64.
        steps: optimiser steps each lane made.
    """

    places: list[tuple[int, int]]
    clients: list[int]
    owned: list[Tensor]
    start: Tensor
    theta: Tensor
    buffers: Tensor
    told: Named
    dice: list[torch.Generator]
    loss: Tensor
    steps: list[int]

    def __len__(self) -> int:
        return len(self.places)

    def row(self, lane: int) -> Tensor:
        """A lane's model, shape (W,)."""
        return torch.cat([self.theta[lane], self.buffers[lane]])


def alike(batch: list[tuple[Tensor, ...]]) -> list[list[int]]:
    """The lanes that still have a batch, those of one shape together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for lane, parts in enumerate(batch):
        if parts:
            groups.setdefault(tuple(len(part) for part in parts), []).append(lane)
    return list(groups.values())


class Step:
    """One lane's loss as a function of its tensors: what `vmap` and `grad` are applied to.

    The gradient is taken for each tensor and not for the row they are slices of, whose backward
    would write a whole row for every slice.
    """

    def __init__(self, space: Workspace, terms: Sequence[Term]) -> None:
        self.layout: ParameterLayout = space.layout
        self.dice = space.dice
        self.module = Forward(space.module, terms)
        self.names = [slot.name for slot in self.layout.slots if slot.kind == "parameter"]
        self.batched = vmap(grad_and_value(self._loss, has_aux=True))

    def named(self, theta: Tensor) -> Named:
        """The tensors of rows of trainable scalars, (L, P): name -> (L, ...)."""
        return {
            slot.name: theta[:, slot.start : slot.stop].view(-1, *slot.shape)
            for slot in self.layout.slots
            if slot.kind == "parameter"
        }

    def _loss(
        self,
        parameters: Named,
        buffers: Tensor,
        start: Tensor,
        told: Named,
        batch: Any,  # noqa: ANN401 - a batch, or a tuple of them
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one lane and its buffers after the step."""
        cut, kept = self.layout.parameters, {}
        for slot in self.layout.slots:
            if slot.kind != "parameter":
                own = buffers[slot.start - cut : slot.stop - cut].clone().view(slot.shape)
                kept[slot.name] = own.long() if slot.kind == "counter" else own
        inner = self.module.module
        inner.start, inner.received, self.dice.token = start, told, start[:0].sum()
        named = {f"module.{name}": tensor for name, tensor in {**parameters, **kept}.items()}
        loss: Tensor = functional_call(self.module, named, (batch,))
        if not kept:
            return loss, buffers.clone()
        return loss, torch.cat([t.reshape(-1).to(buffers.dtype) for t in kept.values()])


class Forward(nn.Module):
    """Stands around a module so that calling it is its training step and the terms."""

    def __init__(self, module: ClientModule, terms: Sequence[Term]) -> None:
        super().__init__()
        self.module = module
        self.terms = tuple(terms)
        self.index = 0

    def forward(self, batch: Any) -> Tensor:  # noqa: ANN401 - a batch, or a tuple of them
        """Return the loss of one batch."""
        loss = self.module.training_step(batch, self.index)
        for term in self.terms:
            loss = loss + term(self.module)
        return loss
