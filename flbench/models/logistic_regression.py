"""Logistic regression: one linear layer."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import nn


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Logistic regression: 650 parameters on 1x8x8, ten classes; the layer is its head."""
    head = nn.Linear(prod(shape), classes)
    return nn.Sequential(OrderedDict(body=nn.Flatten(), head=head))
