"""A multi-layer perceptron with one hidden layer."""

from __future__ import annotations

from collections import OrderedDict
from math import prod
from typing import Annotated

from pydantic import Field
from torch import nn


def build(
    shape: tuple[int, ...],
    classes: int,
    hidden: Annotated[int, Field(ge=1)] = 64,
    norm: bool = False,
) -> nn.Module:
    """Perceptron with one hidden layer of `hidden` rectified units, with BatchNorm if `norm`."""
    normed = [nn.BatchNorm1d(hidden)] if norm else []
    body = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), hidden), *normed, nn.ReLU())
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(hidden, classes)))
