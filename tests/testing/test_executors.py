"""What the checks of the executors compare, and what rounding decides under Adam."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from flbench.core.state import Upload
from flbench.testing import executors
from flbench.testing.check import MethodUnderTest
from flbench.testing.executors import ADAM, train_with_both, uploads_apart

NAN = torch.nan
ONES = torch.ones(2, 1, 3)
START: Any = SimpleNamespace(params=torch.zeros(2, 1, 3))
SLOTS: Any = [SimpleNamespace(start=0, stop=2), SimpleNamespace(start=2, stop=3)]


def upload(params: torch.Tensor = ONES, **extras: torch.Tensor) -> Upload:
    sent: Any = SimpleNamespace(ids=torch.arange(2), params=params, extras=extras)
    return cast("Upload", sent)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (torch.tensor([[1.0], [NAN]]), torch.tensor([[1.0], [NAN]]), []),
        (torch.tensor([[1.0], [NAN]]), torch.tensor([[1.0], [2.0]]), [1]),
        (torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 0.0], [2.0, 0.0]]), [0, 1]),
        (torch.tensor([[1.0], [2.0]]), torch.tensor([[1.5], [2.0]]), [0]),
    ],
)
def test_extras_of_two_executors_are_equal_to_rounding(
    one: torch.Tensor, other: torch.Tensor, apart: list[int]
) -> None:
    found = list(uploads_apart(upload(told=one), upload(told=other), START, SLOTS))
    assert found == [f"client {client} uploads another 'told'" for client in apart]


def test_a_tensor_that_other_last_bits_move_as_far_is_decided_by_rounding() -> None:
    far = ONES + torch.tensor([0.0, 0.0, 0.01])
    shaken, other = ONES + torch.tensor([0.0, 0.0, -0.005]), ONES + torch.tensor([0.005, 0, 0.0])

    def apart(lanes: torch.Tensor, again: torch.Tensor | None) -> int:
        third = None if again is None else upload(again)
        return len(list(uploads_apart(upload(lanes), upload(), START, SLOTS, third)))

    assert apart(far, None) == 2, "both clients"
    assert apart(far, shaken) == 0, "the last tensor moves without a reason"
    assert apart(far, other) == 2, "another tensor does"
    assert apart(far, ONES) == 2
    assert apart(far + torch.tensor([0.0, 0.0, 0.02]), shaken) == 2, "more than rounding does"


@pytest.mark.slow
def test_with_adam_only_biases_before_batchnorm_part_the_executors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their gradients are zero but for rounding, and Adam divides by their size."""
    apart: dict[str, float] = {}

    def measured(lanes: Upload, one_by_one: Upload, start: Any, slots: Any, *_: Any) -> list[str]:
        for slot in slots:
            place = slice(slot.start, slot.stop)
            between = (lanes.params - one_by_one.params)[..., place].abs().max()
            apart[slot.name] = max(apart.get(slot.name, 0.0), float(between))
        return []

    monkeypatch.setattr(executors, "uploads_apart", measured)
    tested = MethodUnderTest("fedavg")
    normed: Any = {"model": {"name": "mlp", "hidden": 3, "norm": True}}
    train_with_both(tested, tested.suite(**ADAM, **normed))
    trained = {name: far for name, far in apart.items() if "running" not in name}
    bias = trained.pop("net.body.1.bias")
    assert bias > 1e-3
    assert max(trained.values()) < 1e-5
