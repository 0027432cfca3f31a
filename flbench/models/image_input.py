"""Input of the built-in networks for images: a check of the shape, and an adapter."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from flbench.errors import UserError


def expect_images(
    model: str, shape: tuple[int, ...], least: int, channels: tuple[int, ...] = ()
) -> None:
    """Raise UserError if the shape of a sample is not that of an image that a network accepts.

    Args:
        model: name of the network.
        shape: shape of a sample.
        least: smallest height and width.
        channels: accepted numbers of channels; empty = any.
    """
    if len(shape) == 3 and min(shape[1:]) >= least and (not channels or shape[0] in channels):
        return
    having = f" with {' or '.join(map(str, channels))} channels" if channels else ""
    raise UserError(
        f"{model} expects images of at least {least}x{least}{having}, got samples of shape {shape}"
    )


class ImageAdapter(nn.Module):
    """Converts a batch of images to three channels and a given size.

    Args:
        size: height and width after bilinear resizing; None = the size is unchanged.
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
        """The shape of a sample after the conversion."""
        return (3, *(shape[1:] if self.size is None else (self.size, self.size)))
