"""FeSEM: hand-computed steps, then laws, then newcomers and compositions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mentions import mention, mentioning
from small import (
    NEWCOMERS,
    STEP,
    TRAIN,
    Door,
    Drift,
    Small,
    Uniform,
    begin,
    cohorts,
    executors_agree,
    resumed,
    same_end,
    uploaded,
    weighed,
)
from toy import CLIENTS, Play, Played, composition, toy_dataset

import flbench as fl
from flbench.errors import Undefined
from flbench_plugins.fesem import FeSEM, WeCFL

# --- FeSEM by hand ------------------------------------------------------------------------------


def settled(rule: FeSEM, ctx: Any, rows: Any, home: Any) -> fl.State:
    """A state some rounds after the k-means."""
    state = begin(rule, ctx, rows)
    state = state.remember({"fesem.fitted": torch.tensor(1)})
    return replace(state, membership=fl.Membership(torch.tensor(home)))


def em(rule: FeSEM, ctx: Any, state: fl.State, upload: fl.Upload) -> fl.State:
    """One E-step and one M-step."""
    scores = rule.score(state, TRAIN, upload, ctx)
    state = state.remember(scores.memory)
    state = state.regroup(rule.cluster(state, scores, ctx))
    models = rule.aggregate(state, weighed(rule, upload), state.membership, ctx)
    return replace(state, models=models.rows).remember(models.memory)


@pytest.mark.parametrize("rule", [FeSEM(k=3), WeCFL(k=3)])
def test_a_k_means_that_never_takes_place_is_told_in_the_last_round(rule: FeSEM) -> None:
    said: list[str] = []
    for round_, ids in ((8, (0, 1)), (9, (0, 1)), (9, (0, 1, 2))):
        ctx: Any = Small(round_=round_)
        ctx.warn = said.append
        upload = uploaded([[float(i), 1.0] for i in ids], ids)
        rule.score(begin(rule, ctx), TRAIN, upload, ctx)
    name = type(rule).__name__.lower()
    assert said == [mentioning(name, "2 clients", "k=3", "k-means", "w_0")]


@pytest.mark.parametrize(("weighting", "third"), [("samples", 2 / 3), ("uniform", 0.5)])
def test_fesem_steps_by_hand(weighting: str, third: float) -> None:
    """Clients 0 and 1 end nearest to the first centre; client 2 did not act; 1 has 2 samples."""
    ctx, rule = Small(round_=5), FeSEM(k=3, weighting=weighting)
    rows = [[0.0, 0.0], [10.0, 0.0], [0.0, 9.0]]
    state = settled(rule, ctx, rows, [1, -1, 2])
    upload = uploaded([[3, 0], [0, 3]], (0, 1))
    scores = rule.score(state, TRAIN, upload, ctx)
    by_hand = [[3, 7, 90**0.5], [3, 109**0.5, 6]]
    assert torch.allclose(-scores.values, torch.tensor(by_hand).double())
    after = em(rule, ctx, state, upload)
    assert after.membership.home.tolist() == [0, 0, 2]
    centre = torch.tensor([3 * (1 - third), 3 * third])
    torch.testing.assert_close(after.models[0], centre)
    assert after.models[1:].tolist() == rows[1:], "nobody near: they stay"
    assert rule.score(state, replace(TRAIN, kind="probe"), upload, ctx) is None
    order = [2, 0, 1]  # new row k is old row order[k]
    place = torch.tensor(order).argsort()
    other = settled(rule, ctx, [rows[k] for k in order], [int(place[1]), -1, int(place[2])])
    other = em(rule, ctx, other, upload)
    assert torch.equal(other.models, after.models[order]), "the bank is permuted, nothing else"
    assert torch.equal(other.membership.home, place[after.membership.home])


def test_fesem_judges_strangers_by_the_largest_centre() -> None:
    ctx, rule = Small(), FeSEM(k=3)
    for home, expected in (
        ([-1, -1, -1], [0, 0, 0]),
        ([2, -1, 1], [2, 1, 1]),
        ([2, 2, -1], [2] * 3),
    ):
        state = settled(rule, ctx, [[0.0, 0.0]] * 3, home)
        assert rule.personalise(state, ctx.everybody).row.tolist() == expected
    state = settled(rule, ctx, [[0.0, 0.0]] * 3, [1, 0, 2])
    assert rule.personalise(state, torch.tensor([2])).row.tolist() == [2]


def test_fesem_may_look_at_the_head_alone(play_toy: Play) -> None:
    ctx = replace(play_toy("fesem", rounds=1).run.context, round=5)
    head, body = ctx.layout.head, ~ctx.layout.head
    rows = torch.zeros(2, ctx.layout.width)
    rows[1, head], rows[1, body] = 1.0, 9.0
    trained = torch.zeros(1, ctx.layout.width)
    trained[0, head] = 0.9
    for feature, expected in (("all", 0), ("head", 1)):
        state = settled(FeSEM(k=2, feature=feature), ctx, rows.tolist(), [-1] * CLIENTS)
        after = em(FeSEM(k=2, feature=feature), ctx, state, uploaded(trained.tolist(), (0,)))
        assert after.membership.home[0] == expected


# --- FeSEM in a run -----------------------------------------------------------------------------


def drifting(play_toy: Play, rule: FeSEM, moves: torch.Tensor, **more: Any) -> Played:
    method = composition(("fesem", rule), ("drift", Drift(moves)))
    return play_toy(method, local=STEP, **more)


PULLS = torch.zeros(CLIENTS, 28)  # even clients go one way, odd ones the other
PULLS[0::2, 0], PULLS[1::2, 0] = 1.0, -1.0
PULLS[:, 1] = torch.arange(CLIENTS) / 10
WAYS = [0, 1, 0, 1, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("init", ["kmeans_first", "random"])
def test_fesem_of_one_centre_is_fedavg(play_toy: Play, init: str) -> None:  # T12
    more = {"partition": {"name": "iid"}, "dataset": toy_dataset(samples=105)}
    one, fedavg = (
        play_toy("fesem", settings={"k": 1, "init": init}, **more),
        play_toy("fedavg", **more),
    )
    assert torch.equal(one.personal, fedavg.personal)
    assert one.run.history.last == fedavg.run.history.last
    assert one.run.ledger.totals == fedavg.run.ledger.totals
    if init == "kmeans_first":
        late = play_toy("fesem", settings={"k": 1, "init": init, "fit_round": 9}, **more)
        same_end(late, one)
    uniform = play_toy("fesem", settings={"k": 1, "init": init, "weighting": "uniform"}, **more)
    assert torch.equal(uniform.personal, play_toy(composition(("u", Uniform())), **more).personal)
    assert not torch.equal(uniform.personal, one.personal)


def test_two_drifts_are_two_centres_after_the_fit(play_toy: Play) -> None:  # T12
    played = drifting(play_toy, FeSEM(k=2), PULLS, participation=1.0, rounds=1)
    assert played.state.membership.home.tolist() == WAYS
    initial, memory = played.run.context.initial, played.state.memory
    means = torch.stack([PULLS[0::2].mean(dim=0), PULLS[1::2].mean(dim=0)])
    torch.testing.assert_close(played.state.models, initial + means)
    assert memory["fesem.fitted"] == 1
    assert not memory["fesem.moves"].numel(), "nobody needs them any more"


@dataclass(frozen=True)
class Steps:
    """Keeps what every E-step starts from and ends in."""

    before: list[Any]
    after: list[Any]

    @fl.hookimpl
    def cluster(self, state: fl.State, scores: fl.Scores | None) -> None:
        if scores is not None:
            self.before.append((state, -scores.values, scores.row_ids))

    @fl.hookimpl
    def aggregate(self, membership: fl.Membership) -> None:
        self.after.append(membership.home)


@pytest.mark.parametrize("fit_round", [1, 2])
def test_until_the_fit_everybody_starts_from_the_common_weights(
    play_toy: Play, fit_round: int
) -> None:
    steps = Steps([], [])
    rule = FeSEM(k=2, fit_round=fit_round)
    method = composition(("fesem", rule), ("drift", Drift(PULLS)), ("steps", steps))
    played = play_toy(method, local=STEP, rounds=fit_round)
    initial, now = played.run.context.initial, cohorts(played)[-1]
    for (state, _, _), home in zip(steps.before[:-1], steps.after, strict=False):
        assert (state.models == initial).all()
        assert (home == -1).all()
    met = sorted({client for ids in cohorts(played) for client in ids})
    assert 3 <= len(met) < CLIENTS
    expected = [WAYS[i] ^ WAYS[met[0]] if i in met else -1 for i in range(CLIENTS)]
    assert played.state.membership.home.tolist() == expected
    for k in (0, 1):
        members = [i for i in met if expected[i] == k]
        counted = [i for i in members if i in now] or members  # the M-step, or w_0 + mean move
        torch.testing.assert_close(played.state.models[k], initial + PULLS[counted].mean(dim=0))


def test_a_centre_whose_members_rest_in_the_round_of_the_fit_is_their_mean_move() -> None:
    early, ctx, rule = Small(round_=1), Small(round_=2), FeSEM(k=2, fit_round=2)
    early.initial = ctx.initial = torch.tensor([10.0, 0.0])
    state = em(rule, early, begin(rule, ctx), uploaded([[11, 0], [13, 0]], (0, 1)))
    assert state.membership.home.tolist() == [-1, -1, -1]
    assert (state.models == ctx.initial).all()
    state = em(rule, ctx, state, uploaded([[5, 0]], (2,)))
    assert state.membership.home.tolist() == [0, 0, 1]
    assert state.models.tolist() == [[12, 0], [5, 0]], "not weighted by samples"


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3])
def test_the_fit_waits_until_there_are_as_many_clients_as_centres(play_toy: Play, k: int) -> None:
    for rounds in range(1, 7):
        played = drifting(play_toy, FeSEM(k=k), PULLS, participation=0.2, rounds=rounds)
        met = {ids[0] for ids in cohorts(played)}
        fitted, home = int(played.state.memory["fesem.fitted"]), played.state.membership.home
        if len(met) == k:
            break
        assert fitted == -1
    assert fitted == rounds > 1
    assert len(home[list(met)].unique()) == k, "a centre each"


@pytest.mark.slow
def test_whoever_is_met_later_joins_the_nearest_centre(play_toy: Play) -> None:
    played = drifting(play_toy, FeSEM(k=2), PULLS, rounds=5)
    early, late = cohorts(played)[0], {i for ids in cohorts(played)[1:] for i in ids}
    assert late - set(early), "somebody was met later"
    assert {WAYS[i] for i in early} == {0, 1}
    home = played.state.membership.home.tolist()
    for i in late | set(early):
        assert home[i] == WAYS[i] ^ WAYS[early[0]]


@pytest.mark.slow
def test_an_e_step_never_moves_a_client_away(play_toy: Play) -> None:
    steps = Steps([], [])
    play_toy(composition(("fesem", FeSEM(k=3)), ("steps", steps)), rounds=6)
    moved = 0
    for (state, distances, ids), home in zip(steps.before[1:], steps.after[1:], strict=True):
        old, places = state.membership.home[ids], torch.arange(len(ids))
        assert torch.equal(distances[places, home[ids]], distances.amin(dim=1))
        moved += int((home[ids] != old).sum())
    assert moved, "somebody moved"


@pytest.mark.slow
def test_centres_drawn_apart_freeze_the_assignment(play_toy: Play) -> None:
    steps = Steps([], [])
    rule = FeSEM(k=3, init="random")
    played = play_toy(composition(("fesem", rule), ("steps", steps)), rounds=6)
    for before, after in zip(steps.after, steps.after[1:], strict=False):
        assert torch.equal(before[before >= 0], after[before >= 0])
    assert (steps.after[-1] >= 0).all()
    ctx, state = played.run.context, begin(rule, played.run.context)
    rows = [ctx.initial, ctx.fresh_initial(1), ctx.fresh_initial(2)]
    assert torch.equal(state.models, torch.stack(rows))
    home = torch.tensor([2, -1, -1, -1, -1, -1])
    state = replace(state, membership=fl.Membership(home))
    drawn = set()
    for round_ in range(1, 6):
        stage, now = replace(TRAIN, clients=ctx.everybody), replace(ctx, round=round_)
        starts = rule.dispatch(state, stage, now).params[:, 0]
        places = [[torch.equal(start, row) for row in rows].index(True) for start in starts]
        assert places[0] == 2, "its own"
        drawn |= {tuple(places[1:])}
    assert len(drawn) == 5
    assert {0, 1, 2} <= {place for places in drawn for place in places}


def test_clients_start_from_their_centre_and_strangers_from_the_common_weights() -> None:
    ctx, rule = Small(), FeSEM(k=2)
    ctx.initial = torch.tensor([5.0, 5.0])
    state = settled(rule, ctx, [[1.0, 0.0], [2.0, 0.0]], [1, -1, 0])
    starts = rule.dispatch(state, TRAIN, ctx)
    assert starts.params[:, 0].tolist() == [[2, 0], [5, 5], [1, 0]]
    assert starts.sent_mask is starts.returned_mask is None, "whole models, as in fedavg"


@pytest.mark.slow
def test_fesem_costs_what_fedavg_costs(play_toy: Play) -> None:  # T24
    fedavg = play_toy("fedavg").run.ledger.totals
    for init in ("kmeans_first", "random"):
        played = play_toy("fesem", settings={"k": 2, "init": init})
        assert played.run.ledger.totals == fedavg


@pytest.mark.parametrize("feature", ["all", "head"])
def test_the_fit_may_look_at_the_head_alone(play_toy: Play, feature: str) -> None:
    moves = torch.zeros(CLIENTS, 28)
    moves[3:, 0] = 9.0  # a body scalar
    moves[0::2, 27] = 1.0  # a head scalar
    rule = FeSEM(k=2, feature=feature)
    played = drifting(play_toy, rule, moves, participation=1.0, rounds=1)
    expected = [0, 0, 0, 1, 1, 1] if feature == "all" else WAYS
    assert played.state.membership.home.tolist() == expected


def test_statistics_are_no_distance() -> None:
    ctx, rule = Small(round_=5), FeSEM(k=2)
    ctx.layout = fl.ParameterLayout((), 1, 1)
    state = settled(rule, ctx, [[0.0, 0.0], [1.0, 9.0]], [-1, -1, -1])
    upload = uploaded([[0.9, 0.0]], (1,))
    assert em(rule, ctx, state, upload).membership.home[1] == 1
    fresh = FeSEM(k=2, fit_round=5)
    rows = [[1.0, 0.0], [1.1, 9.0], [-1.0, 0.0]]
    assert em(fresh, ctx, begin(fresh, ctx), uploaded(rows)).membership.home.tolist() == [0, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("feature", ["all", "head"])
def test_a_newcomer_trains_once_and_joins_the_nearest_centre(play_toy: Play, feature: str) -> None:
    rule, found = FeSEM(k=2, feature=feature), []

    def look(state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> Any:
        row = rule.join(state, clients, ctx).row
        used = ctx.layout.head if feature == "head" else ctx.layout.all_mask
        for place, client in enumerate(clients):
            (moved,) = ctx.train(ctx.initial, client[None])
            far = [float((moved - centre)[used].norm()) for centre in state.models]
            assert row[place] == far.index(min(far))
        rows = moved.repeat(2, 1)  # of the last newcomer: one has its body, the other its head
        rows[0, ctx.layout.head], rows[1, ctx.layout.body] = 5.0, 9.0
        planted = rule.join(replace(state, models=rows), clients[-1:], ctx)
        assert planted.row == (feature == "head")
        return row

    method = composition(("fesem", rule), ("door", Door(look, found)))
    played = play_toy(method, participation=1.0, **NEWCOMERS)
    home, groups = played.state.membership.home, played.run.groups
    assert len(played.result.unseen.correct) == 3
    served = [groups[home == row].unique().tolist() for row in found[0].tolist()]
    assert served == [[group] for group in played.result.unseen.group]


# --- FeSEM in company ---------------------------------------------------------------------------


def test_fesem_is_as_its_defaults_say() -> None:
    assert FeSEM() == FeSEM(5, "kmeans_first", 1, "all", "samples")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"k": 7}, {"k": 2, "fit_round": 4}])
def test_a_fit_that_never_takes_place_is_refused(play_toy: Play, settings: Any) -> None:
    with pytest.raises(Undefined, match=mention("6 clients", "3 rounds")):
        play_toy("fesem", settings=settings)
    play_toy("fesem", settings={"k": settings["k"], "init": "random"})


@pytest.mark.slow
def test_fesem_trains_any_local_objective(play_toy: Play) -> None:
    alone = play_toy("fesem", settings={"k": 2})
    assert torch.equal(
        alone.personal, play_toy("fesem+fedprox", settings={"k": 2, "mu": 0}).personal
    )
    pulled = play_toy("fesem+fedprox", settings={"k": 2, "mu": 1})
    assert not torch.equal(alone.personal, pulled.personal)


@pytest.mark.slow
@pytest.mark.parametrize("fit_round", [1, 2, 3])
def test_fesem_ends_in_the_same_bits_after_a_break(
    play_toy: Play, tmp_path: Path, fit_round: int
) -> None:  # T25
    whole = play_toy("fesem", settings={"k": 2, "fit_round": fit_round}, rounds=4)
    same_end(whole, resumed(whole, tmp_path, 2))


@pytest.mark.slow
def test_fesem_is_the_same_with_either_executor(play_toy: Play) -> None:
    executors_agree(play_toy, "fesem", settings={"k": 2})


# --- WeCFL --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "home", "centres"),
    [(FeSEM(k=2), [0, 1, 1], [0.0, 7.2]), (WeCFL(k=2), [0, 0, 1], [2.0, 10.0]),
     (WeCFL(k=2, weighting="uniform"), [0, 0, 1], [1.5, 10.0])],
)  # fmt: skip
def test_a_round_is_a_whole_k_means_by_hand(
    rule: FeSEM, home: list[int], centres: list[float]
) -> None:
    """Models 0, 3 and 10 of 1, 2 and 3 samples, centres 0 and 5.

    3 is 2 from 5: the second centre is (2 * 3 + 3 * 10) / 5 = 7.2, and 3 is now 3 from the first
    and 4.2 from the second: (1 * 0 + 2 * 3) / 3 = 2. Uniform: 6.5, then 1.5.
    """
    ctx = Small(round_=5)
    state = settled(rule, ctx, [[0.0, 0.0], [5.0, 0.0]], [-1, -1, -1])
    after = em(rule, ctx, state, uploaded([[0, 0], [3, 0], [10, 0]]))
    assert after.membership.home.tolist() == home
    torch.testing.assert_close(after.models[:, 0], torch.tensor(centres))


def test_its_first_k_means_is_weighted() -> None:
    """Moves 0, 3 and 5: {0}, {3, 5} if alike; with 1, 1000 and 1000 samples {0, 3}, {5}."""
    for rule, home in ((FeSEM(k=2), [0, 1, 1]), (WeCFL(k=2), [0, 0, 1])):
        ctx = Small()
        ctx.samples = torch.tensor([1, 1000, 1000])
        upload = uploaded([[0, 0], [3, 0], [5, 0]])
        assert em(rule, ctx, begin(rule, ctx), upload).membership.home.tolist() == home


@pytest.mark.slow
def test_wecfl_finds_the_groups(play_toy: Play) -> None:
    found = play_toy("wecfl", settings={"k": 2}, rounds=4, participation=1.0)
    assert found.result.summary["ari"] == 1.0
