"""A wide LeNet for data sets of several domains, whose images differ in size and colour."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import nn

from flbench.models.image_input import ImageAdapter, expect_images


def build(
    shape: tuple[int, ...],
    classes: int,
    size: Annotated[
        int | None, Field(ge=16), "resize images to size x size; none = as they are"
    ] = None,
) -> nn.Module:
    """Wide LeNet: 4,336,906 parameters on 3x64x64, 797,962 on 3x32x32, ten classes.

    Grey images are repeated to three channels.
    """
    expect_images("fedc2i-lenet", shape, 16 if size is None else 1, channels=(1, 3))
    fit = ImageAdapter(size)
    _, height, width = fit.fitted(shape)
    body = nn.Sequential(
        fit,
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * _left(height) * _left(width), 384), nn.ReLU(),
        nn.Linear(384, 192), nn.ReLU(),
    )  # fmt: skip
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(192, classes)))


def _left(side: int) -> int:
    """Side length after two 5x5 convolutions and two poolings: 13 for 64, 5 for 32."""
    return ((side - 4) // 2 - 4) // 2
