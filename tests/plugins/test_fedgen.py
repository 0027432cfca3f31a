"""FedGen: drawn labels, the ensemble and the client's loss by hand; what the generator learns."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import create
from mentions import mentions
from small import cohorts
from toy import Play, composition, refused, watching

import flbench as fl
from flbench_plugins.fedgen import drawn_labels, ensemble


def test_drawn_labels_by_hand() -> None:
    """Shares .25, 0, .75: below .25 it is the first label, from .25 on the third."""
    found = drawn_labels(torch.tensor([0.25, 0.0, 0.75]), torch.tensor([0.0, 0.2, 0.25, 0.9]))
    assert found.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]]


def test_an_ensemble_by_hand() -> None:
    """Heads of two labels and one feature: weights (2, 0) and (0, 4), biases (0, 1) and (2, 1).

    The feature 3 has the logits (6, 1) and (2, 13), in the mean (4, 7).
    """
    heads = torch.tensor([[2.0, 0.0, 0.0, 1.0], [0.0, 4.0, 2.0, 1.0]])
    assert ensemble(heads, torch.tensor([[3.0]])).tolist() == [[4.0, 7.0]]


def test_the_loss_of_generated_features_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator makes 0 of everything, so the head says its bias (0, log 3).

    Label 0 costs log 4, label 1 log 4 - log 3; halves of both, times .5, beside a loss of 1.
    """
    method, head = create("fedgen", weight=0.5), torch.nn.Linear(1, 2)
    head.bias.data = torch.tensor([0.0, math.log(3)])
    received = {
        "generator": torch.zeros(9),
        "labels": torch.tensor([0.5, 0.5]),
        "fedgen.u": torch.tensor([0.1, 0.9]),
        "fedgen.e": torch.zeros(2, 1),
    }
    module = SimpleNamespace(received=received, get_submodule={"net.head": head}.__getitem__)
    monkeypatch.setattr(
        type(method), "generator", lambda self, ctx: lambda w, y, e: torch.zeros(2, 1)
    )
    ctx: Any = SimpleNamespace(layout=SimpleNamespace(head_name="net.head"))
    wrapper = method.batch_loss(ctx)
    next(wrapper)
    with pytest.raises(StopIteration) as answer:
        wrapper.send(lambda batch: torch.tensor(1.0))
    loss = answer.value.value(SimpleNamespace(module=module))
    assert loss.item() == pytest.approx(1 + 0.5 * (math.log(4) - math.log(3) / 2))
    module.received = {}
    assert answer.value.value(SimpleNamespace(module=module)).item() == 1.0


@pytest.mark.slow
def test_the_generator_makes_features_that_the_heads_recognise(play_toy: Play) -> None:
    """After a round, the ensemble recognises more generated features than before."""
    uploads: list[Any] = []
    method = create("fedgen", steps=100, batch=64)
    played = play_toy(composition(("fedgen", method), ("watch", watching(uploads))), rounds=1)
    ctx, heads = played.run.context, uploads[0].selected()[:, played.run.context.layout.head]
    u, e = method.draw(ctx.rng("test"))
    y = drawn_labels(played.state.memory["fedgen.p"], u)
    before = method.setup(ctx).memory["fedgen.w"].value
    right = [
        (ensemble(heads, method.generator(ctx)(w, y, e)).argmax(1) == y.argmax(1)).float().mean()
        for w in (before, played.state.memory["fedgen.w"])
    ]
    assert right[1] > max(0.9, right[0])


@pytest.mark.slow
def test_shares_are_those_of_the_cohort(play_toy: Play) -> None:
    played = play_toy("fedgen", rounds=2)
    counts = played.run.context.label_counts[cohorts(played)[-1]].sum(dim=0)
    torch.testing.assert_close(played.state.memory["fedgen.p"], counts / counts.sum())


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_clients_use_the_generator_from_the_second_round_on(executor: str, play_toy: Play) -> None:
    first, second = (
        [play_toy(name, rounds=r, executor=executor).personal for name in ("fedavg", "fedgen")]
        for r in (1, 2)
    )
    torch.testing.assert_close(*first)  # in lanes they take other steps together
    assert (second[0] - second[1]).abs().max() > 1e-3


@pytest.mark.slow
def test_it_goes_with_groups_and_server_steps(play_toy: Play) -> None:
    for names in ("ifca+fedgen", "fedgen+fedadam", "fedprox+fedgen"):
        played = play_toy(names, rounds=2)
        assert played.state.memory["fedgen.p"].sum().item() == pytest.approx(1.0)


def test_a_network_without_a_head_is_refused() -> None:
    ctx: Any = SimpleNamespace(layout=fl.ParameterLayout((), 3, 0), classes=2)
    with pytest.raises(fl.Undefined, match="no linear head with biases"):
        create("fedgen").generator(ctx)


def test_heads_that_clients_keep_are_not_read(play_toy: Play) -> None:
    """The server gets all that clients of heterofl train of theirs."""
    for name in ("fedper", "local-only"):
        assert mentions(refused(play_toy, f"{name}+fedgen", rounds=1), "clients", "method")
    for name in ("lg-fedavg", "ditto", "heterofl"):
        play_toy(f"{name}+fedgen", rounds=1)
