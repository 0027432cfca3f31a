"""FedGroup: cosines and cold starts by hand, the steps between groups, laws, newcomers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small import NEWCOMERS, Door, Small, begin, cohorts, uploaded
from toy import CLIENTS, Play, composition

import flbench as fl
from flbench_plugins.fedgroup import CLIENTS as LATER
from flbench_plugins.fedgroup import GROUPS, FedGroup, decomposed_cosines, others

W = torch.tensor([1.0, 2.0])


def begun(rule: FedGroup) -> tuple[Any, fl.State]:
    """Three clients of two scalars, w_0 = (1, 2)."""
    ctx: Any = Small()
    ctx.cohort, ctx.local, ctx.initial = torch.tensor([0, 2]), fl.LocalTraining(), W
    ctx.rng = lambda *address, client=0: np.random.default_rng(client)
    return ctx, begin(rule, ctx, [W.tolist()])


def met(rule: FedGroup, ctx: Any, state: fl.State, updates: Any, ids: Any, name: str) -> fl.State:
    """The state after a cold start in which clients move from w by updates."""
    rows = (torch.tensor(updates) + state.memory["fedgroup.w"]).tolist()
    stage = fl.Stage("probe", torch.tensor(ids), 1, name)
    scores = rule.score(state, stage, uploaded(rows, ids), ctx)
    assert scores is not None
    state = state.remember(scores.memory)
    return state.regroup(rule.cluster(state, stage, scores, ctx))


def test_decomposed_cosines_by_hand() -> None:
    """Updates 3 e1, -4 e1 and 2 e2: singular values 5 and 2, of e1 and e2 (up to their signs)."""
    found = decomposed_cosines(torch.tensor([[3.0, 0, 0], [-4.0, 0, 0], [0, 2.0, 0]]), 2)
    torch.testing.assert_close(found.abs(), torch.tensor([[1, 0], [1, 0], [0, 1]]).double())
    assert float(found[0] @ found[1]) == pytest.approx(-1)
    assert decomposed_cosines(torch.ones(2, 5), 9).shape == (2, 2)


def test_a_group_cold_start_by_hand() -> None:
    """Clients 0 and 1 move by (2, 0) and (4, 0), client 2 by (0, 1); the means are uniform.

    E is (1, 0), (1, 0) and (0, 1), so EDC_02 = sqrt 2 / sqrt 2.
    """
    rule = FedGroup(m=2)
    ctx, state = begun(rule)
    rows = [[3.0, 2.0], [5.0, 2.0], [1.0, 3.0]]
    stage = fl.Stage("probe", ctx.everybody, 1, GROUPS)
    scores = rule.score(state, stage, uploaded(rows), ctx)
    assert scores is not None
    expected = -torch.tensor([[0, 0, 1], [0, 0, 1], [1, 1, 0]]).double()
    torch.testing.assert_close(scores.values, expected)
    found = met(rule, ctx, state, [[2, 0], [4, 0], [0, 1]], (0, 1, 2), GROUPS)
    assert found.membership.home.tolist() == [0, 0, 1]
    assert found.models.tolist() == [[4, 2], [1, 3]]
    assert found.memory["fedgroup.updates"].tolist() == [[3, 0], [0, 1]]
    assert not found.memory["fedgroup.models"].numel(), "nobody needs them any more"


def test_a_client_cold_start_by_hand() -> None:
    """Client 2 moves by (2, 1): cosines 2 / sqrt 5 and 1 / sqrt 5 with (3, 0) and (0, 1)."""
    rule = FedGroup(m=2)
    ctx, state = begun(rule)
    state = met(rule, ctx, state, [[3, 0], [0, 1]], (0, 1), GROUPS)
    assert state.membership.home.tolist() == [0, 1, -1]
    found = met(rule, ctx, state, [[2, 1]], (2,), LATER)
    assert found.membership.home.tolist() == [0, 1, 0]
    assert torch.equal(found.models, state.models), "its pre-training is not averaged"


def test_cold_starts_are_due_until_they_happened() -> None:
    rule = FedGroup(m=1, alpha=2)
    ctx, state = begun(rule)
    first, *rest = rule.plan(state, ctx)
    assert (first.kind, first.label, len(first.clients)) == ("probe", GROUPS, 2)
    late = [stage.clients.tolist() for stage in rest if stage.label == LATER]
    assert late == [[i] for i in (0, 2) if i not in first.clients.tolist()]
    assert rest[-1].kind == "train"
    decided = replace(state, membership=fl.Membership(torch.tensor([0, -1, -1])))
    later, train = rule.plan(decided, ctx)
    assert (later.label, later.clients.tolist()) == (LATER, [2])
    assert train.clients.tolist() == [0, 2]
    everybody = replace(state, membership=fl.Membership(torch.tensor([0, 0, 0])))
    assert [stage.kind for stage in rule.plan(everybody, ctx)] == ["train"]


def test_a_round_by_hand() -> None:
    """Rows (1, 2) and (4, 4); client 2, of the second, ends at (3, 4), whose length is 5.

    eta_g = .5: (1, 2) + .5 (.6, .8), and (3, 4) + .5 (1, 2) / sqrt 5.
    """
    ctx: Any = Small()
    home = fl.Membership(torch.tensor([0, 0, 1]))
    memory = {"fedgroup.w": W, "fedgroup.updates": torch.tensor([[7.0, 7.0], [8.0, 8.0]])}
    state = fl.State(1, torch.tensor([[1.0, 2.0], [4.0, 4.0]]), home, memory)
    upload = uploaded([[3, 4]], (2,))
    found = FedGroup().aggregate(state, upload, home, ctx)
    assert found.rows.tolist() == [[1, 2], [3, 4]]
    assert found.memory["fedgroup.updates"].tolist() == [[7, 7], [-1, 0]], "only of who moved"
    assert found.memory["fedgroup.w"].tolist() == [2, 3]
    across = FedGroup(eta_g=0.5).aggregate(state, upload, home, ctx)
    part = 0.5 / 5**0.5
    expected = torch.tensor([[1.3, 2.4], [3 + part, 4 + 2 * part]])
    torch.testing.assert_close(across.rows, expected)
    assert others(torch.tensor([[3.0, 4.0]])).tolist() == [[0, 0]]


def test_whoever_was_not_met_is_evaluated_with_w() -> None:
    rule = FedGroup(m=2)
    ctx, state = begun(rule)
    state = met(rule, ctx, state, [[3, 0], [0, 1]], (0, 1), GROUPS)
    found = rule.personalise(state, ctx.everybody)
    assert found.params is not None
    assert found.params.tolist() == [[4, 2], [1, 3], [1, 2]]


@pytest.mark.slow
def test_groups_are_found_and_cold_starts_are_counted(play_toy: Play) -> None:
    played = play_toy("fedgroup", settings={"m": 2, "alpha": 2})
    home, truth = played.state.membership.home, played.run.groups
    known = home >= 0
    assert len(played.state.models) == 2
    assert all(len(home[known & (truth == group)].unique()) == 1 for group in (0, 1))
    sampled = {client for ids in cohorts(played) for client in ids}
    assert sampled <= set(known.nonzero()[:, 0].tolist())
    moved = 4 * 28 * (int(known.sum()) + 9)
    assert played.run.ledger.totals["up"] == {"model": moved}


@pytest.mark.slow
def test_one_group_without_pre_training_is_fedavg(play_toy: Play) -> None:
    settings = {"m": 1, "pre_epochs": 0}
    one = play_toy("fedgroup", settings=settings, participation=1.0)
    assert torch.equal(one.state.models, play_toy("fedavg", participation=1.0).state.models)
    assert one.state.membership.home.tolist() == [0] * CLIENTS


@pytest.mark.slow
def test_newcomers_find_their_group(play_toy: Play) -> None:
    rule, found = FedGroup(m=2), list[Any]()
    door = Door(lambda *asked: rule.join(*asked).row, found)
    method = composition(("fedgroup", rule), ("door", door))
    played = play_toy(method, rounds=1, **NEWCOMERS)
    home, groups = played.state.membership.home, played.run.groups
    unseen = played.result.unseen
    served = [groups[home == row].unique().tolist() for row in found[0].tolist()]
    assert served == [[group] for group in unseen.group]
