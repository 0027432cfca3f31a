"""Which executor `auto` stands for: a rule on network, batch and device, never a clock.

Lanes save what calling a layer costs beyond its arithmetic. On a CPU that is most of the time of
linear layers, and of small convolutions of few and small images. Larger ones keep a core busy with
one client, whose model stays in its cache. The measurements are in docs/parallel.md.
"""

from __future__ import annotations

from math import prod

import torch
from torch import nn

from flbench.core.layout import trained_parameters
from flbench.core.networks import is_linear, layers_of
from flbench.engine.lanes.convolution import LARGEST_FILTERS
from flbench.engine.options import EXACT

SMALL = {"cpu": 500_000, "cuda": 20_000_000}
"""Parameters below which lanes are faster, by type of device; on all others they are not."""
FEW = 8_000
"""Scalars of a batch of images up to which convolutions are faster in lanes on CPUs."""


def automatic(
    module: nn.Module, shape: tuple[int, ...], batch: int, device: torch.device, precision: str
) -> str:
    """The executor that `auto` stands for: "vectorised" where lanes are faster, or "sequential".

    On CUDA they are, up to ResNet-18 with 11 million parameters; nobody has measured larger ones.
    On CPUs nobody has measured other precisions than float32.

    Args:
        module: what is trained.
        shape: of a sample.
        batch: samples of a step.
        device: on which it is trained.
        precision: of forward and backward passes.
    """
    parameters = sum(map(torch.numel, trained_parameters(module).values()))
    lanes = parameters < SMALL.get(device.type, 0)
    if device.type == "cpu":
        few = batch * prod(shape) <= FEW and has_small_layers(module)
        lanes = lanes and precision == EXACT and (few or is_linear(module))
    return "vectorised" if lanes else "sequential"


def has_small_layers(module: nn.Module) -> bool:
    """Whether all layers are linear or small convolutions, products of matrices in lanes."""
    return all(
        type(layer) is nn.Linear
        or (type(layer) is nn.Conv2d and layer.weight.numel() <= LARGEST_FILTERS)
        for layer in layers_of(module)
    )
