"""Two padded 5x5 convolutions and three linear layers, without normalisation."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from flbench.models.image_input import expect_images


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions, three linear layers: 212,542 parameters on 1x28x28, ten classes."""
    expect_images("dcpfl-fm", shape, 4)
    features = 32 * (shape[1] // 4) * (shape[2] // 4)
    body = nn.Sequential(
        nn.Conv2d(shape[0], 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
    )  # fmt: skip
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(84, classes)))
