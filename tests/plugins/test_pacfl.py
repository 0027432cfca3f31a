"""PACFL: angles by hand, who is grouped, what it costs, laws, newcomers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small import NEWCOMERS, Door
from toy import Play, composition

import flbench as fl
from flbench_plugins.pacfl import PACFL, first_vectors

BY_CLASS = {"p": 1, "per": "class", "angle": "vectors", "beta": 30.0}
X, Y = [2.0, 0.0, 0.0], [0.0, 1.0, 0.0]


def clients(*samples: list[list[float]]) -> Any:
    """A context whose clients own samples of label 0; and what they send."""
    data, sent = [torch.tensor(rows) for rows in samples], list[Any]()
    return SimpleNamespace(
        round=1, clients=len(data), everybody=torch.arange(len(data)), newcomers=0,
        client_data=lambda i: (data[i], torch.zeros(len(data[i]), dtype=torch.int64)),
        sent=sent, send=lambda way, ids, item, scalars: sent.append((way, item, scalars.tolist())),
    )  # fmt: skip


def one_model(ctx: Any) -> fl.State:
    return fl.State(0, torch.zeros(1, 1), fl.Membership(torch.zeros_like(ctx.everybody)))


def between(rule: PACFL, *samples: list[list[float]]) -> list[float]:
    """Angles of the first client and the others, in degrees."""
    scores = rule.score(one_model(ctx := clients(*samples)), "before", ctx)
    assert scores is not None
    assert torch.equal(scores.values, scores.values.T)
    return (-scores.values[0, 1:]).tolist()


def test_singular_vectors_by_hand() -> None:
    """Samples 2 e1 and e2: singular values 2 and 1. The sign is that of the largest scalar."""
    assert first_vectors(torch.tensor([X, Y]), 2).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert first_vectors(torch.tensor([X, Y]), 1).tolist() == [[1, 0, 0]]
    assert first_vectors(torch.tensor([[-3.0, 0.0, 0.0]]), 2).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize(
    ("angle", "degrees"), [("smallest", [0, 90, 0]), ("trace", [135, 180, 90]),
                           ("vectors", [45, 90, 0])]
)  # fmt: skip
def test_angles_by_hand(angle: Any, degrees: list[float]) -> None:
    """U_0 = (e1, e2). U_1 = (e3, (e1 + e2) / sqrt 2): one vector is in the plane, at 45 degrees.

    trace: arccos 0 + arccos 1 / sqrt 2. Client 2 has e3 alone: 90, and 90 for the vector that it
    lacks. Client 3 has e1 alone: 0, and 90 for the other.
    """
    others = [[0.0, 0.0, 3.0], [0.5, 0.5, 0.0]], [[0.0, 0.0, 3.0]], [X]
    assert between(PACFL(p=2, angle=angle), [X, Y], *others) == pytest.approx(degrees, abs=1e-5)


def test_vectors_of_each_class_by_hand() -> None:
    """Label 0 lies along e1, label 1 along e2 + e3: with p = 1 the client's own is the latter."""
    x, y = torch.tensor([X, [0.0, 2.0, 2.0]]), torch.tensor([0, 1])
    half = 0.5**0.5
    own = PACFL(p=1, per="client").vectors(x, y)
    torch.testing.assert_close(own, torch.tensor([[0, half, half]]).double())
    each = PACFL(p=1, per="class", angle="vectors").vectors(x, y)
    torch.testing.assert_close(each, torch.tensor([[1, 0, 0], [0, half, half]]).double())
    with pytest.raises(fl.Undefined, match="text"):
        PACFL().vectors(torch.zeros(2, 3), torch.zeros(2, 3))


def test_the_span_of_classes_has_a_basis_of_its_own() -> None:
    """Labels at e1 and e1 + e2, and another client at e2, which is in their span."""
    rule = PACFL(p=1, per="class")
    found = rule.vectors(torch.tensor([X, [1.0, 1.0, 0.0]]), torch.tensor([0, 1]))
    torch.testing.assert_close(found @ found.T, torch.eye(2).double())
    assert float(rule.angles(found[None], torch.tensor([[Y]]).double())) == pytest.approx(0)


TEN = [[0.9848078, 0.1736482, 0.0]]  # 10 degrees from e1


@pytest.mark.parametrize(
    ("beta", "home"),
    [(0, [0, 0, 1, 2]), (9.9, [0, 0, 1, 2]), (10.1, [0, 0, 0, 1]), (90, [0] * 4)],
)
def test_groups_are_cut_at_beta_once_and_cost_the_vectors(beta: float, home: list[int]) -> None:
    """Clients 0 and 1 at e1, client 2 at 10 degrees, client 3 at e3."""
    ctx, rule = clients([X], [[1.0, 0.0, 0.0]], TEN, [[0.0, 0.0, 1.0]]), PACFL(p=1, beta=beta)
    scores = rule.score(one_model(ctx), "before", ctx)
    found = rule.cluster(one_model(ctx), scores, ctx)
    assert found is not None
    assert found.home.tolist() == home
    assert found.parent is not None
    assert found.parent.tolist() == [0] * len(set(home))
    assert ctx.sent == [("up", "vectors", [3, 3, 3, 3])]
    assert rule.score(one_model(ctx), "after", ctx) is None
    ctx.round = 2
    assert rule.score(one_model(ctx), "before", ctx) is None


def test_a_newcomer_joins_the_nearest_group_by_hand() -> None:
    """At 10 degrees from e1 it is 80 from e2: the mean over the first group (0, 90) is 45."""
    ctx, rule = clients([X], [Y], [X], TEN), PACFL(p=1)
    ctx.clients = 3
    known = torch.stack([rule.vectors(*ctx.client_data(client)) for client in range(3)])
    home = fl.Membership(torch.tensor([0, 0, 1, -1]))
    state = fl.State(3, torch.zeros(2, 1), home, {"pacfl.vectors": known})
    found = rule.join(state, torch.tensor([3]), ctx)
    assert found is not None
    assert found.row is not None
    assert found.row.tolist() == [1]


@pytest.mark.slow
def test_on_groups_of_labels_it_is_the_oracle(play_toy: Play) -> None:
    found = play_toy("pacfl", settings=BY_CLASS)
    told = play_toy("oracle", settings={"warmup": 0})
    assert found.result.summary["ari"] == 1.0
    assert torch.equal(found.state.models, told.state.models)


@pytest.mark.slow
def test_newcomers_find_their_group(play_toy: Play) -> None:
    rule, found = PACFL(**BY_CLASS), list[Any]()  # type: ignore[arg-type]
    door = Door(lambda *asked: rule.join(*asked).row, found)
    played = play_toy(composition(("pacfl", rule), ("door", door)), **NEWCOMERS)
    home, groups, unseen = (
        played.state.membership.home,
        played.run.groups,
        played.result.unseen,
    )
    assert played.state.memory["pacfl.vectors"].shape == (6, 2, 3)
    served = [groups[home == row].unique().tolist() for row in found[0].tolist()]
    assert served == [[group] for group in unseen.group]


@pytest.mark.slow
def test_one_group_is_fedavg_and_groups_of_one_are_local_only(play_toy: Play) -> None:
    one = play_toy("pacfl", settings={"beta": 180}).state.models
    assert torch.equal(one, play_toy("fedavg").state.models)
    each = play_toy("pacfl", settings={**BY_CLASS, "beta": 0}).state.models
    assert torch.equal(each, play_toy("local-only").personal)
