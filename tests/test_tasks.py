"""Tasks: which of two headlines is the better one."""

from __future__ import annotations

import numpy as np
import pytest

from flbench.metrics import METRICS, metrics_for
from flbench.tasks import TASKS, Task


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_gain_score_and_best_have_one_direction(task: Task) -> None:
    low, high = 0.25, 0.75
    better, worse = (high, low) if task.higher_is_better else (low, high)
    assert task.gain(better, worse) == 0.5 == -task.gain(worse, better)
    assert task.score(better) - task.score(worse) == 0.5
    assert task.gain(task.best, better) >= 0
    values = np.array([low, high])
    assert task.gain(values, worse).tolist() == [task.gain(low, worse), task.gain(high, worse)]
    assert sorted([low, high], key=lambda value: -task.score(value))[0] == better


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_headline_is_the_first_metric_with_the_direction_of_its_task(task: Task) -> None:
    first = metrics_for(task.name)[0]
    assert (first.name, first.curve) == (task.named(METRICS[0].name), task.headline)
    assert (first.heading, first.higher_is_better) == (task.heading, task.higher_is_better)
    (worst,) = [one for one in metrics_for(task.name) if one.name.endswith("_worst")]
    assert worst.higher_is_better == task.higher_is_better
