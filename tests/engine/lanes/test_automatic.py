"""Which executor `auto` stands for: the network, the batch and the device alone decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from toy import Play

from flbench.core.networks import SeveralNetworks
from flbench.engine.lanes.automatic import automatic
from flbench.engine.options import EngineOptions
from flbench.models import lenet5, logistic_regression, mlp, normed_cnn
from flbench_benchmarks.networks import fedopt_cnn

CPU = torch.device("cpu")
GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def on_cpu(net: nn.Module, shape: tuple[int, ...] = GREY, batch: int = 10) -> str:
    """Which executor trains a network on a CPU."""
    return automatic(net, shape, batch, CPU, "32-true")


def frozen(net: nn.Module) -> nn.Module:
    return net.requires_grad_(False)


@pytest.mark.parametrize(
    ("net", "batch", "expected"),
    [
        (mlp.build(GREY, 10), 10, "vectorised"),
        (mlp.build(GREY, 10), 600, "vectorised"),
        (mlp.build(GREY, 10, hidden=628), 10, "vectorised"),  # 499,270 parameters
        (mlp.build(GREY, 10, hidden=629), 10, "sequential"),  # 500,065
        (logistic_regression.build(GREY, 10), 1, "vectorised"),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.Dropout(0.5)), 10, "vectorised"),
        (SeveralNetworks([mlp.build(GREY, 10), mlp.build(GREY, 10, hidden=8)]), 10, "vectorised"),
        (mlp.build(GREY, 10, norm=True), 10, "sequential"),
        (nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8)), 10, "sequential"),
        (nn.Sequential(nn.Linear(784, 4), nn.LayerNorm(4)), 10, "sequential"),
    ],
)
def test_on_a_cpu_networks_of_linear_layers_are_for_lanes(
    net: nn.Module, batch: int, expected: str
) -> None:
    assert on_cpu(net, batch=batch) == expected


@pytest.mark.parametrize(
    ("build", "shape", "batch", "expected"),
    [
        (lenet5.build, GREY, 10, "vectorised"),
        (lenet5.build, GREY, 11, "sequential"),
        (lenet5.build, GREY, 32, "sequential"),
        (lenet5.build, COLOUR, 2, "vectorised"),
        (lenet5.build, COLOUR, 10, "sequential"),
        (fedopt_cnn.build, GREY, 10, "sequential"),
        (normed_cnn.build, (1, 8, 8), 4, "sequential"),
    ],
)
def test_so_are_small_convolutions_of_few_and_small_images(
    build: Callable[..., nn.Module], shape: tuple[int, ...], batch: int, expected: str
) -> None:
    """28 x 28 x 10 = 7,840 scalars are few; 32 filters of 64 channels, 3 x 3, are no small ones."""
    assert on_cpu(build(shape, 10), shape, batch) == expected


def test_on_cuda_all_networks_are_that_are_not_large() -> None:
    """From 10,000 to 2,000 features there are 20,002,000 parameters; what is frozen is none."""

    def on(device: str, net: nn.Module, precision: str = "32-true") -> str:
        return automatic(net, COLOUR, 32, torch.device(device), precision)

    with torch.device("meta"):
        large, less = nn.Linear(10_000, 2_000), nn.Linear(10_000, 1_999)
    assert on("cuda", less) == on("cuda", less, "bf16-mixed") == "vectorised"
    assert on("cuda", large) == "sequential"
    assert on("cuda", frozen(large)) == "vectorised"
    assert on("cuda", normed_cnn.build(COLOUR, 10)) == "vectorised"
    assert on("mps", less) == "sequential"


@pytest.mark.parametrize(
    ("engine", "net", "expected"),
    [
        ({}, None, "vectorised"),
        ({"executor": "sequential"}, None, "sequential"),
        ({"precision": "bf16-mixed"}, None, "sequential"),
        ({}, lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), "sequential"),
    ],
)
def test_a_run_takes_it_and_its_result_names_it(
    play_toy: Play, engine: dict[str, Any], net: Any, expected: str
) -> None:
    """Its models are those of the other executor to rounding."""
    played = play_toy("fedavg", engine=EngineOptions(accelerator="cpu", **engine), net=net)
    assert played.result.environment["executor"] == expected
    assert played.said == []
    asked = EngineOptions(**{"accelerator": "cpu", **engine, "executor": "sequential"})
    other = play_toy("fedavg", engine=asked, net=net)
    torch.testing.assert_close(played.state.models, other.state.models, rtol=1e-4, atol=1e-6)
    assert played.marks == other.marks
