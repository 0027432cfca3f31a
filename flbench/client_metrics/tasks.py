"""Which task a metric judges, and how it is computed for many clients at once: marks on a factory.

A factory without marks judges classes, client by client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from flbench.tasks import TaskName

T = TypeVar("T", bound=Callable[..., Any])
AtOnce = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Outputs and targets of n clients, one client after the other, (m, ...), and the number of samples
of each, (n,) -> the value of each client, (n,), float64; NaN = undefined."""
JUDGES, AT_ONCE = "judges", "at_once"


def judges(task: TaskName, at_once: AtOnce | None = None) -> Callable[[T], T]:
    """Decorate a factory of metrics.

    Args:
        task: what is predicted where it is asked for.
        at_once: gives the values of many clients, those that its metric gives of each.

    Example:
        >>> task_judged(judges("numbers")(lambda outputs: None))
        'numbers'
    """

    def marked(factory: T) -> T:
        setattr(factory, JUDGES, task)
        setattr(factory, AT_ONCE, at_once)
        return factory

    return marked


def task_judged(factory: object) -> TaskName:
    """The task that the metrics of a factory judge."""
    found: TaskName = getattr(factory, JUDGES, "classes")
    return found


def computed_at_once(factory: object) -> AtOnce | None:
    """How the metrics of a factory are computed for many clients; None = client by client."""
    found: AtOnce | None = getattr(factory, AT_ONCE, None)
    return found
