"""LCFed: low-rank models, both pulls, the server and the first clusters by hand; laws."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import THREE, create, toy_upload
from mentions import mention
from small import TRAIN, Small, begin, cohorts, uploaded
from toy import CLIENTS, Play

import flbench as fl
from flbench.errors import Undefined
from flbench_plugins.lcfed import MET, OWN, PHI, LCFed, M, cosines, principal_directions

NAN = torch.nan


def test_principal_directions_by_hand() -> None:
    """Models (0, 1), (4, 1) and (2, 4) are (-2, -1), (2, -1) and (0, 2) around their mean.

    Their scatter is 8 along x, 6 along y and 2 - 2 + 0 = 0 across: first x, then y.
    """
    models = torch.tensor([[0.0, 1.0], [4.0, 1.0], [2.0, 4.0]])
    torch.testing.assert_close(principal_directions(models, 1).abs(), torch.tensor([[1.0], [0.0]]))
    torch.testing.assert_close(principal_directions(models, 50).abs(), torch.eye(2))
    assert principal_directions(models[:2], 50).shape == (2, 1), "two points span a line"


def test_similarity_is_that_of_low_rank_models_by_hand() -> None:
    """z = (3, 4), and (4, 3) and (0, 1) of the clusters: cosines 24 / 25 and 4 / 5.

    Of the whole models they would be 24 / (5 sqrt 106) = .47 and 85 / sqrt(106 * 82) = .91.
    """
    m = torch.eye(3)[:, :2]
    centres = torch.tensor([[4.0, 3.0, 0.0], [0.0, 1.0, 9.0]])
    found = cosines(torch.tensor([[3.0, 4.0, 9.0]]), centres, m)
    torch.testing.assert_close(found, torch.tensor([[0.96, 0.8]]).double())


@pytest.mark.parametrize(
    ("centre", "value", "slope"),
    [([0.0, 0.0, 1.0], 17.0, [2.0, 12.0, 4.0]), ([NAN] * 3, 8.0, [0.0, 8.0, 0.0])],
)
def test_both_pulls_by_hand(centre: list[float], value: float, slope: list[float]) -> None:
    """w = (1, 2, 3), phi = its first two, Phi = (1, 0); mu = 2, lambda = 4.

    2/2 (1 + 4 + 4) + 4/2 (0 + 4) = 17; its gradient is 2 (1, 2, 2) + 4 (0, 2, 0).
    """
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    received = {"centre": torch.tensor(centre), "phi": torch.tensor([1.0, 0.0, NAN])}
    module: Any = SimpleNamespace(flat=lambda: w, received=received)
    term = create("lcfed", mu=2.0, lam=4.0).local_term()(module)
    term.backward()
    assert term.item() == value
    assert w.grad is not None and w.grad.tolist() == slope


def test_the_server_by_hand() -> None:
    """Models of 10 and 30 samples in two clusters: Phi = (10 (2, 0) + 30 (4, 4)) / 40."""
    upload = toy_upload([[2.0, 0.0, 1.0], [4.0, 4.0, 5.0]], [1.0, 1.0])
    upload.samples[1] = 30
    home = fl.Membership(torch.tensor([1, 0]))
    state = fl.State(0, torch.zeros(2, 3), home, {PHI: torch.full((3,), NAN)})
    ctx: Any = SimpleNamespace(layout=THREE)
    found = LCFed(k=2).aggregate(state, upload, home, ctx)
    assert found.rows.tolist() == [[4.0, 4.0, 5.0], [2.0, 0.0, 1.0]]
    assert found.memory[PHI][:2].tolist() == [3.5, 3.0] and found.memory[PHI][2].isnan()
    one = fl.Membership(torch.tensor([0, 0]))
    assert LCFed(k=2).aggregate(state, upload, one, ctx).rows[0].tolist() == [3.5, 3.0, 4.0]


def after(rule: LCFed, ctx: Any, state: fl.State, upload: fl.Upload) -> fl.State:
    """What `score` and `cluster` make of an upload."""
    scores = rule.score(state, TRAIN, upload)
    assert scores is not None
    state = state.remember(scores.memory)
    return state.regroup(rule.cluster(state, scores, ctx))


def test_the_first_clusters_by_hand() -> None:
    """They wait for K clients. Models (1, 0), (9, 1) and (0, 3) of 1, 2 and 3 samples.

    By direction, 0 and 1 are together, although 0 is nearer to 2: (1 (1, 0) + 2 (9, 1)) / 3.
    """
    ctx, rule = Small(), LCFed(k=2)
    state = after(rule, ctx, begin_at(rule, ctx), uploaded([[1, 0]], (0,)))
    assert state.membership.home.tolist() == [-1, -1, -1] and len(state.models) == 1
    assert state.memory[MET][0].tolist() == [1, 0] and not state.memory[M].numel()
    state = after(rule, ctx, state, uploaded([[9, 1], [0, 3]], (1, 2)))
    assert state.membership.home.tolist() == [0, 0, 1]
    torch.testing.assert_close(state.models, torch.tensor([[19 / 3, 2 / 3], [0, 3]]))
    assert state.memory[M].shape == (2, 2) and not len(state.memory[MET])
    m = state.memory[M]
    state = after(rule, ctx, state, uploaded([[1, 9], [9, 1]], (0, 2)))
    assert state.membership.home.tolist() == [1, 0, 0], "both went to the other cluster"
    assert state.memory[M] is m, "made once"
    assert rule.score(state, replace(TRAIN, kind="probe"), uploaded([[1, 9]], (0,))) is None


def test_one_model_has_no_directions_so_one_cluster_waits_for_two_clients() -> None:
    ctx, rule = Small(), LCFed(k=1)
    state = after(rule, ctx, begin_at(rule, ctx), uploaded([[1, 0]], (0,)))
    assert state.membership.home.tolist() == [-1, -1, -1]
    state = after(rule, ctx, state, uploaded([[9, 1]], (1,)))
    assert state.membership.home.tolist() == [0, 0, -1]
    assert state.memory[M].shape == (2, 1)


def begin_at(rule: LCFed, ctx: Any) -> fl.State:
    return replace(begin(rule, ctx, [[0.0, 0.0]]), membership=rule.setup(ctx).membership)


def test_clients_start_from_their_own_model_and_get_what_there_is() -> None:
    ctx, rule = Small(), LCFed(k=2)
    ctx.layout = THREE
    home = fl.Membership(torch.tensor([1, -1, 0]))
    own = torch.arange(9.0).view(3, 3)
    memory = {OWN: own, PHI: torch.tensor([7.0, 8.0, NAN])}
    state = fl.State(3, torch.tensor([[1.0] * 3, [2.0] * 3]), home, memory)
    start = rule.dispatch(state, TRAIN, ctx)
    assert torch.equal(start.params[:, 0], own)
    assert not start.sent_mask.any() and start.returned_mask.all()
    assert start.extras["centre"].isnan().all(dim=1).tolist() == [False, True, False]
    assert start.extras["centre"][[0, 2]].tolist() == [[2.0] * 3, [1.0] * 3]
    assert start.extras["phi"][:, :2].tolist() == [[7.0, 8.0]] * 3


def test_the_own_model_is_tested_and_a_newcomer_joins_by_similarity() -> None:
    class Door(Small):
        def train(self, start: torch.Tensor, clients: torch.Tensor) -> torch.Tensor:
            assert start is self.initial
            return torch.tensor([[9.0, 1.0], [0.0, 0.1]])

    rule, own = LCFed(k=2), torch.tensor([[1.0, 0.0], [0.0, 0.0], [3.0, 0.0]])
    memory = {OWN: own, M: torch.eye(2)}
    home = fl.Membership(torch.tensor([1, -1, 1]))
    state = fl.State(3, torch.tensor([[0.0, 5.0], [5.0, 0.0]]), home, memory)
    found = rule.personalise(state, torch.tensor([1, 2]))
    assert found.params.tolist() == [[0, 0], [3, 0]]
    assert found.others["centre"].row.tolist() == [1, 1], "the largest for a stranger"
    assert rule.join(state, torch.arange(3, 5), Door()).row.tolist() == [1, 0]


def test_more_clusters_than_clients_are_refused() -> None:
    with pytest.raises(Undefined, match=mention("3 clients", "k=4")):
        LCFed(k=4).setup(Small())


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_without_pulls_it_is_local_only(executor: str, play_toy: Play) -> None:
    found = play_toy("lcfed", settings={"k": 2, "mu": 0, "lam": 0}, executor=executor)
    alone = play_toy("local-only", executor=executor)
    assert torch.equal(found.state.memory[OWN][:], alone.state.models[:])
    assert found.run.history.last.correct == alone.run.history.last.correct
    for pull in ("mu", "lam"):
        settings = {"k": 2, "mu": 0, "lam": 0, pull: 1.0}
        other = play_toy("lcfed", settings=settings, executor=executor)
        assert not torch.equal(other.state.memory[OWN][:], alone.state.models[:])


@pytest.mark.slow
def test_clusters_are_the_groups_and_mu_keeps_clients_near_them(play_toy: Play) -> None:
    far = []
    for mu in (0.0, 2.0):
        settings = {"k": 2, "mu": mu, "lam": 0}
        played = play_toy("lcfed", settings=settings, rounds=4, participation=1.0)
        assert played.result.summary["ari"] == 1.0
        own = played.state.memory[OWN][:]
        far.append((own - played.personal).norm(dim=1))
    assert (far[1] < far[0]).all()


@pytest.mark.slow
def test_lambda_keeps_the_embeddings_of_all_clients_together(play_toy: Play) -> None:
    spread = []
    for lam in (0.0, 4.0):
        settings = {"k": 2, "mu": 0, "lam": lam}
        played = play_toy("lcfed", settings=settings, rounds=4, participation=1.0)
        body = played.run.context.layout.body
        spread.append(played.state.memory[OWN][:][:, body].std(dim=0).norm())
    assert spread[1] < 0.7 * spread[0]


@pytest.mark.slow
def test_who_was_never_sampled_keeps_the_initial_weights(play_toy: Play) -> None:
    played = play_toy("lcfed", settings={"k": 2}, rounds=1)
    met = cohorts(played)[0]
    still = (played.state.memory[OWN][:] == played.run.context.initial).all(dim=1)
    assert still.tolist() == [client not in met for client in range(CLIENTS)]
