"""Errors and R² of numbers by hand, and beside torchmetrics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError, R2Score

from flbench.client_metrics.regression import mae, r2, rmse
from flbench.client_metrics.tasks import computed_at_once, task_judged


def value(metric: torch.nn.Module, outputs: torch.Tensor, y: torch.Tensor, parts: int = 1) -> float:
    for some, those in zip(outputs.chunk(parts), y.chunk(parts), strict=True):
        metric.update(some, those)
    return float(metric.compute())


def test_one_number_by_hand() -> None:
    outputs, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 5.0])  # errors 1, 0, 2
    assert value(rmse(1), outputs, y) == pytest.approx(math.sqrt(5 / 3))
    assert value(mae(1), outputs, y) == 1
    # mean 3: squares of 1, 1, 2 are 6
    assert value(r2(1), outputs, y) == pytest.approx(1 - 5 / 6)


def test_several_numbers_by_hand() -> None:
    outputs = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    y = torch.tensor([[1.0, 3.0], [-1.0, 3.0]])
    assert value(rmse(2), outputs, y) == pytest.approx(math.sqrt((1 + 1 + 9 + 9) / 4))
    assert value(r2(2), outputs, y) == 0, "of the second number all are equal: it has no R²"


def test_r2_is_undefined_where_targets_agree() -> None:
    assert math.isnan(value(r2(1), torch.tensor([1.0, 2.0]), torch.tensor([4.0, 4.0])))
    assert math.isnan(value(r2(1), torch.tensor([1.0]), torch.tensor([4.0])))


def test_they_agree_with_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, y = (torch.randn(40, 3, generator=generator) for _ in range(2))
    pairs = (
        (rmse(3), MeanSquaredError(squared=False)),
        (mae(3), MeanAbsoluteError()),
        (r2(3), R2Score()),
    )
    for own, other in pairs:
        expected = value(other, outputs, y)
        assert value(own, outputs, y, parts=4) == pytest.approx(expected, rel=1e-5)
        own.reset()
        assert value(own, outputs, y) == pytest.approx(expected, rel=1e-5)
    assert [one(1).higher_is_better for one in (rmse, mae, r2)] == [False, False, True]
    assert {task_judged(one) for one in (rmse, mae, r2)} == {"numbers"}


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("factory", [rmse, mae, r2])
def test_many_clients_at_once_are_what_each_is_alone(factory: Any, outputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    found, y = (torch.randn(9, outputs, generator=generator) for _ in range(2))
    y[6:] = 1.5  # of the last client all are equal
    lengths = torch.tensor([4, 2, 0, 3])
    at_once = computed_at_once(factory)
    assert at_once is not None
    values = at_once(found, y, lengths).tolist()
    pairs = zip(found.split(lengths.tolist()), y.split(lengths.tolist()), strict=True)
    alone = [value(factory(outputs), *pair) if len(pair[0]) else math.nan for pair in pairs]
    assert values == pytest.approx(alone, nan_ok=True)
