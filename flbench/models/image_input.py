"""What built-in networks for images have in common: what they expect, and how images are fitted."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from flbench.errors import UserError


def expect_images(
    model: str, shape: tuple[int, ...], least: int, channels: tuple[int, ...] = ()
) -> None:
    """Check that samples are images a network can see.

    Args:
        model: the network's name.
        shape: one sample's shape.
        least: smallest height and width.
        channels: numbers of channels it takes; none = any.

    Raises:
        UserError: they are not.
    """
    if len(shape) == 3 and min(shape[1:]) >= least and (not channels or shape[0] in channels):
        return
    having = f" with {' or '.join(map(str, channels))} channels" if channels else ""
    raise UserError(
        f"{model} expects images of at least {least}x{least}{having}, got samples of shape {shape}"
    )


class ImageAdapter(nn.Module):
    """Fits a batch of images to a network: three channels, and a size.

    Args:
        size: height and width to resize to, bilinearly; None = they stay as they are.
    """

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return (b, 1 or 3, h, w) as (b, 3, size, size); grey becomes three equal channels."""
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", antialias=True)
        return x.expand(-1, 3, -1, -1)

    def fitted(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one sample that went through."""
        return (3, *(shape[1:] if self.size is None else (self.size, self.size)))
