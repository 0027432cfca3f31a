"""Convolutions of lanes as products: the numbers of torch's own, in every derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mentions import mention
from simulated_device import DEVICE, simulated_device
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from flbench.engine.lanes import convolution as lane_convolution
from flbench.engine.lanes.convolution import LaneConvolutions, Overlap, Windows, convolution

LANES, SAMPLES = 3, 4
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def tensors(channels: int, outputs: int, size: int, kernel: tuple[int, int]) -> list[Tensor]:
    """Filters, biases and images of some lanes."""
    draw = torch.Generator().manual_seed(1)
    shapes = (
        (LANES, outputs, channels, *kernel),
        (LANES, outputs),
        (LANES, SAMPLES, channels, size, size + 1),
    )
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def both(function: Callable[..., Any], *inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What lanes compute by torch's convolution, and by the product."""
    lanes = vmap(function)
    plain = lanes(*inputs)
    with LaneConvolutions():
        product = lanes(*inputs)
    return list(plain), list(product)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of images that are convolved by products."""
    seen: list[tuple[int, ...]] = []
    product = lane_convolution._product

    def counted(images: Tensor, *others: Any) -> Tensor:
        seen.append(tuple(images.shape))
        return product(images, *others)

    monkeypatch.setattr(lane_convolution, "_product", counted)
    return seen


def test_windows_of_two_images_and_their_sum() -> None:
    images = torch.tensor([[[[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]]])  # samples innermost
    found = Windows.apply(images, (1, 2), (1, 1))  # type: ignore[no-untyped-call]
    assert found.flatten(0, 2).flatten(1).tolist() == [[1, 4, 2, 5], [2, 5, 3, 6]]
    again = Overlap.apply(found, (1, 3), (1, 1))  # type: ignore[no-untyped-call]
    assert again.tolist() == [[[[1, 4], [4, 10], [3, 6]]]]


def test_windows_two_columns_apart_leave_the_last_column_out() -> None:
    images = torch.tensor([[[[1.0], [2.0], [3.0], [4.0]]]])
    found = Windows.apply(images, (1, 1), (1, 2))  # type: ignore[no-untyped-call]
    assert found.flatten().tolist() == [1, 3]
    again = Overlap.apply(found, (1, 4), (1, 2))  # type: ignore[no-untyped-call]
    assert again.flatten().tolist() == [1, 0, 3, 0]


def padded(padding: int | tuple[int, ...]) -> tuple[int, int]:
    rows, *others = (padding,) if isinstance(padding, int) else padding
    columns = others[0] if others else rows
    return 6 + 2 * rows, 7 + 2 * columns


@pytest.mark.parametrize("stride", [1, 2, (3, 1)])
@pytest.mark.parametrize("padding", [0, 2, (1, 0), (1,)])
@pytest.mark.parametrize("kernel", [(3, 3), (1, 2), (5, 4)])
def test_gradients_of_filters_biases_and_images_are_those_of_torch(
    kernel: tuple[int, int],
    padding: int | tuple[int, ...],
    stride: int | tuple[int, ...],
    products: list[tuple[int, ...]],
) -> None:
    def loss(weight: Tensor, bias: Tensor, images: Tensor) -> Tensor:
        return F.conv2d(images, weight, bias, stride, padding).sin().sum()  # type: ignore[arg-type]

    plain, product = both(grad(loss, argnums=(0, 1, 2)), *tensors(2, 5, 6, kernel))
    assert products == [(SAMPLES, 2, *padded(padding))]
    torch.testing.assert_close(product, plain, rtol=1e-12, atol=1e-12)


def test_second_derivatives_are_those_of_torch(products: list[tuple[int, ...]]) -> None:
    def loss(weight: Tensor, bias: Tensor, images: Tensor) -> Tensor:
        hidden = F.conv2d(images, weight, bias).tanh()
        return F.conv2d(hidden, weight.transpose(0, 1), stride=2).square().sum()

    def of_gradients(weight: Tensor, bias: Tensor, images: Tensor) -> Tensor:
        gradients = grad(loss, argnums=(0, 1, 2))(weight, bias, images)
        return torch.stack([one.sin().sum() for one in gradients]).sum()

    plain, product = both(grad(of_gradients, argnums=(0, 1, 2)), *tensors(2, 3, 6, (2, 3)))
    assert products
    torch.testing.assert_close(product, plain, rtol=1e-10, atol=1e-10)


def test_pooling_after_a_product_takes_the_same_of_equal_numbers() -> None:
    def pooled(weight: Tensor, bias: Tensor, images: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(F.conv2d(images, weight, bias)), 2, 2)

    def gradient(weight: Tensor, bias: Tensor, images: Tensor) -> Tensor:
        by_place = grad(lambda *args: (pooled(*args) * marks).sum(), argnums=2)
        marks = torch.arange(16.0, dtype=torch.float64).view(4, 1, 2, 2)
        found: Tensor = by_place(weight, bias, images)
        return found

    weight, bias, images = tensors(1, 1, 4, (1, 1))
    equal = [torch.ones_like(weight), torch.zeros_like(bias), images.sign()]
    for function in (pooled, gradient):
        plain, product = both(function, *equal)
        assert all(map(torch.equal, plain, product))


def test_samples_stay_innermost_in_pooling_for_its_speed() -> None:
    weight, _, images = (tensor[0] for tensor in tensors(2, 3, 6, (3, 3)))
    with LaneConvolutions():
        maps = convolution(images, weight)
        pooled = F.max_pool2d(maps, 2)
    assert maps.stride(0) == pooled.stride(0) == 1
    assert torch.equal(pooled, F.max_pool2d(maps, 2))


def test_a_linear_layer_gets_samples_outermost_for_its_speed_backwards() -> None:
    weight, bias, images = (tensor[0] for tensor in tensors(2, 3, 6, (3, 3)))
    head = torch.ones(2, 3 * 4 * 5, dtype=weight.dtype)
    with LaneConvolutions():
        features = convolution(images, weight, bias).flatten(1)
        assert features.stride(0) == 1
        found = F.linear(features.requires_grad_(), head)
    (gradient,) = torch.autograd.grad(found.sum(), features)
    assert gradient.is_contiguous()
    torch.testing.assert_close(found, F.linear(features, head))


def test_pooling_of_one_image_is_left_to_torch() -> None:
    image = torch.arange(30.0).view(3, 5, 2).permute(2, 0, 1)  # channels innermost
    with LaneConvolutions():
        assert F.max_pool2d(image, 2).tolist() == [[[12, 16]], [[13, 17]]]


def test_pooling_that_gives_indices_gives_those_of_each_plane() -> None:
    def pooled(weight: Tensor, bias: Tensor, images: Tensor) -> Tensor:
        maps = F.conv2d(images, weight, bias)
        return F.max_pool2d(maps, 2, return_indices=True)[1]

    plain, product = both(pooled, *tensors(2, 3, 6, (3, 3)))
    assert all(map(torch.equal, plain, product))


@pytest.mark.parametrize(
    "options",
    [
        {"dilation": 2},
        {"groups": 2},
        {"padding": "same"},
    ],
)
def test_other_convolutions_are_left_to_torch(
    options: dict[str, Any], products: list[tuple[int, ...]]
) -> None:
    def called(weight: Tensor, bias: Tensor, images: Tensor) -> Tensor:
        weight = weight[:, : images.shape[1] // options.get("groups", 1)]
        return F.conv2d(images, weight, bias, **options)

    plain, product = both(called, *tensors(2, 4, 6, (3, 3)))
    assert all(map(torch.equal, plain, product))
    assert not products


def test_a_filter_larger_than_the_image_is_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match=mention("greater", "actual")):
        convolution(torch.ones(2, 1, 2, 5), torch.ones(1, 1, 3, 3))


@pytest.mark.parametrize(("samples", "outputs", "count"), [(10, 5, 1), (11, 5, 0), (10, 6, 0)])
def test_what_is_larger_than_pays_is_left_to_torch(
    samples: int,
    outputs: int,
    count: int,
    products: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(lane_convolution.LARGEST, "cpu", 10 * 2 * 9 * 16)
    monkeypatch.setattr(lane_convolution, "LARGEST_FILTERS", 5 * 2 * 9)
    convolution(torch.ones(samples, 2, 4, 4), torch.ones(outputs, 2, 3, 3), padding=1)
    assert len(products) == count


def test_on_cuda_filters_may_be_many(
    products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_convolution, "LARGEST_FILTERS", 0)
    images, weight = torch.ones(4, 2, 6, 6), torch.ones(5, 2, 3, 3)
    with simulated_device():
        expected = convolution(images, weight, stride=2)
        assert not products
        found = convolution(images.to(DEVICE), weight.to(DEVICE), stride=2)
        assert torch.equal(found.cpu(), expected)
        assert len(products) == 1
        monkeypatch.setitem(lane_convolution.LARGEST, "cuda", 4 * 4 * 2 * 9 - 1)
        convolution(images.to(DEVICE), weight.to(DEVICE), stride=2)
        assert len(products) == 1


def test_on_cuda_products_are_of_the_numbers_of_autocast(products: list[tuple[int, ...]]) -> None:
    draw = torch.Generator().manual_seed(0)
    images, weight = (
        torch.randn(4, 2, 6, 6, generator=draw),
        torch.randn(5, 2, 3, 3, generator=draw),
    )
    bias = torch.randn(5, generator=draw)
    with simulated_device():
        inputs = [one.to(DEVICE) for one in (images, weight, bias)]
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            found = convolution(*inputs)
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", torch.float16)
        assert len(products) == 1
        assert found.dtype is torch.bfloat16
        expected = F.conv2d(*(one.bfloat16().float() for one in (images, weight, bias)))
        torch.testing.assert_close(found.cpu().float(), expected, rtol=0.02, atol=0.02)


def test_autocast_and_single_images_are_left_to_torch_on_cpus(
    products: list[tuple[int, ...]],
) -> None:
    weight, images = torch.ones(5, 2, 3, 3), torch.ones(4, 2, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert convolution(images, weight).dtype == torch.bfloat16
    assert convolution(images[0], weight).shape == (5, 4, 4)
    assert convolution(images.bfloat16(), weight.bfloat16()).dtype == torch.bfloat16
    assert not products


def test_batchnorm_in_bfloat16_is_computed_in_float32() -> None:
    """Lanes of it take inputs and weights of one type; a single model takes both."""
    x = torch.randn(LANES, SAMPLES, 2, 3, 3).bfloat16()
    weight, bias = torch.randn(LANES, 2), torch.randn(LANES, 2)

    def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, weight, bias, training=True)

    with LaneConvolutions():
        found = vmap(normed)(x, weight, bias)
    assert found.dtype is torch.bfloat16
    expected = torch.stack([normed(*one) for one in zip(x, weight, bias, strict=True)])
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
