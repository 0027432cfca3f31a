"""Two 3x3 convolutions and a hidden layer with dropout, without normalisation.

The CNN for EMNIST of "Adaptive Federated Optimization" (Reddi et al. 2021,
https://arxiv.org/abs/2003.00295), with which FLUTE and pfl-research measure their speed.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from flbench.models.image_input import expect_images


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    """CNN with dropout: 1,199,882 parameters on 1x28x28, 1,626,442 on 3x32x32, ten classes."""
    expect_images("fedopt-cnn", shape, 6)
    features = 64 * ((shape[1] - 4) // 2) * ((shape[2] - 4) // 2)
    body = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3), nn.ReLU(),
        nn.Conv2d(32, 64, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(features, 128), nn.ReLU(), nn.Dropout(0.5),
    )  # fmt: skip
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(128, classes)))
