"""FL+HC: distances and groups by hand, the round of the clustering, laws, newcomers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import NEWCOMERS, Door, Small, uploaded
from toy import CLIENTS, Play, composition

import flbench as fl
from flbench_plugins.flhc import FLHC

UPDATES = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]  # cosines .8, 0 and .6
W = torch.tensor([[10.0, 20.0]])


def grouped(rule: FLHC, newcomers: int = 0) -> tuple[Any, Any, Any]:
    """What the server makes, after round n, of three clients' updates from w = (10, 20)."""
    ctx: Any = Small(round_=rule.n + 1)
    ctx.newcomers, ctx.local, ctx.cohort = newcomers, fl.LocalTraining(), ctx.everybody
    state = fl.State(rule.n, W, fl.Membership(torch.zeros(3, dtype=torch.int64)))
    rows = (torch.tensor(UPDATES) + W).tolist()
    stage, train = rule.plan(ctx) or ()
    assert (stage.kind, train.kind) == ("probe", "train")
    assert rule.score(state, train, uploaded(UPDATES), ctx) is None
    scores = rule.score(state, stage, uploaded(rows), ctx)
    assert scores is not None
    return -scores.values, rule.cluster(state, scores), scores.memory


@pytest.mark.parametrize(
    ("metric", "distances"),
    [("cosine", [0.2, 1, 0.4]), ("l1", [0.8, 2, 1.2]), ("l2", [0.4**0.5, 2**0.5, 0.8**0.5])],
)
def test_distances_by_hand(metric: Any, distances: list[float]) -> None:
    """l2: (.2, -.6), (1, -1), (.8, -.4) have lengths sqrt .4, sqrt 2 and sqrt .8."""
    found, _, _ = grouped(FLHC(metric=metric))
    assert [float(found[i, j]) for i, j in ((0, 1), (0, 2), (1, 2))] == pytest.approx(distances)


@pytest.mark.parametrize(
    ("linkage", "metric", "height"),
    [("average", "cosine", 0.7), ("single", "cosine", 0.4), ("complete", "cosine", 1.0),
     ("ward", "l2", (5.2 / 3) ** 0.5), ("complete", "l1", 2.0)],
)  # fmt: skip
def test_linkages_by_hand(linkage: Any, metric: Any, height: float) -> None:
    """Clients 0 and 1 merge first. ward: sqrt((2 * 2 + 2 * .8 - .4) / 3) from there to client 2."""
    for distance, home in ((height - 0.01, [0, 0, 1]), (height + 0.01, [0, 0, 0])):
        rule = FLHC(linkage=linkage, metric=metric, distance=distance)
        _, found, _ = grouped(rule)
        assert found.home.tolist() == home
        assert found.parent.tolist() == [0] * len(set(home))


def test_w_and_all_updates_are_kept_for_newcomers() -> None:
    _, _, memory = grouped(FLHC(), newcomers=1)
    assert memory["flhc.start"].tolist() == W[0].tolist()
    torch.testing.assert_close(memory["flhc.updates"], torch.tensor(UPDATES))


def test_a_newcomer_trains_from_w_and_joins_the_nearest_by_hand() -> None:
    """Its update (0, 2) has cosines 0, .6 and 1 with those of the clients, in groups 0, 0 and 1."""
    ctx: Any = Small()
    ctx.train = lambda start, clients: start + torch.tensor([[0.0, 2.0]])
    memory = {"flhc.start": W[0], "flhc.updates": torch.tensor(UPDATES)}
    state = fl.State(9, W.repeat(2, 1), fl.Membership(torch.tensor([0, 0, 1, -1])), memory)
    found = FLHC().join(state, torch.tensor([3]), ctx)
    assert found is not None
    assert found.row is not None
    assert found.row.tolist() == [1]


def test_ward_needs_euclidean_distances() -> None:
    with pytest.raises(fl.Undefined, match="metric=l2, not for cosine"):
        FLHC(linkage="ward").setup(Small())  # type: ignore[arg-type]


@pytest.mark.slow
def test_all_clients_train_once_for_the_clustering(play_toy: Play) -> None:
    played = play_toy("flhc", settings={"n": 1}, rounds=3)
    assert played.result.summary["ari"] == 1.0
    told = play_toy("oracle", settings={"warmup": 1}, rounds=3)
    assert torch.equal(played.state.models, told.state.models), "their models are thrown away"
    up, down = 4 * 28 * (CLIENTS + 9), 4 * 28 * (CLIENTS + 6)
    expected = {"down": {"model": down}, "up": {"model": up}, "peer": {}}
    assert played.run.ledger.totals == expected, "who trained from w holds it"


@pytest.mark.slow
def test_one_group_is_fedavg(play_toy: Play) -> None:
    one = play_toy("flhc", settings={"n": 1, "distance": 2})
    assert torch.equal(one.state.models, play_toy("fedavg").state.models)
    never = play_toy("flhc", settings={"n": 9})
    assert torch.equal(never.state.models, play_toy("fedavg").state.models)
    assert any("do not exceed n=9" in said for said in never.said)


@pytest.mark.slow
def test_newcomers_find_their_group(play_toy: Play) -> None:
    rule, found = FLHC(n=1), list[Any]()
    door = Door(lambda *asked: rule.join(*asked).row, found)
    played = play_toy(composition(("flhc", rule), ("door", door)), **NEWCOMERS)
    home, groups = played.state.membership.home, played.run.groups
    unseen = played.result.unseen
    served = [groups[home == row].unique().tolist() for row in found[0].tolist()]
    assert served == [[group] for group in unseen.group]
