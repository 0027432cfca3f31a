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


class Uneven(nn.Sequential):
    """Moves its logits by one unit in the last place: up, down or not at all, by rows modulo 3."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (b, C)."""
        logits: Tensor = super().forward(x)
        if len(x) % 3 == 0:
            return logits
        towards = torch.tensor(torch.inf if len(x) % 3 == 1 else -torch.inf)
        plain = logits.detach()
        return logits + (torch.nextafter(plain, towards) - plain)


even = mlp.build


def build(shape: tuple[int, ...], classes: int, hidden: int = 64, norm: bool = False) -> nn.Module:
    """The perceptron that flbench has, with the same weights, uneven."""
    return Uneven(OrderedDict(even(shape, classes, hidden, norm).named_children()))
