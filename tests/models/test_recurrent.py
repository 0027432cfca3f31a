"""The recurrent network: its states by a plain loop, and what may not look ahead."""

from __future__ import annotations

import pytest
import torch
from mentions import mention
from toy import Play

from flbench.core.dataset import Dataset
from flbench.core.networks import head_of, is_linear
from flbench.errors import Undefined, UserError
from flbench.models.recurrent import GatedLayer, OneHotEmbedding, build


@pytest.mark.parametrize("length", [1, 2, 7, 8, 13])
def test_the_states_are_those_of_a_loop(length: int) -> None:
    layer = GatedLayer(3)
    x = torch.randn(2, length, 3)
    before, state = torch.zeros(2, 3), torch.zeros(2, 3)
    for t, found in enumerate(layer(x).unbind(1)):
        gate, candidate = layer.gates(torch.cat([x[:, t], before], dim=1)).chunk(2, dim=1)
        z = gate.sigmoid()
        state = (1 - z) * state + z * candidate.tanh()
        torch.testing.assert_close(found, x[:, t] + state)
        before = x[:, t]


def test_no_token_sees_a_later_one() -> None:
    net = build((9,), 5, hidden=6)
    x = torch.randint(5, (1, 9))
    other = x.clone()
    other[0, 5:] = (other[0, 5:] + 1) % 5
    one, two = net(x), net(other)
    torch.testing.assert_close(one[:, :5], two[:, :5], rtol=0, atol=0)
    assert (one[:, 5:] - two[:, 5:]).abs().max() > 1e-3


def test_an_embedding_is_the_row_of_a_token() -> None:
    part = OneHotEmbedding(4, 3)
    x = torch.tensor([[3, 0], [1, 1]])
    torch.testing.assert_close(part(x), part.table.weight.T[x])
    assert not part.state_dict().keys() - {"table.weight"}, "no constant is part of a row"


def test_all_layers_are_linear_so_lanes_take_it() -> None:
    net = build((6,), 5, hidden=4)
    assert (head_of(net), is_linear(net)) == ("head", True)
    assert net(torch.zeros(2, 6).long()).shape == (2, 6, 5)
    with pytest.raises(UserError, match=mention("recurrent", "tokens")):
        build((1, 8, 8), 5)


def of_pairs() -> Dataset:
    """60 samples of six clients: two tokens that repeat."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(6, (60, 2), generator=generator)
    rows = pairs.repeat(1, 5)
    domains = torch.arange(60) // 10
    return Dataset("made", rows[:, :-1], rows[:, 1:], 6, domains)


@pytest.mark.parametrize("method", ["fedproto", "fedrod", "knn-per", "moon"])
def test_what_compares_features_of_samples_is_undefined_on_text(
    play_toy: Play, method: str
) -> None:
    """moon compared what it took for features along the axis of time, and said nothing."""
    with pytest.raises(Undefined, match="features of each token, not of each sample"):
        play_toy(
            method,
            dataset=of_pairs(),
            rounds=2,
            participation=1.0,
            partition={"name": "natural"},
            model={"name": "recurrent", "hidden": 4},
        )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_it_learns_in_lanes_as_one_by_one(play_toy: Play, executor: str) -> None:
    """The next token is the last but one: it has to remember."""
    found = play_toy(
        "fedavg",
        dataset=of_pairs(),
        executor=executor,
        rounds=6,
        participation=1.0,
        partition={"name": "natural"},
        model={"name": "recurrent", "hidden": 16},
        local={"epochs": 3, "batch_size": 4, "lr": 0.01, "optimizer": "adamw"},
    )
    assert found.run.history.executor == executor
    assert found.result.summary["accuracy_mean"] > 0.8, "1/6 by chance; the first cannot be known"
