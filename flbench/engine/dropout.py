"""Dropout that draws for each client what that client would draw alone.

Trained alone, a client draws from torch's own generator, seeded by the client's address. Trained
beside others, each lane has a generator of its own with the same seed, and `torch.func.vmap` hands
every call to all of them in turn.
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
"""What is replaced, and how many dimensions behind the channel are dropped together."""


class LaneRandomness:
    """Whose numbers are drawn now.

    Attributes:
        generators: one a lane; empty = torch's own.
        token: anything that has the lanes as a batch dimension inside `vmap`.
    """

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []
        self.token = torch.zeros(())


class LaneDropout(nn.Module):
    """Stands for a dropout layer of torch, and draws the same numbers in any company.

    Args:
        p: share that is dropped.
        together: dimensions behind the channel that are dropped together.
        dice: whose numbers are drawn.
    """

    def __init__(self, p: float, together: int, dice: LaneRandomness) -> None:
        super().__init__()
        self.p = p
        self.together = together
        self.dice = dice

    def forward(self, x: Tensor) -> Tensor:
        """Drop, and scale what is kept, where the module trains."""
        if not self.training or not self.p:
            return x
        shape = x.shape[: x.ndim - self.together] + (1,) * self.together
        like = torch.empty(shape, dtype=x.dtype, device=x.device)
        keep: Tensor = _Draw.apply(  # type: ignore[no-untyped-call]
            like, self.dice.token, self.p, self.dice.generators
        )
        return x * (keep / (1 - self.p) if self.p < 1 else keep)


class _Draw(torch.autograd.Function):
    """Zeros and ones, the ones with probability 1 - p; no gradient."""

    @staticmethod
    def forward(like: Tensor, token: Tensor, p: float, generators: list[torch.Generator]) -> Tensor:
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
        token: Tensor,
        p: float,
        generators: list[torch.Generator],
    ) -> tuple[Tensor, int]:
        one = like if in_dims[0] is None else like.select(in_dims[0], 0)
        drawn = [torch.empty_like(one).bernoulli_(1 - p, generator=g) for g in generators]
        return torch.stack(drawn), 0


def by_lane(module: nn.Module) -> LaneRandomness:
    """Replace the dropout layers of a module, in place; return what they draw from."""
    dice = LaneRandomness()
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            together = KINDS.get(type(child))
            if together is not None and isinstance(child.p, float | int):
                setattr(parent, name, LaneDropout(child.p, together, dice))
    return dice
