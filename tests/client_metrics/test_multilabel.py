"""Mean average precision of labels by hand, and beside torchmetrics and scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import average_precision_score
from torchmetrics.classification import MultilabelAveragePrecision

from flbench.client_metrics.multilabel import (
    average_precisions,
    mean_average_precision,
    micro_f1,
)


def of(metric: torch.nn.Module, p: torch.Tensor, y: torch.Tensor) -> float:
    metric.update(p, y)
    return float(metric.compute())


def test_by_hand_and_labels_without_a_positive_are_left_out() -> None:
    p = torch.tensor([[0.9, 0.5, 0.1], [0.8, 0.4, 0.2], [0.1, 0.6, 0.3]])
    y = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]])
    # of the first label 1 and 2 / 3, of the second 1 / 2; nobody has the third
    first, second, third = average_precisions(p, y).tolist()
    assert (first, second) == pytest.approx(((1 + 2 / 3) / 2, 1 / 2))
    assert math.isnan(third)
    assert of(mean_average_precision(3), p, y) == pytest.approx((5 / 6 + 1 / 2) / 2)


def test_equal_probabilities_have_the_precision_of_all_of_them() -> None:
    p, y = torch.tensor([[0.5], [0.5], [0.5], [0.1]]), torch.tensor([[1], [0], [0], [1]])
    assert average_precisions(p, y).tolist() == pytest.approx([(1 / 3 + 2 / 4) / 2])


def test_a_client_without_a_label_has_none() -> None:
    assert math.isnan(of(mean_average_precision(2), torch.rand(3, 2), torch.zeros(3, 2).long()))


def test_it_agrees_with_others() -> None:
    generator = torch.Generator().manual_seed(0)
    p = (torch.rand(60, 4, generator=generator) * 20).round() / 20  # many are equal
    y = (torch.rand(60, 4, generator=generator) < 0.3).long()
    metric = mean_average_precision(4)
    metric.update(p[:7].double(), y[:7])
    metric.update(p[7:].double(), y[7:])
    found = float(metric.compute())
    assert found == pytest.approx(average_precision_score(y, p), abs=1e-9)
    assert found == pytest.approx(of(MultilabelAveragePrecision(4), p, y), abs=1e-5)


def test_f1_of_all_labels_by_hand() -> None:
    p = torch.tensor([[0.9, 0.6], [0.2, 0.4]])
    y = torch.tensor([[1, 0], [0, 1]])
    assert of(micro_f1(2), p, y) == 2 * 1 / (2 * 1 + 1 + 1)
