"""Dropout with the same random numbers for a client in the sequential and vectorised executors.

The sequential executor draws from torch's default generator, seeded for each client. In the
vectorised executor each lane has a generator of its own with the same seed, and the rule for
`torch.func.vmap` draws for all lanes one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

KINDS: dict[type[nn.Module], int] = {
    nn.Dropout: 0,
    nn.Dropout1d: 1,
    nn.Dropout2d: 2,
    nn.Dropout3d: 3,
}
"""Dropout layers that are replaced -> number of last dimensions that are dropped together."""


class LaneRandomness:
    """The random generators of the lanes that are trained now.

    Attributes:
        layers: number of layers that draw from them.
        generators: one per lane; empty = torch's default generator.
        lane_marker: a scalar that inside `vmap` has the lanes as its batch dimension, so that
            `vmap` calls the rule of `_Draw`.
    """

    def __init__(self) -> None:
        self.layers = 0
        self.generators: list[torch.Generator] = []
        self.lane_marker = torch.zeros(())


class LaneDropout(nn.Module):
    """Replaces a dropout layer of torch; a client's random numbers do not depend on other lanes.

    The last `together` dimensions are dropped together, with probability `p`.
    """

    def __init__(self, p: float, together: int, randomness: LaneRandomness) -> None:
        super().__init__()
        self.p = p
        self.together = together
        self.randomness = randomness

    def forward(self, x: Tensor) -> Tensor:
        """Drop scalars and scale the others, in training mode only."""
        if not self.training or not self.p:
            return x
        shape = x.shape[: x.ndim - self.together] + (1,) * self.together
        like = torch.empty(shape, dtype=x.dtype, device=x.device)
        if not self.randomness.generators:  # no lanes: as torch computes it
            noise = like.bernoulli_(1 - self.p)
            return x * (noise.div_(1 - self.p) if self.p < 1 else noise)
        keep: Tensor = _Draw.apply(  # type: ignore[no-untyped-call]
            like, self.randomness.lane_marker, self.p, self.randomness.generators
        )
        return x * (keep / (1 - self.p) if self.p < 1 else keep)


class _Draw(torch.autograd.Function):
    """Zeros and ones, the ones with probability 1 - p; no gradient."""

    @staticmethod
    def forward(
        like: Tensor, lane_marker: Tensor, p: float, generators: list[torch.Generator]
    ) -> Tensor:
        return torch.empty_like(like).bernoulli_(1 - p)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:  # noqa: ANN401
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None]:  # noqa: ANN401
        return None, None, None, None

    @staticmethod
    def vmap(
        info: Any,  # noqa: ANN401 - torch leaves its type open
        in_dims: tuple[int | None, ...],
        like: Tensor,
        lane_marker: Tensor,
        p: float,
        generators: list[torch.Generator],
    ) -> tuple[Tensor, int]:
        one = like if in_dims[0] is None else like.select(in_dims[0], 0)
        drawn = [torch.empty_like(one).bernoulli_(1 - p, generator=g) for g in generators]
        return torch.stack(drawn), 0


def replace_dropout(module: nn.Module) -> LaneRandomness:
    """Replace the dropout layers of a module, in place; return their generators."""
    randomness = LaneRandomness()
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            together = KINDS.get(type(child))
            if together is not None and isinstance(child.p, float | int):
                setattr(parent, name, LaneDropout(child.p, together, randomness))
                randomness.layers += 1
    return randomness
