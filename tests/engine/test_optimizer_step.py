"""The optimiser's step: the kernel called directly changes what `optimizer.step()` changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from flbench.engine.optimizer_step import OptimizerStep

Make = Callable[[list[torch.nn.Parameter]], Optimizer]


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 2), (5,))]


def gradients(step: int) -> list[torch.Tensor]:
    torch.manual_seed(step + 1)
    return [torch.randn(3, 2), torch.randn(5)]


def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of the kernel came from `OptimizerStep` itself: its keyword says so."""
    calls: list[bool] = []
    kernel = torch._fused_sgd_

    def counted(*arguments: Any, **options: Any) -> None:
        calls.append("grad_scale" not in options)
        kernel(*arguments, **options)

    monkeypatch.setattr(torch, "_fused_sgd_", counted)
    return calls


SETTINGS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"momentum": 0.5, "dampening": 0.3, "maximize": True},
    {"weight_decay": 0.1},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_kernel_alone_gives_the_same_bits(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = kernel_calls(monkeypatch)
    ours, torchs = parameters(), parameters()
    step = OptimizerStep(SGD(ours, lr=0.1, fused=True, **settings))
    other = SGD(torchs, lr=0.1, fused=True, **settings)
    for client in range(2):  # the second client starts without the first one's momentum
        step.forget()
        other.state.clear()
        for number in range(4):
            for group in (step.optimizer.param_groups[0], other.param_groups[0]):
                group["lr"] = 0.1 / (number + 1)
            for own, theirs, gradient in zip(ours, torchs, gradients(number), strict=True):
                own.grad, theirs.grad = gradient.clone(), gradient.clone()
            step()
            other.step()
            assert all(map(torch.equal, ours, torchs)), (client, number)
    assert calls.count(True) == 6, "all but the first step of each client"


def test_a_parameter_without_a_gradient_does_not_move() -> None:
    ours, torchs = parameters(), parameters()
    step = OptimizerStep(SGD(ours, lr=0.1, momentum=0.9, fused=True))
    other = SGD(torchs, lr=0.1, momentum=0.9, fused=True)
    for number, missing in enumerate((None, 1, None, 0, None)):
        for at, gradient in enumerate(gradients(number)):
            ours[at].grad = None if at == missing else gradient.clone()
            torchs[at].grad = None if at == missing else gradient.clone()
        step()
        other.step()
        assert all(map(torch.equal, ours, torchs)), number


def adam(rows: list[torch.nn.Parameter]) -> Optimizer:
    return Adam(rows, lr=0.1)


def unfused(rows: list[torch.nn.Parameter]) -> Optimizer:
    return SGD(rows, lr=0.1, momentum=0.9)


def two_groups(rows: list[torch.nn.Parameter]) -> Optimizer:
    return SGD([{"params": rows[:1]}, {"params": rows[1:], "lr": 0.01}], lr=0.1, fused=True)


class Doubled(SGD):
    """SGD whose step updates twice."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        super().step()


@pytest.mark.parametrize(
    "make",
    [adam, unfused, two_groups, partial(Doubled, lr=0.1, fused=True)],
    ids=["adam", "unfused", "two groups", "own step"],
)
def test_other_optimisers_make_their_own_steps(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = kernel_calls(monkeypatch)
    ours, torchs = parameters(), parameters()
    step, other = OptimizerStep(make(ours)), make(torchs)
    for number in range(3):
        for own, theirs, gradient in zip(ours, torchs, gradients(number), strict=True):
            own.grad, theirs.grad = gradient.clone(), gradient.clone()
        step()
        other.step()
    assert all(map(torch.equal, ours, torchs))
    assert not any(calls)


def test_what_listens_to_steps_hears_all_of_them() -> None:
    rows, heard = parameters(), []
    optimizer = SGD(rows, lr=0.1, fused=True)
    step = OptimizerStep(optimizer)

    def play() -> None:
        for own, gradient in zip(rows, gradients(0), strict=True):
            own.grad = gradient
        step()

    play()
    one = optimizer.register_step_post_hook(lambda *_: heard.append("one"))
    play()
    one.remove()
    play()
    every = register_optimizer_step_pre_hook(lambda *_: heard.append("every"))
    play()
    every.remove()
    assert heard == ["one", "every"]
