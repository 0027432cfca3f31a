"""The workload for other frameworks: data and network.

It needs nothing but Python and torch, because it is imported in their environments.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

DEVICE = os.environ.get("FLBENCH_SPEED_DEVICE", "cpu")
"""Type of the device that trains."""


def arguments() -> tuple[dict[str, Any], int, str, int]:
    """Workload, number of processes, file of the network and number of rounds (`sys.argv`)."""
    work, processes, net, rounds = sys.argv[1:5]
    return json.loads(work), int(processes), net, int(rounds)


@lru_cache(maxsize=1)
def network(path: str) -> nn.Module:
    """The network, as flbench builds it."""
    torch.set_num_threads(1)
    net: nn.Module = torch.load(path, weights_only=False)
    return net


@lru_cache(maxsize=1)
def images(
    clients: int, samples: int, shape: tuple[int, ...], classes: int
) -> tuple[Tensor, Tensor]:
    """Samples of all clients and their labels."""
    draw = torch.Generator().manual_seed(0)
    return (
        torch.randn(clients, samples, *shape, generator=draw),
        torch.randint(classes, (clients, samples), generator=draw),
    )


def data(work: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Samples and labels of a workload, on the device."""
    return on_device(work["clients"], work["samples"], tuple(work["shape"]), work["classes"])


@lru_cache(maxsize=1)
def on_device(
    clients: int, samples: int, shape: tuple[int, ...], classes: int
) -> tuple[Tensor, Tensor]:
    """`images` on the device."""
    x, y = images(clients, samples, shape, classes)
    return x.to(DEVICE), y.to(DEVICE)
