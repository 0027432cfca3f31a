"""The scale of numbers that are predicted, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mentions import mention

from flbench.core.dataset import Dataset, Partition
from flbench.errors import UserError
from flbench.federation.federation import SplitRule, federated, split_up
from flbench.federation.target_scale import TargetScale, prepared

Y = torch.tensor([1.0, 3.0, 100.0, 5.0])
DATA = Dataset("made", torch.zeros(4, 2), Y, 1, task="numbers", label_names=("price",))


def test_the_scale_is_that_of_the_training_rows() -> None:
    data, scale = prepared(DATA, np.array([0, 1, 3]))
    assert scale is not None
    assert scale.mean.tolist() == [3]
    assert scale.deviation.tolist() == pytest.approx([np.sqrt(8 / 3)])
    assert data.y.shape == (4, 1)
    expected = [(value - 3) / np.sqrt(8 / 3) for value in Y.tolist()]
    assert data.y[:, 0].tolist() == pytest.approx(expected)


def test_each_number_has_a_scale_of_its_own() -> None:
    y = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    data, _ = prepared(replace(DATA, x=torch.zeros(2, 2), y=y, classes=2), np.arange(2))
    assert data.y.tolist() == [[-1, -1], [1, 1]]


def test_constant_targets_of_training_are_refused() -> None:
    with pytest.raises(UserError, match=mention("price", "7")):
        TargetScale.of(replace(DATA, y=torch.tensor([7.0, 7.0, 7.0, 9.0])), np.arange(3))


def test_test_samples_and_newcomers_do_not_move_it() -> None:
    x = torch.zeros(40, 1)
    data = Dataset("made", x, torch.arange(40.0), 1, task="numbers")
    owned = np.split(np.arange(40), 4)
    rule = SplitRule(0, 0.25, 0.25)
    first = federated(data, split_up(data, Partition(tuple(owned)), rule, newcomers=1))
    assert first.scale is not None
    assert first.newcomers is not None
    held = [first.visible.splits["train"].rows, first.held_out.splits["test"].rows]
    train = first.visible.y[held[0], 0].double()
    assert float(train.mean()) == pytest.approx(0, abs=1e-6)
    assert float(train.std(correction=0)) == pytest.approx(1)
    late = first.newcomers.held_out.y.double() * first.scale.deviation[0] + first.scale.mean[0]
    assert set(late[:, 0].round().tolist()) <= set(range(30, 40)), "in the same unit"
    other = data.y.clone()
    other[30:] += 1000  # what a newcomer has
    changed = replace(data, y=other)
    again = federated(changed, split_up(changed, Partition(tuple(owned)), rule, newcomers=1))
    assert again.scale is not None
    assert again.scale.mean.tolist() == first.scale.mean.tolist()
    assert again.fingerprint["data"] != first.fingerprint["data"]
    assert again.fingerprint["partition"] == first.fingerprint["partition"]
