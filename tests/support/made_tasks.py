"""Results of other tasks than classes, made from made results of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flbench.metrics import metrics_for
from flbench.results.schema import Result
from flbench.tasks import TASKS, TaskName

Turn = Callable[[float], float]


def as_task(result: Result, task: TaskName, turn: Turn, **fields: Any) -> Result:
    """A result whose accuracies are headlines of another task: `turn` of each of them.

    Fields of the result may be set, such as `curves`.
    """
    to = TASKS[task]
    table = {**result.model_dump(), "task": task}
    for name in ("clients", "unseen", "own"):
        if (part := table[name]) is not None:
            for right, values in (("correct", "values"), ("correct_tuned", "values_tuned")):
                if (found := part.pop(right, None)) is not None:
                    pairs = zip(found, part["test"], strict=True)
                    part[values] = [turn(one / of) if of else None for one, of in pairs]
    known = {one.name for one in metrics_for(task)}
    table["summary"] = {
        to.named(name): turn(value) if is_headline(name) and value is not None else value
        for name, value in table["summary"].items()
        if to.named(name) in known
    }
    table["curves"] = {
        to.named(name): [v if v is None else turn(v) for v in curve] if is_headline(name) else curve
        for name, curve in table["curves"].items()
    }
    return Result.model_validate({**table, **fields})


def is_headline(name: str) -> bool:
    """Whether a number of a summary, or of a curve, is an accuracy, and no spread of them."""
    return "accuracy" in name and not name.endswith(("_std_clients", "_decile_gap"))


def as_numbers(result: Result, **fields: Any) -> Result:
    """Its mirror: every accuracy a is a root mean square error of 1 - a, for which low is good."""
    return as_task(result, "numbers", lambda accuracy: 1 - accuracy, **fields)


def as_labels(result: Result, **fields: Any) -> Result:
    """Every accuracy is a mean average precision."""
    return as_task(result, "labels", lambda accuracy: accuracy, **fields)
