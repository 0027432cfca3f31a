"""A network whose logits depend on who shares the pass, as on CPUs that pick a kernel by shape.

Some matrix libraries give a row of a product other last bits when there are more rows or fewer.
This network does so on every machine.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from flbench.models import mlp

POINT = "[flbench.models]\nuneven = uneven:build\n"


UNITS = 7
"""The toy's passes have rows with other remainders of it; they have many factors 2 and 3."""


class Uneven(nn.Sequential):
    """Moves its logits up by as many units in the last place as there are rows, modulo `UNITS`."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (b, C)."""
        logits: Tensor = super().forward(x)
        plain = moved = logits.detach()
        for _ in range(len(x) % UNITS):
            moved = torch.nextafter(moved, torch.tensor(torch.inf))
        return logits + (moved - plain)


even = mlp.build


def build(shape: tuple[int, ...], classes: int, hidden: int = 64, norm: bool = False) -> nn.Module:
    """The perceptron that flbench has, with the same weights, uneven."""
    return Uneven(OrderedDict(even(shape, classes, hidden, norm).named_children()))
