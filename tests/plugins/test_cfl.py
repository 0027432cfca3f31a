"""CFL: the cut by brute force, splits of known moves, then laws, newcomers and compositions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small import NEWCOMERS, STEP, Door, Drift, Uniform, cohorts, executors_agree, resumed, same_end
from toy import CLIENTS, Play, Played, composition, toy_dataset, watching

import flbench as fl
from flbench.toolbox.clustering import bipartition
from flbench.toolbox.similarity import cosine
from flbench_plugins.cfl import CFL

FULL = {"participation": 1.0}
READY = {"start_round": 0, "min_size": 1}
ALWAYS = {**READY, "eps1": 1e9, "eps2": 0.0}


def moves_at(*degrees: float, length: float = 2.0) -> torch.Tensor:
    """One move per client, in the plane of the first two scalars."""
    angle = torch.deg2rad(torch.tensor(degrees))
    moves = torch.zeros(len(degrees), 28)
    moves[:, 0], moves[:, 1] = length * angle.cos(), length * angle.sin()
    return moves


OPPOSITE = moves_at(0, 180, 0, 180, 0, 180)
NESTED = moves_at(0, 180, 40, 185, 5, 230)
"""Even against odd; within them 2 against 0 and 4, and 5 against 1 and 3."""


def drifting(play_toy: Play, rule: CFL, moves: torch.Tensor, **more: Any) -> Played:
    method = composition(("cfl", rule), ("drift", Drift(moves)))
    return play_toy(method, **{"local": STEP, **more})


def homes(played: Played) -> list[int]:
    return played.state.membership.home.tolist()


# --- the cut ------------------------------------------------------------------------------------


def across(similarity: Any, second: Any) -> float:
    return float(similarity[second][:, ~second].max())


def similarities(n: int, seed: int) -> Any:
    return cosine(torch.as_tensor(np.random.default_rng(seed).normal(size=(n, 3)))).numpy()


@pytest.mark.parametrize("n", range(2, 9))
def test_single_linkage_finds_the_best_cut_of_all(n: int) -> None:  # T13
    missed = 0
    for seed in range(20):
        similarity = similarities(n, seed)
        masks = [np.array(mask) for mask in product((False, True), repeat=n) if not mask[0]]
        best = min(across(similarity, mask) for mask in masks if mask.any())
        found = bipartition(similarity)
        assert not found[0]
        assert found.any()
        assert across(similarity, found) == pytest.approx(best)
        missed += across(similarity, bipartition(similarity, "complete")) > best + 1e-9
    assert missed or n <= 3, "the released rule misses it"
    assert 0 < bipartition(np.ones((n, n))).sum() < n, "two sides even where all are alike"


@pytest.mark.parametrize(
    ("updates", "samples", "members", "settings", "expected"),
    [
        ([[2, 0], [-2, 0]], [1, 1], 3, {}, True),
        ([[2, 0], [-2, 0]], [1, 1], 2, {}, False),  # only larger groups split
        ([[2, 0], [-2, 0]], [1, 1], 2, {"min_size": 1}, True),
        ([[2, 0]], [1], 9, {"eps1": 9}, False),  # one update says nothing
        ([[2, 0], [-1, 0]], [1, 1], 3, {"eps1": 0.5}, False),  # mean .5
        ([[2, 0], [-1.25, 0]], [1, 1], 3, {}, True),  # mean .375
        ([[2, 0], [-2, 0]], [1, 1], 3, {"eps2": 2}, False),
        ([[1.625, 0], [-1.5, 0]], [1, 1], 3, {}, True),  # the longest counts
        ([[2, 0], [-2, 0]], [1, 3], 3, {}, True),  # uniform
        ([[2, 0], [-2, 0]], [1, 3], 3, {"weighting": "samples"}, False),  # mean -1
        ([[4, 0], [-1, 0]], [1, 3], 3, {"weighting": "samples"}, True),  # mean .25
        ([[4, 0], [-1, 0]], [1, 3], 3, {}, False),
        ([[0.01, 0], [-0.01, 0]], [1, 1], 3, {"eps_mode": "relative", "eps1": 0}, True),
        ([[8, 0], [-4, 0]], [1, 1], 3, {"eps_mode": "relative", "eps1": 9}, False),  # 2 / 8
        ([[8, 0], [-4.1, 0]], [1, 1], 3, {"eps_mode": "relative", "eps1": 0}, True),
        ([[0, 0], [0, 0]], [1, 1], 3, {"eps_mode": "relative"}, False),
    ],
)
def test_a_group_at_rest_whose_members_are_not_is_at_odds(
    updates: Any, samples: Any, members: int, settings: Any, expected: bool
) -> None:
    rule = CFL(**settings)
    found = rule.may_split(torch.tensor(updates).float(), torch.tensor(samples), members)
    assert found is expected


# --- splits of known moves ----------------------------------------------------------------------


@pytest.mark.slow
def test_two_opposite_moves_split_exactly(play_toy: Play) -> None:  # T13
    played = drifting(play_toy, CFL(start_round=0), OPPOSITE, **FULL, rounds=1)
    assert homes(played) == [0, 1, 0, 1, 0, 1]
    start = played.run.context.initial
    torch.testing.assert_close(played.state.models, start + OPPOSITE[:2])
    again = drifting(play_toy, CFL(start_round=0), OPPOSITE, **FULL, rounds=3)
    assert homes(again) == homes(played), "each half moves as one and splits no more"
    torch.testing.assert_close(again.state.models, start + 3 * OPPOSITE[:2])


@pytest.mark.slow
def test_nested_splits_keep_a_partition_and_true_ids(play_toy: Play) -> None:  # T13
    """Places inside a group are mapped back to ids: place 2 of the odd ones is client 5."""
    played = drifting(play_toy, CFL(**ALWAYS), NESTED, **FULL, rounds=2)
    assert homes(played) == [0, 1, 2, 1, 0, 3]
    start, memory = played.run.context.initial, played.state.memory
    even, odd = NESTED[0::2].mean(dim=0), NESTED[1::2].mean(dim=0)
    parts = [([0, 4], even), ([1, 3], odd), ([2], even), ([5], odd)]
    expected = [start + first + NESTED[ids].mean(dim=0) for ids, first in parts]
    torch.testing.assert_close(played.state.models, torch.stack(expected))
    assert memory["cfl.splits"].tolist() == [[0, 1], [0, 2], [1, 3]]
    parents = torch.stack([start, start + even, start + odd])
    torch.testing.assert_close(memory["cfl.parents"], parents)
    pairs = [([0, 2, 4], [1, 3, 5]), ([0, 4], [2]), ([1, 3], [5])]
    halves = [torch.stack([NESTED[a].mean(dim=0), NESTED[b].mean(dim=0)]) for a, b in pairs]
    torch.testing.assert_close(memory["cfl.halves"], torch.stack(halves))
    passed = [[True, i % 2 == 0, i % 2 == 1] for i in range(CLIENTS)]
    assert memory["cfl.path"].tolist() == passed
    last = drifting(play_toy, CFL(**ALWAYS), NESTED, **FULL, rounds=5)
    assert sorted(homes(last)) == [0, 1, 2, 3, 4, 5], "until everybody is alone"
    assert len(last.state.models) == CLIENTS


@pytest.mark.slow
def test_each_group_is_weighed_by_its_own_members(play_toy: Play) -> None:
    moves = NESTED * torch.tensor([[1.0], [2.0]]).repeat(3, 1)  # the odd ones go 4, not 2
    rule = CFL(**{**ALWAYS, "eps2": 3})
    assert homes(drifting(play_toy, rule, moves, **FULL, rounds=2)) == [0, 1, 0, 1, 0, 2]


def test_splits_follow_the_best_cut_of_the_latest_moves(play_toy: Play) -> None:
    moves = moves_at(0, 50, 95, 140, 180, 181)
    similarity, found = cosine(moves).numpy(), {}
    for linkage in ("single", "complete"):
        rule = CFL(**ALWAYS, linkage=linkage)
        found[linkage] = homes(drifting(play_toy, rule, moves, **FULL, rounds=1))
        assert found[linkage] == bipartition(similarity, linkage).astype(int).tolist()
    assert found["single"] != found["complete"], "which cuts this fan elsewhere"


@pytest.mark.parametrize(("start_round", "groups"), [(0, [2, 2, 2]), (1, [1, 2, 2]), (3, [1] * 3)])
def test_no_split_before_the_start_round_is_over(
    play_toy: Play, start_round: int, groups: list[int]
) -> None:
    played = drifting(play_toy, CFL(start_round=start_round), OPPOSITE, **FULL)
    assert played.run.history.curves["groups"] == groups
    said = [line for line in played.said if "no group splits" in line]
    assert bool(said) is (start_round >= 3), "three rounds"


@pytest.mark.parametrize(
    ("degrees", "gamma", "split"),
    [(180, 0.98, True), (90, 0.7, True), (90, 0.71, False), (60, 0.49, True), (60, 0.51, False)],
)
def test_a_split_needs_a_gap(play_toy: Play, degrees: float, gamma: float, split: bool) -> None:
    """sqrt((1 - cos) / 2) is the sine of half the angle, of the nearest two across the cut."""
    moves = moves_at(*[0, degrees, -20] * 2)
    played = drifting(play_toy, CFL(**ALWAYS, gamma_max=gamma), moves, **FULL, rounds=1)
    assert len(played.state.models) == 1 + split


@pytest.mark.parametrize(("gamma", "split"), [(0.5999, True), (0.6, False), (0.6001, False)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_gap_of_gamma_max_exactly_is_not_larger(
    play_toy: Play, gamma: float, split: bool, place: int
) -> None:
    """Cosines of 7 / 25, by three pairs of numbers: sqrt((1 - .28) / 2) is .6, but for rounding."""
    along, across = [((25, 0), (7, 24)), ((15, 20), (-15, 20)), ((4, 3), (4, -3))][place]
    moves = torch.zeros(CLIENTS, 28)
    moves[0::2, :2], moves[1::2, :2] = torch.tensor(along).float(), torch.tensor(across).float()
    played = drifting(play_toy, CFL(**ALWAYS, gamma_max=gamma), moves, **FULL, rounds=1)
    assert len(played.state.models) == 1 + split


def test_a_group_of_one_direction_does_not_split(play_toy: Play) -> None:
    """No gap is no larger than gamma_max = 0, although float32 weights round every move."""
    moves = moves_at(*[30] * 6) * torch.tensor([[1.0], [2], [3], [1], [2], [3]])
    assert len(drifting(play_toy, CFL(**ALWAYS), moves, **FULL, rounds=1).state.models) == 1
    moves[5] = moves_at(31)[0]
    assert homes(drifting(play_toy, CFL(**ALWAYS), moves, **FULL, rounds=1)) == [0] * 5 + [1]


# --- partial participation ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_group_with_a_member_never_heard_does_not_split(play_toy: Play) -> None:
    rule, rounds = CFL(**ALWAYS), 8
    played = drifting(play_toy, rule, OPPOSITE, rounds=rounds)
    drawn = cohorts(played)
    heard = [len({i for ids in drawn[: r + 1] for i in ids}) for r in range(rounds)]
    complete = heard.index(CLIENTS)
    assert complete > 1, "it took three rounds to hear everybody"
    groups = played.run.history.curves["groups"]
    assert groups[:complete] == [1] * complete
    assert groups[complete] == 2
    early = drifting(play_toy, rule, OPPOSITE, rounds=complete + 1)
    assert homes(early) == [0, 1, 0, 1, 0, 1], "by the latest move of everybody, of any age"


@pytest.mark.slow
def test_norms_are_of_those_who_trained_in_this_round(play_toy: Play) -> None:
    """One sampled client a round: its own move alone is no evidence, whatever is remembered."""
    played = drifting(play_toy, CFL(**ALWAYS), OPPOSITE, participation=0.2, rounds=12)
    assert not played.state.memory["cfl.updates"].isnan().any(), "everybody was heard"
    assert len(played.state.models) == 1


@pytest.mark.slow
@pytest.mark.parametrize("wait", [1, 6])
def test_everybody_may_be_asked_once_before_a_split(play_toy: Play, wait: int) -> None:
    rule = CFL(**{**ALWAYS, "start_round": wait, "min_size": 3}, full_on_split=True)
    uploads: list[Any] = []
    layers = ("cfl", rule), ("drift", Drift(OPPOSITE)), ("watch", watching(uploads))
    played = play_toy(composition(*layers), local=STEP, rounds=wait + 4)
    assert [len(upload.ids) for upload in uploads] == [3] * wait + [3, 6, 3, 3]
    assert played.run.history.curves["groups"] == [1] * wait + [1, 2, 2, 2]
    heard = {i for ids in cohorts(played)[:wait] for i in ids}
    assert (len(heard) == CLIENTS) is (wait == 6), "asked even where all were heard before"
    assert homes(played) == [0, 1, 0, 1, 0, 1]
    assert played.state.memory["cfl.asked"] == 0
    width = 4 * played.run.context.layout.width
    assert played.run.ledger.totals["up"] == {"model": (3 * wait + 15) * width}
    assert played.run.ledger.totals["down"] == {"model": (3 * wait + 15) * width}
    probe = fl.Stage("probe", uploads[0].ids, 1)
    assert rule.score(played.state, probe, uploads[0], played.run.context) is None, "not heard"
    whole = drifting(play_toy, rule, OPPOSITE, **FULL, rounds=wait + 1)
    assert whole.run.history.curves["groups"] == [1] * wait + [2], "everybody is there already"


def test_whoever_fails_when_all_are_called_is_not_waited_for() -> None:
    """Client 2 was called with the others in round 5; its update is an older one."""
    rule, home = CFL(**ALWAYS, full_on_split=True), fl.Membership(torch.zeros(3, dtype=torch.int64))
    updates = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [2.0, 0.0]])
    for asked, expected in ((0, [0, 0, 0]), (5, [0, 1, 0])):
        memory = {
            "cfl.updates": updates,
            "cfl.asked": torch.tensor(asked),
            "cfl.splits": torch.zeros(0, 2, dtype=torch.int64),
            "cfl.parents": torch.zeros(0, 2),
            "cfl.halves": torch.zeros(0, 2, 2),
            "cfl.path": torch.zeros(3, 0, dtype=torch.bool),
        }
        state = fl.State(4, torch.zeros(1, 2), home, memory)
        ids = torch.arange(3)
        ctx: Any = SimpleNamespace(round=5, samples=torch.ones(3))
        scores = fl.Scores(cosine(updates), ids, "clients", ids)
        found = rule.cluster(state, fl.Stage("train", torch.tensor([0, 1]), 1), scores, ctx)
        assert found is not None
        assert found.home.tolist() == expected
        assert found.memory["cfl.asked"] == (0 if asked else 6)


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_cfl_that_never_splits_is_fedavg(play_toy: Play) -> None:  # T13
    more = {"partition": {"name": "iid"}, "dataset": toy_dataset(samples=105)}
    settings = {**READY, "eps1": 0}
    cfl, fedavg = play_toy("cfl", settings=settings, **more), play_toy("fedavg", **more)
    uniform = play_toy(composition(("uniform", Uniform())), **more)
    torch.testing.assert_close(cfl.personal, uniform.personal, rtol=0, atol=1e-6)
    assert cfl.run.ledger.totals == fedavg.run.ledger.totals
    assert not torch.equal(cfl.personal, fedavg.personal)
    by_samples = play_toy("cfl", settings={**settings, "weighting": "samples"}, **more)
    torch.testing.assert_close(by_samples.personal, fedavg.personal, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_cfl_finds_the_true_groups_and_serves_the_leaf(play_toy: Play) -> None:
    settings = {**ALWAYS, "min_size": 3}
    played = play_toy("cfl", settings=settings, **FULL)
    assert played.run.history.curves["ari"][-1] == 1
    assert torch.equal(played.personal, played.state.models[played.state.membership.home])
    assert played.run.ledger.totals == play_toy("fedavg", **FULL).run.ledger.totals


@pytest.mark.slow
def test_the_best_model_of_the_path_may_be_chosen(play_toy: Play) -> None:
    wild = {"epochs": 2, "batch_size": 4, "lr": 2.0}
    settings = {**ALWAYS, "path_select": "val"}
    played = play_toy("cfl", settings=settings, **FULL, local=wild, rounds=4)
    state, ctx, hooks = played.state, played.run.context, played.run.hooks
    memory, chosen = state.memory, []
    personal = hooks.personalise(state, ctx.everybody, ctx)
    for i in range(CLIENTS):
        path = [*memory["cfl.parents"][memory["cfl.path"][i]]]
        path.append(state.models[state.membership.home[i]])
        assert len(path) > 1
        losses = ctx.evaluate(torch.stack(path), torch.tensor([i]))[0]
        chosen.append(int(losses.argmin()) == len(path) - 1)
        assert torch.equal(personal.params[i], path[int(losses.argmin())])
    assert set(chosen) == {True, False}, "the leaf for some, an ancestor for others"
    later = memory["cfl.path"].clone().index_fill(0, torch.tensor([0]), False)
    other = replace(state, memory={**memory, "cfl.path": later})
    for i in range(1, CLIENTS):  # each by its own path, whoever else is asked
        alone = hooks.personalise(other, torch.tensor([i]), ctx).params
        assert torch.equal(alone[0], personal.params[i])


@pytest.mark.slow
def test_a_newcomer_walks_down_the_tree(play_toy: Play) -> None:
    rule, found = CFL(**ALWAYS), []

    def look(state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> Any:
        row, memory = rule.join(state, clients, ctx).row, state.memory
        for place, client in enumerate(clients):
            node = 0
            for split, (group, child) in enumerate(memory["cfl.splits"].tolist()):
                if node == group:
                    parent = memory["cfl.parents"][split]
                    move = ctx.train(parent, client[None]) - parent
                    along = cosine(move, memory["cfl.halves"][split])[0]
                    node = child if along[1] > along[0] else group
            assert row[place] == node
        return row

    method = composition(("cfl", rule), ("door", Door(look, found)))
    played = play_toy(method, **FULL, **NEWCOMERS, rounds=2)
    assert len(played.state.models) == 4
    home, groups, unseen = played.state.membership.home, played.run.groups, played.result.unseen
    served = [groups[home == row].unique().tolist() for row in found[0].tolist()]
    assert served == [[group] for group in unseen.group]
    one = play_toy("cfl", settings={**READY, "eps1": 0}, **NEWCOMERS)
    assert len(one.result.unseen.correct) == 3, "without a split, the one model"


# --- company ------------------------------------------------------------------------------------


def test_cfl_is_as_its_defaults_say() -> None:
    assert CFL() == CFL(0.4, 1.6, "absolute", 2, 20, "single", 0.0, False, "leaf", "uniform")


def test_what_is_kept_per_model_follows_the_groups(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Marking(CFL):
        @fl.hookimpl
        def setup(self, ctx: fl.Context) -> fl.Setup:
            marks = {"marks.of": fl.Memory(torch.zeros(1), "model")}
            return fl.Setup(memory={**super().setup(ctx).memory, **marks})

        @fl.hookimpl
        def aggregate(self, state: Any, upload: Any, membership: Any, ctx: Any) -> fl.Models:
            rows, marks = state.models, state.memory["marks.of"]
            return fl.Models(rows, {"marks.of": 10 * marks + torch.arange(len(rows)) + 1})

    played = drifting(play_toy, Marking(**ALWAYS), NESTED, **FULL, rounds=2)
    assert played.state.memory["marks.of"].tolist() == [11, 22, 13, 24]


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_each_group_is_pulled_to_its_own_model(play_toy: Play, mu: float) -> None:
    alone = play_toy("cfl", settings=ALWAYS, **FULL)
    both = play_toy("cfl+fedprox", settings={**ALWAYS, "mu": mu}, **FULL)
    assert len(both.state.models) > 2
    assert torch.equal(alone.personal, both.personal) is (mu == 0)
    spread = [played.state.models.std(dim=0).norm() for played in (both, alone)]
    assert spread[0] <= spread[1]


@pytest.mark.slow
def test_statistics_are_no_part_of_an_update(play_toy: Play) -> None:
    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))

    played = play_toy("cfl", settings=ALWAYS, net=net, **FULL, **NEWCOMERS, rounds=2)
    assert played.result.unseen is not None
    layout, memory = played.run.context.layout, played.state.memory
    assert memory["cfl.updates"].shape == (CLIENTS, layout.parameters)
    assert memory["cfl.parents"].shape[1] == layout.width
    own = played.state.models[:, layout.parameters :]
    assert not torch.equal(own[0], own[1]), "every group has statistics of its own"


@pytest.mark.slow
@pytest.mark.parametrize("full_on_split", [False, True])
def test_cfl_ends_in_the_same_bits_after_a_break(
    play_toy: Play, tmp_path: Path, full_on_split: bool
) -> None:  # T25
    settings = {**ALWAYS, "start_round": 1, "full_on_split": full_on_split}
    whole = play_toy("cfl", settings=settings, rounds=4, participation=0.7)
    assert len(whole.state.models) > 1
    for after in (2, 3):
        same_end(whole, resumed(whole, tmp_path / str(after), after))


@pytest.mark.slow
def test_cfl_is_the_same_with_either_executor(play_toy: Play) -> None:
    executors_agree(play_toy, "cfl", settings=ALWAYS, **FULL)
