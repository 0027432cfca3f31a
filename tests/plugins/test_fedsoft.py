"""FedSoft: importance, the pull of the centres and their means by hand; laws; newcomers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small import NEWCOMERS, TRAIN, Small, begin, cohorts, uploaded
from toy import CLIENTS, Play

import flbench as fl
from flbench_plugins.fedsoft import FedSoft, sample_losses

CENTRES = [[0.0, 0.0], [1.0, 0.0]]


class Answering(Small):
    """Clients with four samples each, of which `fits[k]` fit the first centre."""

    def __init__(self, *fits: int, round_: int = 1) -> None:
        super().__init__(round_=round_)
        self.fits, self.asked, self.models = fits, list[int](), list[Any]()

    def client_data(self, client: int) -> Any:
        self.asked.append(client)
        x = (torch.arange(4) < self.fits[client]).float()[:, None]
        return x, torch.zeros(4, dtype=torch.int64)

    def logits(self, models: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The first model is right about samples of 1, the second about those of 0."""
        right = torch.stack([x, 1 - x])
        return torch.cat([right, torch.full_like(right, 0.5)], dim=2)

    def send_models(self, clients: torch.Tensor, models: torch.Tensor) -> None:
        self.models.append((clients.tolist(), len(models)))

    def send(self, way: str, ids: Any, item: str, scalars: Any) -> None:
        self.sent.append((way, ids.tolist(), item, scalars))

    def fresh_initial(self, index: int) -> torch.Tensor:
        return torch.tensor(CENTRES[index])


def scored(rule: FedSoft, ctx: Any, state: fl.State) -> fl.State:
    scores = rule.score(state, TRAIN, "before", ctx)
    assert scores is not None
    state = state.remember(scores.memory)
    return state.regroup(rule.cluster(state, scores))


def test_importance_by_hand() -> None:
    """3, 4 and 0 of 4 samples fit the first centre: u = (.75, .25), (1, sigma) and (sigma, 1)."""
    ctx, rule = Answering(3, 4, 0), FedSoft(sigma=0.01)
    state = begin(rule, ctx)
    assert state.models.tolist() == CENTRES
    found = scored(rule, ctx, state)
    u = torch.tensor([[0.75, 0.25], [1, 0.01], [0.01, 1]])
    torch.testing.assert_close(found.memory["fedsoft.u"], u)
    torch.testing.assert_close(found.membership.weights, u.T)
    assert found.membership.home.tolist() == [0, 0, 1]
    assert ctx.models == [([0, 1, 2], 2)]
    assert ctx.sent == [("up", [0, 1, 2], "importance", 2)]
    assert rule.score(state, TRAIN, "after", ctx) is None


@pytest.mark.parametrize(("round_", "asked"), [(1, [0, 1, 2]), (2, [1]), (3, [1]), (4, [0, 1, 2])])
def test_importance_is_estimated_every_tau_rounds(round_: int, asked: list[int]) -> None:
    """tau = 3. Client 1 has not been sampled before."""
    ctx, rule = Answering(3, 4, 0, round_=round_), FedSoft(tau=3)
    state = begin(rule, ctx)
    known = torch.tensor([[0.5, 0.5], [torch.nan, torch.nan], [0.5, 0.5]])
    found = scored(rule, ctx, state.remember({"fedsoft.u": known}))
    assert ctx.asked == asked
    assert not found.memory["fedsoft.u"].isnan().any()
    assert ctx.sent == [("up", asked, "importance", 2)]


def test_losses_of_samples_by_hand() -> None:
    """Logits (0, 0) and (log 3, 0), label 0: log 2 and log 4/3. Of text it is the mean."""
    logits = torch.tensor([[[0.0, 0.0]], [[torch.tensor(3.0).log(), 0.0]]])
    expected = torch.tensor([[2.0], [4 / 3]]).log()
    torch.testing.assert_close(sample_losses(logits, torch.tensor([0])), expected)
    text = torch.stack([logits, logits], dim=2)  # two tokens, of labels 0 and 1
    found = sample_losses(text, torch.tensor([[0, 1]]))
    torch.testing.assert_close(found, torch.tensor([[2.0], [(4 / 3 * 4) ** 0.5]]).log())


def test_the_pull_of_the_centres_by_hand() -> None:
    """w = (1, 2), u = (.75, .25): squared distances 5 and 4; .5 / 2 (3.75 + 1) = 1.1875."""
    received = {"centres": torch.tensor(CENTRES), "u": torch.tensor([0.75, 0.25])}
    module: Any = SimpleNamespace(flat=lambda: torch.tensor([1.0, 2.0]), received=received)
    assert float(FedSoft(lam=0.5).local_term()(module)) == 1.1875


def test_clients_start_from_their_own_model_or_the_mean_of_the_centres() -> None:
    ctx = Answering(3, 4, 0)
    own = torch.tensor([[5.0, 6.0], [7.0, 8.0], [9.0, 9.0]])
    for start, first in (("own", [5, 6]), ("centres", [0.25, 0])):
        rule = FedSoft(start=start)  # type: ignore[arg-type]
        state = begin(rule, ctx).remember({"fedsoft.own": own})
        found = rule.dispatch(scored(rule, ctx, state), TRAIN, ctx)
        assert found.params is not None
        assert found.params[0, 0].tolist() == first
        assert not found.sent_mask.any(), "they make it themselves"
        assert found.client_memory["centres"].shape == (3, 2, 2)


def test_centres_are_means_by_importance_and_samples_by_hand() -> None:
    """n = 1, 2, 3; u as above with sigma .01: weights .75, 2, .03 and .25, .02, 3."""
    ctx, rule = Answering(3, 4, 0), FedSoft(sigma=0.01)
    state = scored(rule, ctx, begin(rule, ctx))
    upload = uploaded([[1, 0], [0, 1], [1, 1]])
    found = fl.member_mean(state.models, upload, state.membership)
    expected = [[0.78 / 2.78, 2.03 / 2.78], [3.25 / 3.27, 3.02 / 3.27]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_evaluation_by_hand() -> None:
    """Client 1 was not sampled: (1, .01) by its samples, so 0.01 / 1.01 of the way to c_1."""
    ctx, rule = Answering(3, 4, 0, 2), FedSoft(sigma=0.01)
    u = torch.tensor([[0.75, 0.25], [torch.nan, torch.nan], [0.01, 1]])
    state = begin(rule, ctx).remember({"fedsoft.u": u, "fedsoft.own": torch.full((3, 2), 7.0)})
    found = rule.personalise(state, ctx.everybody, ctx).params
    torch.testing.assert_close(found, torch.tensor([[7, 7], [0.01 / 1.01, 0], [7, 7]]))
    mixed = FedSoft(sigma=0.01, start="centres").personalise(state, ctx.everybody, ctx).params
    expected = torch.tensor([[0.25, 0], [0.01 / 1.01, 0], [1 / 1.01, 0]])
    torch.testing.assert_close(mixed, expected)
    newcomer = rule.join(state, torch.tensor([3]), ctx).params
    torch.testing.assert_close(newcomer, torch.tensor([[0.5, 0]]))


@pytest.mark.slow
@pytest.mark.parametrize(("other", "lam"), [("fedavg", 0.0), ("fedprox", 0.5)])
def test_one_centre_is_fedprox(play_toy: Play, other: str, lam: float) -> None:
    settings = {"s": 1, "lam": lam, "start": "centres"}
    told = {"mu": lam} if lam else {}
    one, its = play_toy("fedsoft", settings=settings), play_toy(other, settings=told)
    assert torch.equal(one.state.models, its.state.models)
    assert one.run.history.curves["accuracy"] == its.run.history.curves["accuracy"]


@pytest.mark.slow
def test_without_a_pull_clients_train_alone(play_toy: Play) -> None:
    alone = play_toy("local-only", participation=1.0).personal
    found = play_toy("fedsoft", settings={"lam": 0}, participation=1.0)
    assert torch.equal(found.state.memory["fedsoft.own"], alone)


@pytest.mark.slow
def test_both_centres_are_of_importance(play_toy: Play) -> None:
    played = play_toy("fedsoft", rounds=4)
    u = played.state.memory["fedsoft.u"]
    met = sorted({client for ids in cohorts(played) for client in ids})
    assert (~u[:, 0].isnan()).nonzero()[:, 0].tolist() == met
    assert ((u > 0) & (u < 1)).any()
    assert (played.state.membership.home >= 0).sum() == len(met) <= CLIENTS
    own = played.state.memory["fedsoft.own"][met]
    assert len(own.unique(dim=0)) == len(met), "a model each"


@pytest.mark.slow
def test_newcomers_are_served_by_their_own_importance(play_toy: Play) -> None:
    played = play_toy("fedsoft", **NEWCOMERS)
    assert len(played.result.unseen.correct) == 3
