"""Mean average precision of labels by hand, and beside torchmetrics and scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score
from torchmetrics.classification import MultilabelAveragePrecision

from flbench.client_metrics.multilabel import (
    average_precisions,
    mean_average_precision,
    micro_f1,
)
from flbench.client_metrics.tasks import computed_at_once


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


@pytest.mark.parametrize("factory", [mean_average_precision, micro_f1])
def test_many_clients_at_once_are_what_each_is_alone(factory: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    p = (torch.rand(12, 3, generator=generator, dtype=torch.float64) * 5).round() / 5
    y = (torch.rand(12, 3, generator=generator) < 0.4).long()
    y[9:], p[9:] = 0, 0.1  # the last client has no label, and none is predicted
    lengths = torch.tensor([5, 0, 4, 3])
    at_once = computed_at_once(factory)
    assert at_once is not None
    pairs = zip(p.split(lengths.tolist()), y.split(lengths.tolist()), strict=True)
    alone = [of(factory(3), *pair) if len(pair[0]) else math.nan for pair in pairs]
    assert at_once(p, y, lengths).tolist() == pytest.approx(alone, nan_ok=True)
