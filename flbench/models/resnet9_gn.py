"""ResNet-9 with group normalisation in 32 groups, which has no running statistics to average."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from flbench.models.image_input import expect_images

GROUPS = 32


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-9 with GroupNorm: 6,621,540 parameters on 3x32x32, 100 classes.

    The last pooling takes the maximum of the whole map, 4x4 on images of 32x32.
    """
    expect_images("resnet9-gn", shape, 8)
    body = nn.Sequential(
        _block(shape[0], 64),
        _block(64, 128), nn.MaxPool2d(2), _Residual(128),
        _block(128, 256), nn.MaxPool2d(2),
        _block(256, 512), nn.MaxPool2d(2), _Residual(512),
        nn.MaxPool2d((shape[1] // 8, shape[2] // 8)), nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(512, classes)))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    """A 3x3 convolution with bias, normalised and rectified; the size stays."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(GROUPS, outputs), nn.ReLU()
    )


class _Residual(nn.Module):
    """Two blocks whose output is added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(_block(channels, channels), _block(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return feature maps of the shape of the input."""
        output: Tensor = x + self.blocks(x)
        return output
