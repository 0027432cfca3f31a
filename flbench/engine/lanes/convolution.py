"""Convolutions of small batches in lanes, as products of matrices.

Under `torch.func.vmap` the convolutions of all lanes are one convolution in groups, for which CPUs
have no fast kernel, and CUDA launches several for each group. Where the batch of a lane is small,
as with LeNet-5 in batches of ten, the product of each lane's filters and the windows of its images
takes less time, backwards too; on CUDA also that of many filters, as in ResNet-18. The samples of a
batch are innermost in memory: a window is then copied in long rows, and max-pooling computes
several samples at once. A linear layer after it gets a copy with samples outermost. The numbers are
those of torch up to the order of float sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

LARGEST = {"cpu": 600_000, "cuda": 4_000_000}
"""Scalars of all windows of a lane's batch; with more, they take too much memory."""
LARGEST_FILTERS = 5_000
"""Scalars of a lane's filters; with more, a convolution in groups is as fast or faster on CPUs."""
EXACT = torch.float32, torch.float64

Pair = tuple[int, int]
"""Of rows, and of columns."""


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
    edges, step = _pair(padding), _pair(stride)
    if edges is None or step is None or groups != 1 or _pair(dilation) != (1, 1):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    if torch.is_autocast_enabled(kind := input.device.type):
        narrow = torch.get_autocast_dtype(kind)
        input, weight = input.to(narrow), weight.to(narrow)
        bias = None if bias is None else bias.to(narrow)
    if not _pays(input, weight, edges, step):
        return torch.conv2d(input, weight, bias, stride, padding)
    if edges != (0, 0):
        rows, columns = edges
        input = F.pad(input, (columns, columns, rows, rows))
    return _product(input, weight, bias, step)


def _pair(option: str | int | tuple[int, ...]) -> Pair | None:
    """An option of a convolution for rows and for columns; None of a name, as "same"."""
    if isinstance(option, str):
        return None
    return (option, option) if isinstance(option, int) else (option[0], option[-1])


def _pays(images: Tensor, weight: Tensor, edges: Pair, step: Pair) -> bool:
    """Whether a product takes less time; it depends on the shapes of a lane only."""
    kind = images.device.type
    if images.ndim != 4 or kind not in LARGEST or images.dtype != weight.dtype:
        return False
    if kind == "cpu" and (images.dtype not in EXACT or weight.numel() > LARGEST_FILTERS):
        return False
    height, width = (have + 2 * edge for have, edge in zip(images.shape[2:], edges, strict=True))
    rows, columns = weight.shape[2:]
    if height < rows or width < columns:
        return False
    places = ((height - rows) // step[0] + 1) * ((width - columns) // step[1] + 1)
    return 0 < len(images) * places * weight[0].numel() <= LARGEST[kind]


def _product(images: Tensor, weight: Tensor, bias: Tensor | None, step: Pair) -> Tensor:
    """The convolution of images, shape (b, c, h, w), without padding; see `convolution`."""
    innermost = images.permute(1, 2, 3, 0).contiguous()
    seen: Tensor = Windows.apply(innermost, tuple(weight.shape[2:]), step)  # type: ignore[no-untyped-call]
    table = weight.flatten(1) @ seen.flatten(0, 2).flatten(1)
    if bias is not None:
        table = table + bias[:, None]
    rows, columns, samples = seen.shape[3:]
    return table.view(-1, rows, columns, samples).permute(3, 0, 1, 2)


class Windows(torch.autograd.Function):
    """The windows of images, side by side: a linear function, whose adjoint is `Overlap`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, size: Pair, step: Pair) -> Tensor:
        """(c, h, w, b) -> (c, *size, rows, columns, b)."""
        seen = images.unfold(1, size[0], step[0]).unfold(2, size[1], step[1])
        return seen.permute(0, 4, 5, 1, 2, 3).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Pair, Pair], output: Tensor) -> None:  # noqa: ANN401
        """Keep the step, and the size of the images."""
        images, _, ctx.step = inputs
        ctx.shape = images.shape[1:3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """The adjoint."""
        return Overlap.apply(*grads, tuple(ctx.shape), ctx.step), None, None  # type: ignore[no-untyped-call]


class Overlap(torch.autograd.Function):
    """The sum of windows at their places in the images, the adjoint of `Windows`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(windows: Tensor, shape: Pair, step: Pair) -> Tensor:
        """(c, height, width, rows, columns, b) -> (c, *shape, b)."""
        channels, height, width, rows, columns, samples = windows.shape
        bands = windows.new_zeros(channels, height, rows, shape[1], samples)
        for column in range(width):
            bands[:, :, :, _steps(column, step[1], columns)].add_(windows[:, :, column])
        images = windows.new_zeros(channels, *shape, samples)
        for row in range(height):
            images[:, _steps(row, step[0], rows)].add_(bands[:, row])
        return images

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Pair, Pair], output: Tensor) -> None:  # noqa: ANN401
        """Keep the step, and the size of a window."""
        windows, _, ctx.step = inputs
        ctx.size = windows.shape[1:3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """The adjoint."""
        return Windows.apply(*grads, tuple(ctx.size), ctx.step), None, None  # type: ignore[no-untyped-call]


def _steps(first: int, step: int, count: int) -> slice:
    """`count` positions, from `first` on."""
    return slice(first, first + step * (count - 1) + 1, step)
