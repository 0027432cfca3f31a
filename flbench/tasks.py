"""Tasks: what the samples of a data set are labelled with, and the number that ranks methods on it.

A task is named by the data set (`Dataset.task`) and kept by the result (`task`; a result without
one is of `classes`). Whatever ranks, draws or compares results asks the task for the metric and
for the direction, and never names a metric itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


TaskName = Literal["classes", "numbers", "labels"]
NumberOrNumbers = TypeVar("NumberOrNumbers", float, "npt.NDArray[np.float64]")
"""One headline, or an array of them."""


@dataclass(frozen=True)
class Task:
    """What is predicted, and how it is judged.

    Attributes:
        name: as a data set and a result file have it.
        headline: the metric that ranks methods: its name in a summary, and of its curve.
        heading: of its column, without the unit.
        higher_is_better: whether a larger number is the better one.
        doc: one line for the documentation.
        limits: the least and the greatest number that the headline can be.
        beside: metrics of clients that are reported beside the headline, unasked.
    """

    name: TaskName
    headline: str
    heading: str
    higher_is_better: bool
    doc: str
    limits: tuple[float, float] = (0.0, 1.0)
    beside: tuple[str, ...] = ()

    def gain(self, ours: NumberOrNumbers, theirs: NumberOrNumbers) -> NumberOrNumbers:
        """By how much `ours` is better than `theirs`, in units of the headline; negative = worse.

        Example:
            >>> round(TASKS["numbers"].gain(0.5, 0.75), 2)
            0.25
        """
        return ours - theirs if self.higher_is_better else theirs - ours

    def named(self, metric: str) -> str:
        """The name here of a metric or a curve of classes: with this headline for `accuracy`.

        Example:
            >>> TASKS["numbers"].named("unseen_accuracy_tuned")
            'unseen_rmse_tuned'
        """
        return metric.replace("accuracy", self.headline)

    def score(self, value: NumberOrNumbers) -> NumberOrNumbers:
        """A headline so that the higher is the better, whatever the task; sorts by `-score`.

        Example:
            >>> TASKS["classes"].score(0.5), TASKS["numbers"].score(0.5)
            (0.5, -0.5)
        """
        return value if self.higher_is_better else -value

    @property
    def best(self) -> float:
        """The best headline that there can be: an accuracy of 1, an error of 0."""
        return self.limits[1] if self.higher_is_better else self.limits[0]

    @property
    def is_share(self) -> bool:
        """Whether the headline is from 0 to 1, so that it may be shown in per cent."""
        return self.limits == (0.0, 1.0)

    @property
    def worst_percentile(self) -> int:
        """The percentile over clients that the worst tenth of them do not reach."""
        return 10 if self.higher_is_better else 90


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task("classes", "accuracy", "accuracy", True, "one class of several for each sample"),
        Task(
            "numbers", "rmse", "RMSE", False,
            "one or several numbers for each sample; errors are in units of the deviation of all"
            " training targets",
            limits=(0.0, inf), beside=("r2",),
        ),
        Task(
            "labels", "map", "mAP", True, "any number of labels for each sample",
            beside=("micro-f1",),
        ),
    )
}  # fmt: skip
"""All tasks by name."""
