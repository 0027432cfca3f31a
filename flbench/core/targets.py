"""Targets: how the samples of a run say what is to be predicted of them, and the loss of outputs.

Within a run the type of targets tells the task: int64 are classes, shape (m,), or the next tokens
of a text, (m, T); float32 are numbers in deviations of all training targets, (m, k); int8 say of
each label whether a sample has it, (m, C). Networks have an output for each class, number or label.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flbench.tasks import TaskName

NO_CLASS = -100
"""In place of a class or label: there is none, and the loss takes no account of it."""
TASK_OF: dict[torch.dtype, TaskName] = {torch.float32: "numbers", torch.int8: "labels"}


def task_of(y: Tensor) -> TaskName:
    """What targets are of.

    Example:
        >>> task_of(torch.zeros(2).long()), task_of(torch.zeros(2, 1))
        ('classes', 'numbers')
    """
    return TASK_OF.get(y.dtype, "classes")


def is_text(y: Tensor) -> bool:
    """Whether targets are the next tokens of texts."""
    return task_of(y) == "classes" and y.dim() > 1


def tokens_of(y: Tensor) -> int:
    """Predictions for each sample: of a text its tokens, of all others one."""
    return y.shape[1] if is_text(y) else 1


def no_target(y: Tensor) -> float:
    """What stands in targets like these for none."""
    return torch.nan if y.is_floating_point() else NO_CLASS


def losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Loss of each prediction: cross-entropy in nats, of numbers the squared error.

    Of several numbers or labels it is the mean over those that there are.

    Args:
        outputs: logits, or numbers, shape (b, C); for text (b, T, C).
        y: classes, shape (b,), next tokens, (b, T), or numbers or labels, (b, C).

    Returns:
        Shape (b,), for text (b, T).
    """
    if task_of(y) == "classes":
        return F.cross_entropy(outputs.movedim(-1, 1), y, reduction="none")
    each, known = _of_columns(outputs, y)
    return each.sum(dim=-1) / known.sum(dim=-1).clamp(min=1)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The loss of a task, a scalar: mean cross-entropy in nats; of numbers, mean squared error.

    The mean is over samples, for text over tokens, and over labels or numbers. The squared error
    is the cross-entropy of a normal distribution of fixed width, up to a constant and a factor.

    Args:
        logits: shape (b, C), or (b, T, C); numbers themselves, where numbers are predicted.
        y: classes, shape (b,), next tokens, (b, T), or numbers or labels, (b, C).
    """
    if task_of(y) == "classes":
        return F.cross_entropy(logits if logits.dim() == 2 else logits.movedim(-1, 1), y)
    each, known = _of_columns(logits, y)
    return each.sum() / known.sum()


def _of_columns(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each number or label, 0 where there is none, and whether there is one: (b, C)."""
    if y.is_floating_point():
        known = ~y.isnan()
        return (outputs - torch.where(known, y.to(outputs.dtype), outputs)).square(), known
    known = y >= 0
    wanted = y.clamp(min=0).to(outputs.dtype)
    each = F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
    return torch.where(known, each, 0), known
