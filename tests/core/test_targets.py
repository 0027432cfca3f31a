"""Targets of each task, and the loss of outputs, by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from flbench.core.client_module import ClientModule
from flbench.core.local_training import LocalTraining
from flbench.core.targets import (
    cross_entropy,
    is_text,
    losses,
    no_target,
    task_of,
    tokens_of,
)

NUMBERS = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
LABELS = torch.tensor([[1, 0], [0, 1]], dtype=torch.int8)


def test_the_type_tells_the_task() -> None:
    classes, tokens = torch.zeros(3).long(), torch.zeros(3, 5).long()
    assert [task_of(y) for y in (classes, tokens, NUMBERS, LABELS)] == [
        *("classes", "classes", "numbers", "labels"),
    ]
    assert [is_text(y) for y in (classes, tokens, NUMBERS, LABELS)] == [False, True, False, False]
    assert [tokens_of(y) for y in (classes, tokens, NUMBERS, LABELS)] == [1, 5, 1, 1]


def test_squared_errors_by_hand() -> None:
    outputs = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert losses(outputs, NUMBERS).tolist() == [(1 + 4) / 2, (0 + 4) / 2]
    assert float(cross_entropy(outputs, NUMBERS)) == (1 + 4 + 0 + 4) / 4


def test_cross_entropies_of_labels_by_hand() -> None:
    outputs = torch.tensor([[0.0, math.log(3)], [math.log(3), 0.0]])  # p = 1/2, 3/4
    first = -(math.log(1 / 2) + math.log(1 / 4)) / 2
    second = -(math.log(1 / 4) + math.log(1 / 2)) / 2
    assert losses(outputs, LABELS).tolist() == pytest.approx([first, second])
    assert float(cross_entropy(outputs, LABELS)) == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("y", [NUMBERS, LABELS])
def test_a_missing_target_counts_for_nothing(y: torch.Tensor) -> None:
    outputs = torch.tensor([[0.5, -1.0], [3.0, 4.0]], requires_grad=True)
    filled = y.clone()
    filled[1] = no_target(y)
    (slope,) = torch.autograd.grad(cross_entropy(outputs, filled), outputs)
    of_all, of_first = (
        cross_entropy(outputs, filled).item(),
        cross_entropy(outputs[:1], y[:1]).item(),
    )
    assert of_all == pytest.approx(of_first)
    assert slope[1].tolist() == [0, 0]
    assert bool((slope[0] != 0).all())
    assert losses(outputs, filled)[1] == 0


def test_classes_have_the_loss_of_torch_bit_for_bit() -> None:
    logits, y = torch.randn(7, 4), torch.arange(7) % 4
    assert torch.equal(cross_entropy(logits, y), F.cross_entropy(logits, y))
    assert torch.equal(losses(logits, y), F.cross_entropy(logits, y, reduction="none"))
    text, tokens = torch.randn(2, 3, 5), torch.arange(6).view(2, 3) % 5
    assert torch.equal(cross_entropy(text, tokens), F.cross_entropy(text.movedim(-1, 1), tokens))


def test_nothing_is_right_or_wrong_of_numbers_and_labels() -> None:
    module = ClientModule(torch.nn.Linear(2, 2), LocalTraining(epochs=1, batch_size=1, lr=0.1))
    outputs = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert module.measure(outputs, NUMBERS).tolist() == [[2.5, 0, 1], [2, 0, 1]]
    assert module.measure(outputs, LABELS)[:, 1:].tolist() == [[0, 1], [0, 1]]
    classes = module.measure(outputs, torch.tensor([0, 0]))
    assert classes[:, 1:].tolist() == [[1, 1], [0, 1]]
