"""my-model: a perceptron with two hidden layers."""

from __future__ import annotations

from collections import OrderedDict
from math import prod
from typing import Annotated

from annotated_types import Ge
from torch import nn


def build(shape: tuple[int, ...], classes: int, width: Annotated[int, Ge(1)] = 32) -> nn.Module:
    """Perceptron with two hidden layers of `width` rectified units.

    Args:
        shape: one sample's shape.
        classes: number of labels.
        width: units of each hidden layer; `--set model.width=64`.

    Returns:
        a network from samples (b, *shape) to logits (b, classes). Its last `nn.Linear` is the head
        that some methods keep personal.
    """
    body = nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
    )
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(width, classes)))
