"""D-PSGD: graphs and weights by hand, and what the clients' models become."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import create, toy_upload
from small import Uniform, cohorts
from toy import Play, composition

import flbench as fl
from flbench_plugins.dpsgd import GRAPHS, joined, metropolis


def links(kind: str, n: int, degree: int = 4, seed: int = 0) -> torch.Tensor:
    return GRAPHS[kind](n, degree, np.random.default_rng(seed))


def test_weights_of_a_path_by_hand() -> None:
    """0 - 1 - 2: the degrees are 1, 2, 1, so both edges weigh 1 / 3."""
    found = 3 * metropolis(joined(3, torch.tensor([[0, 1], [1, 2]])))
    torch.testing.assert_close(found, torch.tensor([[2.0, 1, 0], [1, 1, 1], [0, 1, 2]]).double())


@pytest.mark.parametrize(
    ("kind", "n", "neighbours"),
    [
        ("ring", 5, [1, 4]),
        ("ring", 2, [1]),
        ("ring", 1, []),
        ("torus", 12, [1, 3, 4, 8]),  # 3 rows of 4: beside it 1 and 3, below and above 4 and 8
        ("torus", 6, [1, 2, 3]),  # 2 rows of 3: below and above are the same
        ("torus", 7, [1, 6]),  # one row
        ("complete", 4, [1, 2, 3]),
    ],
)
def test_neighbours_by_hand(kind: str, n: int, neighbours: list[int]) -> None:
    """Of place 0."""
    assert links(kind, n)[0].nonzero()[:, 0].tolist() == neighbours


@pytest.mark.parametrize("n", [1, 2, 5, 12])
@pytest.mark.parametrize("kind", GRAPHS)
def test_weights_are_doubly_stochastic(kind: str, n: int) -> None:
    graph = links(kind, n)
    weights = metropolis(graph)
    assert torch.equal(graph, graph.T) and not graph.diagonal().any()
    assert torch.equal(weights, weights.T) and (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=0), torch.ones(n).double())


@pytest.mark.parametrize(("n", "degree", "found"), [(10, 3, 3), (9, 3, 2), (9, 4, 4), (4, 9, 3)])
def test_everybody_has_as_many_neighbours_in_a_regular_graph(
    n: int, degree: int, found: int
) -> None:
    for seed in range(5):
        assert links("regular", n, degree, seed).sum(dim=1).tolist() == [found] * n


def test_regular_graphs_are_random() -> None:
    graphs = {tuple(links("regular", 10, 4, seed).flatten().tolist()) for seed in range(5)}
    assert len(graphs) == 5


def test_a_round_by_hand() -> None:
    """Two clients on a ring are neighbours and average; 10 and 30 samples do not matter."""
    sent: list[Any] = []
    ctx: Any = SimpleNamespace(
        layout=fl.ParameterLayout((), 3, 0),
        rng=lambda *_, client=0: np.random.default_rng(client),
        send=lambda way, ids, item, scalars: sent.append((way, ids.tolist(), scalars.tolist())),
    )
    upload = toy_upload([[1.0, 0.0, 4.0], [3.0, 2.0, 4.0]], [1.0, 1.0])
    upload.samples[1] = 30
    state = fl.State(0, torch.zeros(3, 3), fl.Membership(torch.arange(3)))
    rows = create("dpsgd").aggregate(state, upload, ctx).rows
    assert rows.tolist() == [[2.0, 1.0, 4.0], [2.0, 1.0, 4.0], [0.0] * 3]
    assert sent == [("peer", [0, 1], [3, 3])]


@pytest.mark.slow
def test_with_everybody_on_a_complete_graph_it_is_uniform_fedavg(play_toy: Play) -> None:
    more: dict[str, Any] = {"participation": 1.0, "partition": {"name": "iid"}}
    peers = play_toy("dpsgd", settings={"graph": "complete"}, **more)
    fedavg = play_toy(composition(("uniform", Uniform())), **more)
    torch.testing.assert_close(peers.personal, fedavg.personal, rtol=0, atol=1e-6)
    assert set(peers.run.ledger.totals["peer"]) == {"model"}
    assert not peers.run.ledger.total("up") and not peers.run.ledger.total("down")


@pytest.mark.slow
def test_an_average_keeps_the_mean_of_all_models(play_toy: Play) -> None:
    """W is doubly stochastic: on any graph the mean is that of the trained models (round 1)."""
    more: dict[str, Any] = {"participation": 1.0, "rounds": 1}
    means = [
        play_toy("dpsgd", settings={"graph": "regular", "degree": degree}, **more).personal.mean(0)
        for degree in (0, 2, 3, 5)
    ]
    for mean in means[1:]:
        torch.testing.assert_close(mean, means[0], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_clients_that_are_not_sampled_keep_their_models(play_toy: Play) -> None:
    played = play_toy("dpsgd", rounds=1)
    ctx = played.run.context
    moved = (played.state.models != ctx.initial).any(dim=1).nonzero()[:, 0]
    (cohort,) = cohorts(played)
    assert moved.tolist() == cohort
    assert len(played.state.models[cohort].unique(dim=0)) == 1, "three on a ring are complete"


@pytest.mark.slow
def test_places_follow_the_clients(play_toy: Play) -> None:
    """With everybody sampled, neighbours are the same in every round."""
    played = play_toy("dpsgd", participation=1.0)
    method, ctx = create("dpsgd"), played.run.context
    ring = method.links(ctx.everybody, ctx)
    assert ring.sum(dim=1).tolist() == [2] * 6
    assert torch.equal(ring, method.links(ctx.everybody, play_toy("dpsgd", rounds=2).run.context))
