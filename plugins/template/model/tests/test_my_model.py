"""The model is found by its name, gives logits, and learns."""

import torch
from flbench_my_model import build

from flbench.testing import try_out


def test_it_gives_logits() -> None:
    assert build((1, 8, 8), classes=10, width=5)(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_it_learns() -> None:
    loss = try_out(model="my-model", rounds=5).curves["loss"]
    assert loss[-1] < loss[0]
