"""Convolutions of small batches in lanes, as products of matrices.

Under `torch.func.vmap` the convolutions of all lanes are one convolution in groups, for which CPUs
have no fast kernel, and CUDA launches several for each group. Where the batch of a lane is small,
as with LeNet-5 in batches of ten, the product of each lane's filters and the windows of its images
takes less time, backwards too. The samples of a batch are innermost in memory: a window is then
copied in long rows, and max-pooling computes several samples at once. A linear layer after it gets
a copy with samples outermost. The numbers are those of torch up to the order of float sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

LARGEST, LARGEST_ON_CUDA = 600_000, 4_000_000
"""Scalars of all windows of a lane's batch; with more, they take too much memory."""
LARGEST_FILTERS = 5_000
"""Scalars of a lane's filters; with more, a convolution in groups is as fast or faster."""
EXACT = torch.float32, torch.float64


class LaneConvolutions(TorchFunctionMode):
    """Makes products of the small convolutions that are called in it.

    Pooling and linear layers after them get the order in memory that is fast for them. BatchNorm of
    many lanes takes inputs and weights of one type only, so bfloat16 is converted for it.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        kwargs = kwargs or {}
        if func is F.conv2d:  # torch.conv2d is the same
            return convolution(*args, **kwargs)
        if func is F.batch_norm and args and args[0].dtype is torch.bfloat16:
            return func(args[0].float(), *args[1:], **kwargs).bfloat16()
        if func is F.max_pool2d and args and args[0].ndim == 4 and args[0].stride(0) == 1:
            # Pooling treats samples and channels alike, and is fast for those that are innermost.
            return func(args[0].transpose(0, 1), *args[1:], **kwargs).transpose(0, 1)
        if func is F.linear and args and args[0].ndim == 2 and args[0].stride(0) == 1:
            # Backwards, the product for a table of features by samples has no fast kernel.
            return func(args[0].contiguous(), *args[1:], **kwargs)
        return func(*args, **kwargs)


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: str | int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Tensor:
    """What `torch.conv2d` computes, in whichever way is faster in lanes.

    Args:
        input: images, shape (b, c, h, w).
        weight: filters, shape (o, c / groups, k, l).
        bias: shape (o,).
    """
    edges = (padding, padding) if isinstance(padding, int) else padding
    if groups == 1 and _is_one(stride) and _is_one(dilation) and isinstance(edges, tuple):
        rows, columns = edges * 2 if len(edges) == 1 else edges
        if _pays(input, weight, rows, columns):
            if rows or columns:
                input = F.pad(input, (columns, columns, rows, rows))
            return _product(input, weight, bias)
    return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _product(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution of images, shape (b, c, h, w), without padding; see `convolution`."""
    innermost = images.permute(1, 2, 3, 0).contiguous()
    seen: Tensor = Windows.apply(innermost, *weight.shape[2:])  # type: ignore[no-untyped-call]
    table = weight.flatten(1) @ seen.flatten(0, 2).flatten(1)
    if bias is not None:
        table = table + bias[:, None]
    rows, columns, samples = seen.shape[3:]
    return table.view(-1, rows, columns, samples).permute(3, 0, 1, 2)


def _is_one(step: int | tuple[int, int]) -> bool:
    return step == 1 or step == (1, 1)


def _pays(images: Tensor, weight: Tensor, rows: int, columns: int) -> bool:
    """Whether a product takes less time; it depends on the shapes of a lane only."""
    kind = images.device.type
    if images.ndim != 4 or kind not in ("cpu", "cuda") or torch.is_autocast_enabled(kind):
        return False
    if images.dtype not in EXACT or weight.dtype != images.dtype:
        return False
    if weight.numel() > LARGEST_FILTERS:
        return False
    (samples, channels, height, width), (height_of, width_of) = images.shape, weight.shape[2:]
    places = (height + 2 * rows - height_of + 1) * (width + 2 * columns - width_of + 1)
    largest = LARGEST if kind == "cpu" else LARGEST_ON_CUDA
    return 0 < samples * places * channels * height_of * width_of <= largest


class Windows(torch.autograd.Function):
    """The windows of images, side by side: a linear function, whose adjoint is `Overlap`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, height: int, width: int) -> Tensor:
        """(c, h, w, b) -> (c, height, width, rows, columns, b)."""
        seen = images.unfold(1, height, 1).unfold(2, width, 1)
        return seen.permute(0, 4, 5, 1, 2, 3).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:  # noqa: ANN401
        """Nothing is needed for the gradient."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """The adjoint."""
        return Overlap.apply(*grads), None, None  # type: ignore[no-untyped-call]


class Overlap(torch.autograd.Function):
    """The sum of windows at their places in the images, the adjoint of `Windows`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(windows: Tensor) -> Tensor:
        """(c, height, width, rows, columns, b) -> (c, h, w, b)."""
        channels, height, width, rows, columns, samples = windows.shape
        bands = windows.new_zeros(channels, height, rows, columns + width - 1, samples)
        for column in range(width):
            bands[:, :, :, column : column + columns].add_(windows[:, :, column])
        images = windows.new_zeros(channels, rows + height - 1, columns + width - 1, samples)
        for row in range(height):
            images[:, row : row + rows].add_(bands[:, row])
        return images

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ANN401
        """Keep the size of a window."""
        ctx.size = inputs[0].shape[1:3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ANN401
        """The adjoint."""
        result: Tensor = Windows.apply(*grads, *ctx.size)  # type: ignore[no-untyped-call]
        return result
