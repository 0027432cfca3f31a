"""LeNet-5 with rectified units and max-pooling."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from flbench.models.image_input import expect_images


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5: 62,006 parameters on 3x32x32, 44,426 on 1x28x28, ten classes."""
    expect_images("lenet5", shape, 16)
    convolutions = nn.Sequential(
        nn.Conv2d(shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
    )  # fmt: skip
    with torch.no_grad():
        features = convolutions(torch.zeros(1, *shape)).shape[1]
    body = nn.Sequential(
        *convolutions, nn.Linear(features, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()
    )
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(84, classes)))
