"""CGPFL: its k-means, the mixing of the contexts' models and who is served by which, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import create
from small import TRAIN, Small, begin, same_end, uploaded, weighed
from toy import Play, same_evaluations

import flbench as fl
from flbench_plugins.pfedme import MEMORY


def at(rule: Any, ctx: Small, rows: Any, home: list[int]) -> fl.State:
    return replace(begin(rule, ctx, rows), membership=fl.Membership(torch.tensor(home)))


def played_round(rule: Any, ctx: Any, state: fl.State, upload: fl.Upload) -> fl.State:
    """The server's part of a round."""
    scores = rule.score(state, TRAIN, upload, ctx)
    state = state.regroup(rule.cluster(state, scores))
    upload = weighed(rule, upload)
    return replace(state, models=rule.aggregate(state, upload, state.membership, ctx).rows)


@pytest.mark.parametrize(
    ("settings", "centres"),
    [({}, [1.5, 10.0]), ({"weighting": "samples"}, [2.0, 10.0]), ({"beta": 0.5}, [0.75, 7.5])],
)
def test_a_round_by_hand(settings: Any, centres: list[float]) -> None:
    """w_i = 0, 3 and 10 of 1, 2 and 3 samples; the contexts' models are 0 and 5.

    3 is 2 from 5, whose members have the mean 6.5 (by samples 7.2); from it 3 is further than from
    0, so that the contexts are {0, 3} and {10}, with means 3 / 2 = 1.5 and 10 (by samples
    2 * 3 / 3 = 2). With beta = .5 their models are 0 + .5 * 1.5 and 5 + .5 (10 - 5).
    """
    ctx, rule = Small(round_=5), create("cgpfl", contexts=2, **settings)
    state = at(rule, ctx, [[0.0, 0.0], [5.0, 0.0]], [0, 1, 1])
    after = played_round(rule, ctx, state, uploaded([[0, 0], [3, 0], [10, 0]]))
    assert after.membership.home.tolist() == [0, 0, 1]
    assert after.models.tolist() == [[centre, 0.0] for centre in centres]
    assert rule.score(state, replace(TRAIN, kind="probe"), uploaded([[0, 0]] * 3), ctx) is None


@pytest.mark.parametrize(
    ("weighting", "home", "centres"),
    [("uniform", [0, 1, 1], [0.0, 5.75]), ("samples", [0, 0, 1], [2.0, 8.5])],
)
def test_the_k_means_weights_clients_as_the_means_do(
    weighting: str, home: list[int], centres: list[float]
) -> None:
    """w_i = 0, 3 and 8.5 of 1, 2 and 3 samples, from 0 and 5: first {0} and {3, 8.5}.

    Their mean is 5.75, 2.75 from 3, which stays. By samples it is (6 + 25.5) / 5 = 6.3, 3.3 from 3,
    which goes to 0: (2 * 3) / 3 = 2.
    """
    ctx, rule = Small(round_=5), create("cgpfl", contexts=2, weighting=weighting)
    state = at(rule, ctx, [[0.0, 0.0], [5.0, 0.0]], [0, 1, 1])
    after = played_round(rule, ctx, state, uploaded([[0, 0], [3, 0], [8.5, 0]]))
    assert after.membership.home.tolist() == home
    assert after.models.tolist() == [[centre, 0.0] for centre in centres]


def test_the_first_k_means_starts_from_no_model() -> None:
    """w_i = 0, 9 and 1: {0, 1} and {9}, although all models are w_0; of two clients the third
    context has none, and it keeps w_0."""
    ctx, rule = Small(), create("cgpfl", contexts=2)
    after = played_round(rule, ctx, begin(rule, ctx), uploaded([[0, 0], [9, 0], [1, 0]]))
    assert after.membership.home.tolist() == [0, 1, 0]
    assert after.models.tolist() == [[0.5, 0.0], [9.0, 0.0]]
    rule = create("cgpfl", contexts=3)
    after = played_round(rule, ctx, begin(rule, ctx), uploaded([[4, 0], [9, 0]], (0, 2)))
    assert after.membership.home.tolist() == [0, -1, 1]
    assert after.models.tolist() == [[4.0, 0.0], [9.0, 0.0], [0.0, 0.0]]


def test_clients_start_from_their_context_or_from_the_initial_weights() -> None:
    ctx, rule = Small(), create("cgpfl", contexts=2)
    ctx.initial = torch.tensor([5.0, 5.0])
    state = at(rule, ctx, [[1.0, 0.0], [2.0, 0.0]], [1, -1, 0])
    starts = rule.dispatch(state, TRAIN, ctx)
    assert starts.params[:, 0].tolist() == [[2, 0], [5, 5], [1, 0]]
    assert create("cgpfl", contexts=1).setup(ctx).membership.home.tolist() == [0, 0, 0]


def test_clients_have_theta_and_strangers_the_largest_context() -> None:
    ctx, rule = Small(), create("cgpfl", contexts=3)
    theta = torch.tensor([[7.0, 7.0], [torch.nan] * 2, [torch.nan] * 2])
    state = at(rule, ctx, [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], [0, -1, 2])
    found = rule.personalise(state.remember({MEMORY: theta}), ctx.everybody)
    assert found.params.tolist() == [[7, 7], [0, 0], [2, 0]], "contexts 0 and 2 are as large"
    assert found.others["global"].row.tolist() == [0, 0, 2]
    state = at(rule, ctx, [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], [2, -1, 2])
    assert rule.personalise(state, torch.tensor([1])).params.tolist() == [[2, 0]]


def test_a_newcomer_has_the_model_nearest_to_its_own() -> None:
    class Door(Small):
        def train(self, start: torch.Tensor, clients: torch.Tensor) -> torch.Tensor:
            assert start is self.initial
            return torch.tensor([[1.0, 3.0], [1.0, 1.0]])

    ctx, rule = Door(), create("cgpfl", contexts=2)
    state = at(rule, ctx, [[0.0, 0.0], [1.0, 4.0]], [0, 1, 1])
    assert rule.join(state, torch.arange(3, 5), ctx).row.tolist() == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_one_context_is_pfedme(executor: str, play_toy: Play) -> None:
    settings = {"beta": 0.5, "lam": 5.0}
    one = play_toy("cgpfl", settings={**settings, "contexts": 1}, executor=executor)
    pfedme = play_toy("pfedme", settings=settings, executor=executor)
    same_end(one, pfedme)
    same_evaluations(one, pfedme)
    assert one.run.ledger.totals == pfedme.run.ledger.totals


@pytest.mark.slow
def test_contexts_are_the_groups(play_toy: Play) -> None:
    played = play_toy("cgpfl", settings={"contexts": 2}, rounds=4, participation=1.0)
    assert played.result.summary["ari"] == 1.0
