"""Gradient steps and networks at the server, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from toy import Play

import flbench as fl


def test_gradient_steps_by_hand() -> None:
    """Of p^2/2 the gradient is p: with rate .5 half of p stays in each step."""
    start = torch.tensor([1.0, -2.0])
    assert fl.minimise(start, lambda p, _: p.square().sum() / 2, 2, 0.5).tolist() == [0.25, -0.5]
    assert start.tolist() == [1.0, -2.0]
    assert fl.minimise(start, lambda p, _: p.sum(), 0, 0.5).tolist() == [1.0, -2.0]
    steps: list[int] = []
    fl.minimise(start, lambda p, step: steps.append(step) or p.sum(), 3, 0.5)
    assert steps == [0, 1, 2]


def test_momentum_and_adam_by_hand() -> None:
    """The gradient is 1: momentum .5 moves by lr (1 + 1.5); Adam moves by lr in each step."""
    start = torch.zeros(1)
    heavy = fl.minimise(start, lambda p, _: p.sum(), 2, 0.1, momentum=0.5)
    torch.testing.assert_close(heavy, torch.tensor([-0.25]))
    adam = fl.minimise(start, lambda p, _: p.sum(), 2, 0.1, "adam")
    torch.testing.assert_close(adam, torch.tensor([-0.2]), atol=1e-6, rtol=1e-5)


def test_steps_are_taken_where_gradients_are_off() -> None:
    with torch.no_grad():
        assert fl.minimise(torch.ones(1), lambda p, _: p.sum(), 1, 1.0).item() == 0.0


def test_a_network_is_a_function_of_a_flat_tensor() -> None:
    network = fl.FlatNetwork(lambda: nn.Linear(2, 1))
    assert network.size == 3
    flat = torch.tensor([2.0, 3.0, 0.5], requires_grad=True)
    found = network(flat, torch.tensor([[1.0, 10.0]]))
    assert found.tolist() == [[32.5]]
    found.sum().backward()
    assert flat.grad is not None
    assert flat.grad.tolist() == [1.0, 10.0, 1.0]


def test_initial_parameters_come_from_the_generator_alone() -> None:
    network = fl.FlatNetwork(lambda: nn.Linear(2, 1))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = network.initial(np.random.default_rng(7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(network.initial(np.random.default_rng(7)), one)
    assert not torch.equal(network.initial(np.random.default_rng(8)), one)


@pytest.mark.parametrize("normed", [False, True])
def test_gradients_of_a_row_are_those_of_torch(normed: bool, play_toy: Play) -> None:
    def build() -> nn.Module:
        norm = nn.BatchNorm1d(3) if normed else nn.Identity()
        return nn.Sequential(nn.Flatten(), nn.Linear(3, 3), norm, nn.ReLU(), nn.Linear(3, 4))

    played = play_toy("fedavg", net=build, rounds=1)
    ctx, module = played.run.context, played.run.executor.workspace.module
    x, y = ctx.client_data(0)
    row = played.state.models[0].clone().requires_grad_()
    fl.cross_entropy(ctx.forward(row[None], x)[0], y).backward()
    played.run.executor.workspace.load(played.state.models[0])
    module.eval()
    module.zero_grad()
    fl.cross_entropy(module(x), y).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    assert row.grad is not None
    torch.testing.assert_close(row.grad[: len(expected)], expected)
    assert not row.grad[len(expected) :].any(), "statistics are not learnt"


def test_another_model_in_the_module_and_back(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1)
    run, module = played.run, played.run.executor.workspace.module
    x = run.context.client_data(0)[0]
    run.executor.workspace.load(run.context.initial)
    own = module(x)
    other = module.with_row(played.state.models[0], module, x)
    torch.testing.assert_close(other, run.context.logits(played.state.models, x)[0])
    assert torch.equal(module(x), own)
    assert torch.equal(module.row(), run.context.initial)
