"""Methods made by name, and what their hooks are given, written out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flbench as fl
from flbench.plugin.registry import find, load_entry


def create(name: str, **settings: object) -> Any:
    """A method: create("qsgd", levels=2)."""
    return load_entry(find("methods", name))(**settings)


def message(update: list[float], **fields: Any) -> fl.Message:
    """Client 0 has moved from (1, 1, ...) by an update."""
    start = torch.ones(len(update))
    mask = torch.ones(len(update), dtype=torch.bool)
    return fl.Message(0, start, start + torch.tensor(update), mask, **fields)


class Drawn:
    """A context whose clients draw fixed numbers."""

    round, clients = 1, 4

    def __init__(self, *numbers: float) -> None:
        self.numbers = np.array(numbers, dtype="float32")

    def rng(self, *address: object, client: int) -> Drawn:
        self.client = client
        return self

    def random(self, size: int = 0, dtype: str = "") -> Any:
        return self.numbers if size else self.numbers[self.client]

    standard_normal = random


def batch(logits: list[list[float]], labels: list[int], **received: torch.Tensor) -> fl.Batch:
    """Samples whose logits are given."""
    module = SimpleNamespace(received=received)
    y, x = torch.tensor(labels), torch.zeros(len(labels), 1)
    return fl.Batch(module, x, y, torch.tensor(logits))  # type: ignore[arg-type]


def wrapped(hook: Any, answer: Any) -> Any:
    """What a hook that wraps others, called, makes of their answer."""
    next(hook)
    with pytest.raises(StopIteration) as end:
        hook.send(answer)
    return end.value.value


THREE = fl.ParameterLayout(
    (
        fl.Slot("net.body.weight", (2,), 0, 2, "parameter", head=False),
        fl.Slot("net.head.weight", (1,), 2, 3, "parameter", head=True),
    ),
    3,
    0,
)
"""A model of three scalars: two of the body, one of the head."""


class Constant(nn.Module):
    """A network whose logits are its parameters, whatever the sample."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def toy_upload(params: list[list[float]], losses: list[float]) -> fl.Upload:
    """Two clients' models."""
    n = len(params)
    table = torch.tensor(params)[:, None]
    loss = torch.tensor(losses, dtype=torch.float64)
    return fl.Upload(
        ids=torch.arange(n),
        params=table,
        active=torch.ones(n, 1, dtype=torch.bool),
        samples=torch.tensor([10] * n),
        steps=torch.ones(n, dtype=torch.int64),
        loss=loss,
        loss_start=loss[:, None],
        loss_end=loss[:, None],
        chosen=torch.zeros(n, dtype=torch.int64),
    )
