"""Which task a metric judges: a mark on its factory; without one it judges classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flbench.tasks import TaskName

T = TypeVar("T", bound=Callable[..., Any])
MARK = "judges"


def judges(task: TaskName) -> Callable[[T], T]:
    """Decorate a factory of metrics: what is predicted where it is asked for.

    Example:
        >>> task_judged(judges("numbers")(lambda outputs: None))
        'numbers'
    """

    def marked(factory: T) -> T:
        setattr(factory, MARK, task)
        return factory

    return marked


def task_judged(factory: object) -> TaskName:
    """The task that the metrics of a factory judge."""
    found: TaskName = getattr(factory, MARK, "classes")
    return found
