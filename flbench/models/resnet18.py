"""ResNet-18 in torchvision's layout, optionally with pretrained weights from a file."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.parameters import OpensFile
from flbench.models.image_input import ImageAdapter, expect_images
from flbench.models.pretrained import PretrainedWeights
from flbench.results.files import user_path

SOURCE = PretrainedWeights("resnet18", "the state dict of torchvision's resnet18", "weights")


def build(
    shape: tuple[int, ...],
    classes: int,
    stem: Annotated[
        Literal["imagenet", "cifar"], "7x7 stride 2 and a pooling, or 3x3 stride 1 without"
    ] = "imagenet",
    weights: Annotated[
        str | None,
        OpensFile(),
        "file of a pretrained state dict, .pth or .safetensors; none = random",
    ] = None,
    resize: Annotated[
        int | None, Field(ge=8), "resize images to this height and width; none = as they are"
    ] = None,
) -> nn.Module:
    """ResNet-18 of torchvision: 11,181,642 parameters with ten classes; optionally pretrained.

    Grey images are repeated to three channels. The head is never pretrained, nor is the first
    convolution of the stem "cifar", which has another shape.

    Raises:
        MissingData: the file of weights is not there.
        UserError: it holds something else.
    """
    from torchvision.models import resnet18

    expect_images("resnet18", shape, 8 if resize is None else 1, channels=(1, 3))
    net: nn.Module = resnet18(weights=None, num_classes=classes)
    if stem == "cifar":
        net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.maxpool = nn.Identity()
    if weights is not None:
        path = user_path(weights)
        given = SOURCE.read(path)
        for name, own in net.state_dict().items():
            if name.endswith("num_batches_tracked"):  # files from before PyTorch 0.4.1 lack them
                given.setdefault(name, torch.zeros_like(own))
        SOURCE.copy(path, given, net, fresh=("fc.", "conv1.") if stem == "cifar" else ("fc.",))
    return nn.Sequential(OrderedDict(fit=ImageAdapter(resize), net=net))
