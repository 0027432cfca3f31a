"""Learning at the server: a loop of gradient steps, and networks that a method brings itself.

A plugin keeps nothing between rounds, so a network of its own - a generator, a hypernetwork - is a
flat tensor in the state's memory, and `FlatNetwork` computes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from flbench.core.layout import ParameterLayout
from flbench.core.seeding import seed_torch

Loss = Callable[[Tensor, int], Tensor]


def minimise(
    start: Tensor,
    loss: Loss,
    steps: int,
    lr: float,
    optimizer: Literal["sgd", "adam"] = "sgd",
    momentum: float = 0.0,
) -> Tensor:
    """Take gradient steps on a loss, and return where they end; `start` stays as it is.

    Args:
        start: any shape; for a model a row of shape (W,).
        loss: `loss(point, step) -> scalar`; `step` counts from 0, for example to choose a batch.
        steps: number of gradient steps.
        lr: learning rate.
        optimizer: "sgd" or "adam".
        momentum: of SGD.

    Example:
        >>> minimise(torch.tensor([1.0, -2.0]), lambda p, step: p.square().sum() / 2, 2, 0.5)
        tensor([ 0.2500, -0.5000])
    """
    point = start.detach().clone().requires_grad_()
    rule: torch.optim.Optimizer = (
        torch.optim.Adam([point], lr=lr)
        if optimizer == "adam"
        else torch.optim.SGD([point], lr=lr, momentum=momentum)
    )
    with torch.enable_grad():
        for step in range(steps):
            rule.zero_grad()
            loss(point, step).backward()
            rule.step()
    return point.detach()


class FlatNetwork:
    """A network of a method's own, whose parameters are one flat tensor.

    It is a function of that tensor: nothing is kept in it. Buffers stay as they were built.

    Args:
        build: builds the network, for example `lambda: nn.Linear(8, 100)`.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._build = build
        with torch.random.fork_rng(devices=[]):
            self._net = build()
        self._layout = ParameterLayout.of(self._net)

    @property
    def size(self) -> int:
        """Number of scalars, buffers included."""
        return self._layout.width

    def initial(self, rng: np.random.Generator) -> Tensor:
        """Initial parameters from a generator of the run (`ctx.rng`), shape (size,)."""
        with torch.random.fork_rng(devices=[]):
            seed_torch(int(rng.integers(2**63)))
            return self._layout.flatten(self._build())

    def __call__(self, flat: Tensor, *arguments: Tensor) -> Tensor:
        """Compute the network with parameters `flat`, shape (size,); gradients flow to them."""
        output: Tensor = functional_call(self._net, self._layout.unflatten(flat), arguments)
        return output
