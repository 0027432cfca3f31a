"""Two 3x3 convolutions with BatchNorm, small enough for a test."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import nn

from flbench.models.image_input import expect_images


def build(
    shape: tuple[int, ...],
    classes: int,
    width: Annotated[int, Field(ge=1), "channels of each convolution"] = 16,
) -> nn.Module:
    """CNN with BatchNorm: 3,194 parameters on 1x8x8, 13,082 on 3x32x32, ten classes."""
    expect_images("normed-cnn", shape, 4)
    features = width * (shape[1] // 4) * (shape[2] // 4)
    body = nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1),
        nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(features, classes)))
