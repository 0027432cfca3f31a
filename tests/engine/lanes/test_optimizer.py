"""Lanes are updated as torch's optimiser updates each of them alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from flbench.engine.lanes import optimizer as lane_optimizer
from flbench.engine.lanes.group import LaneGroup
from flbench.engine.lanes.optimizer import CHANGED, LaneOptimizer, not_shared

CASES: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (SGD, {}),
    (SGD, {"momentum": 0.9, "weight_decay": 0.1, "fused": True}),
    (SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    (Adam, {"weight_decay": 0.1, "fused": True}),
    (Adam, {"amsgrad": True, "betas": (0.5, 0.9), "eps": 1e-3}),
    (Adam, {"amsgrad": True, "maximize": True, "fused": True}),
    (AdamW, {"weight_decay": 0.1, "fused": True}),
    (AdamW, {"weight_decay": 0.1}),
    (RMSprop, {}),
    (RMSprop, {"momentum": 0.9, "weight_decay": 0.1, "foreach": True}),
    (RMSprop, {"centered": True, "alpha": 0.5, "eps": 1e-3, "maximize": True}),
]


def slopes(lane: int, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(10 * lane + step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


SHAPES = {"weight": (2, 3), "bias": (4,)}
LANES = 3


@pytest.mark.parametrize("lanes", [[0, 1, 2], [0, 2]], ids=["neighbours", "others"])
@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_lanes_are_updated_as_each_is_alone(
    kind: type[Optimizer], settings: dict[str, Any], lanes: list[int]
) -> None:
    start = {name: torch.ones(LANES, *shape) for name, shape in SHAPES.items()}
    theta = {name: table.clone() for name, table in start.items()}
    pattern = kind([nn.Parameter(torch.zeros(1))], lr=0.5, **settings)  # type: ignore[call-arg]
    optimizer, group = LaneOptimizer(pattern, 0.1, theta), LaneGroup(lanes, torch.device("cpu"))
    for step in range(3):
        taken = {name: group.take(table) for name, table in theta.items()}
        each = [slopes(lane, step) for lane in lanes]
        # A gradient may be laid out otherwise than its parameter.
        gradients = {
            name: torch.stack([one[name] for one in each], dim=-1).movedim(-1, 0) for name in SHAPES
        }
        optimizer.step(group, taken, gradients, step)
        for name, table in taken.items():
            group.put(theta[name], table)
    for lane in range(LANES):
        alone = {name: nn.Parameter(table[lane].clone()) for name, table in start.items()}
        rule = kind(alone.values(), lr=0.1, **settings)  # type: ignore[call-arg]
        for step in range(3 if lane in lanes else 0):
            for name, slope in slopes(lane, step).items():
                alone[name].grad = slope
            rule.step()
        for name, parameter in alone.items():
            torch.testing.assert_close(theta[name][lane], parameter.data, rtol=0, atol=1e-6)


def updated(kind: type[Optimizer], settings: dict[str, Any], kinds: list[Any]) -> list[Tensor]:
    """Tensors after three steps of three lanes, of types that the tensors are given."""
    pattern = kind([nn.Parameter(torch.zeros(1))], lr=0.5, **settings)  # type: ignore[call-arg]
    pairs = zip(SHAPES.items(), kinds, strict=True)
    theta = {name: torch.ones(LANES, *shape, dtype=dtype) for (name, shape), dtype in pairs}
    optimizer = LaneOptimizer(pattern, 0.1, theta)
    for step in range(3):
        each = [slopes(lane, step) for lane in range(LANES)]
        gradients = {
            name: torch.stack([one[name] for one in each]).to(table.dtype)
            for name, table in theta.items()
        }
        optimizer.step(LaneGroup(range(LANES), torch.device("cpu")), theta, gradients, step)
    return list(theta.values())


FUSED = [(kind, settings) for kind, settings in CASES if settings.get("fused")]


@pytest.mark.parametrize(("kind", "settings"), [(SGD, {"fused": True}), *FUSED])
def test_the_kernel_alone_gives_the_bits_of_torchs_function(
    kind: type[Optimizer], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    around: list[str] = []
    for name in ("sgd", "adam"):
        function = getattr(lane_optimizer, name)

        def noted(*arguments: Any, function: Any = function, **options: Any) -> None:
            around.append(function.__name__)
            function(*arguments, **options)

        monkeypatch.setattr(lane_optimizer, name, noted)
    alone = updated(kind, settings, [torch.float32] * 2)
    assert not around
    monkeypatch.setattr(LaneOptimizer, "_fused_kernel", lambda *_: None)
    for one, other in zip(alone, updated(kind, settings, [torch.float32] * 2), strict=True):
        assert torch.equal(one, other)
    assert len(around) == 3


def test_tensors_of_several_types_are_left_to_torchs_function() -> None:
    mixed = updated(SGD, {"fused": True}, [torch.float32, torch.float64])
    alike = updated(SGD, {"fused": True}, [torch.float32, torch.float32])
    assert torch.equal(mixed[0], alike[0])
    torch.testing.assert_close(mixed[1], alike[1].double())


def test_nothing_is_updated_where_all_tensors_are_frozen() -> None:
    optimizer = LaneOptimizer(SGD([nn.Parameter(torch.zeros(1))], lr=0.1, fused=True), 0.1, {})
    optimizer.step(LaneGroup([0], torch.device("cpu")), {}, {}, 0)


def test_only_adam_counts_its_updates() -> None:
    made = [kind([nn.Parameter(torch.zeros(1))], lr=0.1) for kind in (SGD, RMSprop, Adam, AdamW)]  # type: ignore[call-arg]
    assert [LaneOptimizer(one, 0.1, {}).counts for one in made] == [False, False, True, True]


class Own(SGD):
    """May do anything in its step."""


def test_why_an_optimiser_is_not_shared() -> None:
    def reason(kind: type[Optimizer], **settings: Any) -> str | None:
        return not_shared(kind([nn.Parameter(torch.zeros(1))], lr=0.1, **settings))  # type: ignore[call-arg]

    assert reason(SGD, momentum=0.9) is None
    assert reason(Adam) is reason(RMSprop) is None
    assert "not SGD, Adam, AdamW or RMSprop" in str(reason(Own))
    assert "not SGD, Adam, AdamW or RMSprop" in str(reason(torch.optim.LBFGS))
    assert "dampening" in str(reason(SGD, momentum=0.9, dampening=0.1))
    changed = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    changed.param_groups[0]["lr"] = 0.2
    assert not_shared(changed) == CHANGED
