"""FLIS-DC: sets by hand, rounds, laws, compositions, newcomers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mentions import mention
from toy import CLIENTS, Play, Played, both, composition, same_evaluations, toy_dataset

import flbench as fl
from flbench.errors import UserError
from flbench.run.composition import compose
from flbench.run.evaluation import selection_quality
from flbench.run.rounds import cohort, round_context
from flbench_plugins.fedavgm import FedAvgM
from flbench_plugins.flis_dc import FlisDC

N, W = CLIENTS, 28
PLAIN = {"epochs": 2, "batch_size": 4, "lr": 0.1}
SERVER = {"server_samples": 8, "dataset": toy_dataset(samples=120)}
MANY = {"server_samples": 24, "dataset": toy_dataset(samples=244), "participation": 0.7}
UNSEEN = {"unseen": 0.34, "clients": 9, "unseen_epochs": 1}


@dataclass(frozen=True)
class Spy:
    """Decides nothing; keeps what `cluster` and `aggregate` are given."""

    scored: list[Any]
    seen: list[Any]

    @fl.hookimpl
    def cluster(self, state: Any, stage: Any, phase: str, scores: Any) -> None:
        at = SimpleNamespace(state=state, stage=stage, phase=phase, scores=scores)
        self.scored.append(at)

    @fl.hookimpl
    def aggregate(self, state: Any, upload: Any, membership: Any) -> None:
        self.seen.append(SimpleNamespace(state=state, upload=upload, membership=membership))


@dataclass(frozen=True)
class Uneven:
    """Two groups of two labels; their clients own one, two and three shares."""

    @fl.hookimpl
    def partition(self, labels: Any) -> fl.Partition:
        mine = [np.flatnonzero(labels // 2 == group) for group in (0, 1)]
        cuts = [len(rows) * np.array([1, 3]) // 6 for rows in mine]
        dealt = [part for rows, cut in zip(mine, cuts, strict=True) for part in np.split(rows, cut)]
        return fl.Partition(tuple(dealt), np.array([0, 0, 0, 1, 1, 1]))


def spied(play_toy: Play, *plugins: Any, **changes: Any) -> tuple[Played, Spy]:
    spy = Spy([], [])
    return play_toy(composition(*plugins, ("spy", spy)), **{**SERVER, **changes}), spy


def dc(play_toy: Play, *more: Any, rule: Any = None, **changes: Any) -> tuple[Played, Spy]:
    return spied(play_toy, ("flis-dc", rule or FlisDC()), *more, **changes)


def same_run(one: Played, other: Played) -> None:
    assert torch.equal(one.personal, other.personal)
    assert one.run.history.curves["train_loss"] == other.run.history.curves["train_loss"]
    same_evaluations(one, other)


def losses(played: Played, models: torch.Tensor, samples: Any, split: str) -> torch.Tensor:
    """Mean loss of every model on every client with plain torch, shape (clients, K)."""
    space = played.run.executor.workspace
    found = torch.zeros(len(samples.splits[split]), len(models))
    for k, row in enumerate(models):
        space.load(row)
        for client, rows in enumerate(samples.splits[split]):
            with torch.no_grad():
                found[client, k] = F.cross_entropy(space.module(samples.x[rows]), samples.y[rows])
    return found


def agreement(played: Played, models: torch.Tensor, answers: str) -> torch.Tensor:
    """Share of the server's samples on which two models say the same; cosine of probabilities."""
    space, samples = played.run.executor.workspace, played.run.executor.samples
    x, said = samples.x[samples.splits["server"][0]], []
    for row in models:
        space.load(row)
        logits = space.module(x).detach()
        said.append(
            logits.argmax(dim=1) if answers == "onehot" else logits.softmax(dim=1).flatten()
        )
    one_by_one = {
        "onehot": lambda a, b: (a == b).double().mean(),
        "softmax": lambda a, b: torch.cosine_similarity(a, b, dim=0),
    }[answers]
    return torch.tensor([[float(one_by_one(a, b)) for b in said] for a in said]).double()


# --- sets by hand -------------------------------------------------------------------------------


ALIKE = torch.tensor([[1, 0.5, 0.2], [0.97, 1, 0.49], [0.3, 0.95, 1]], dtype=torch.float64)


def grouped(rule: FlisDC, alike: torch.Tensor = ALIKE) -> tuple[fl.Membership, list[Any]]:
    """What clients 1, 3 and 4 of five are grouped into; they trained rows 0, 1 and 0."""
    notes: list[Any] = []
    ids = torch.tensor([1, 3, 4])
    state = fl.State(2, torch.zeros(2, 1), fl.Membership(torch.tensor([1, 0, -1, 1, 0])))
    ctx = SimpleNamespace(clients=5, note=lambda name, value: notes.append((name, value)))
    return rule.cluster(state, fl.Scores(alike, ids, "clients", ids), ctx), notes


def test_a_set_holds_who_reaches_the_threshold_and_oneself() -> None:
    found, notes = grouped(FlisDC(beta=0.5))
    assert found.weights.tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 1, 0], [0, 0, 0, 1, 1]]
    assert found.home.tolist() == [-1, 0, -1, 1, 2], "whoever did not train is undecided"
    assert found.parent.tolist() == [0, 1, 0], "every row goes on from what its client trained"
    assert notes == [("flis-dc.sizes", [2, 2, 2])]
    assert FlisDC() == FlisDC(0.5, "onehot", None, "pick", dedup=False, paper_leak=False)
    for beta in (0.0, 0.2):
        assert (grouped(FlisDC(beta=beta))[0].weights[:, [1, 3, 4]] == 1).all()
    assert torch.equal(grouped(FlisDC(beta=1.1))[0].weights[:, [1, 3, 4]], torch.eye(3))


@pytest.mark.parametrize(
    ("beta", "accept", "chosen"),
    [(0.99, None, [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
     (1.1, 0.96, [[1, 0, 0], [1, 1, 0], [0, 0, 1]]),
     (0.99, 0.95, [[1, 0, 0], [1, 1, 0], [0, 1, 1]]),
     (0.5, 0.96, [[1, 1, 0], [1, 1, 0], [0, 1, 1]]),
     (0.99, 0.0, [[1, 1, 1], [1, 1, 1], [1, 1, 1]])],
)  # fmt: skip
def test_near_identical_models_can_be_accepted_whatever_beta_is(
    beta: float, accept: float | None, chosen: list[list[int]]
) -> None:
    found, _ = grouped(FlisDC(beta=beta, hard_accept=accept))
    assert found.weights[:, [1, 3, 4]].tolist() == chosen


def test_the_order_of_the_cohort_only_orders_the_rows() -> None:
    order, n, uploads = torch.tensor([2, 0, 1]), torch.tensor([1, 2, 5]), torch.randn(3, 7)
    bank = torch.zeros(3, 7)
    sets = grouped(FlisDC())[0].weights[:, [1, 3, 4]]
    turned = grouped(FlisDC(), ALIKE[order][:, order])[0].weights[:, [1, 3, 4]]
    rows = fl.weighted_mean(bank, uploads, sets.double() * n)
    again = fl.weighted_mean(bank, uploads[order], turned.double() * n[order])
    torch.testing.assert_close(again, rows[order])


# --- flis-dc: rounds ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["onehot", "softmax"])
def test_a_round_of_flis_dc_by_hand(play_toy: Play, answers: Any) -> None:
    beta = {"onehot": 0.5, "softmax": 0.7}[answers]
    rule = FlisDC(beta=beta, answers=answers)
    played, spy = dc(play_toy, ("uneven", Uneven()), rule=rule, **MANY)
    visible = played.run.executor.samples
    banks = [at.state.models for at in spy.scored[2::2]] + [played.state.models]
    overlapping = 0
    for at, asked, found, bank in zip(
        spy.seen, spy.scored[::2], spy.scored[1::2], banks, strict=True
    ):
        ids, kept, n = at.upload.ids, at.upload.selected(), at.upload.samples.double()
        assert (asked.phase, asked.scores.columns) == ("before", "models")
        table = losses(played, asked.state.models, visible, "validation")[ids]
        torch.testing.assert_close(asked.scores.values, -table.double(), rtol=1e-5, atol=1e-6)
        started = asked.state.models[table.argmin(dim=1)]
        assert torch.equal(at.state.models, started), "a row per client, from the one it trained"
        absent = [i for i in range(N) if i not in ids]
        homes = [where.state.membership.home[absent] for where in (asked, found)]
        assert torch.equal(*homes), "whoever does not act keeps its home until the end"
        alike = found.scores.values
        by_hand = agreement(played, kept, answers)
        torch.testing.assert_close(alike, by_hand, rtol=0, atol=1e-6)
        sets = (alike >= beta).double() * n
        assert len(n.unique()) > 1
        banked = sets @ kept.double() / sets.sum(dim=1, keepdim=True)
        torch.testing.assert_close(bank, banked.float())
        overlapping += len((sets > 0).unique(dim=0))
    assert overlapping > 3, "not always one set"


@pytest.mark.slow
@pytest.mark.parametrize(("dedup", "equal"), [(False, False), (True, False), (True, True)])
def test_the_whole_bank_comes_down(play_toy: Play, dedup: bool, equal: bool) -> None:  # T24
    rule = FlisDC(beta=0 if equal else 2, dedup=dedup)
    played, _ = dc(play_toy, rule=rule)
    each = 1 if equal else 3
    down = 4 * W * (3 * 1 + 3 * each + 3 * each)  # round 1: the one model there is
    assert played.run.ledger.totals == {
        "down": {"model": down}, "up": {"model": 4 * W * 9}, "peer": {}
    }  # fmt: skip
    same_run(played, dc(play_toy, rule=FlisDC(beta=rule.beta))[0])


def test_equal_models_are_sent_as_often_as_there_are(play_toy: Play) -> None:
    totals = dc(play_toy, rule=FlisDC(beta=0))[0].run.ledger.totals
    assert totals["down"] == {"model": 4 * W * (3 + 9 + 9)}


def test_whoever_did_not_train_belongs_nowhere(play_toy: Play) -> None:
    played, _ = dc(play_toy, rounds=2)
    trained = cohort(played.job.suite, 0, 2).tolist()
    absent = [i for i in range(N) if i not in trained]
    assert len(absent) == 3
    assert played.state.membership.home[absent].tolist() == [-1] * 3
    assert not played.state.membership.weights[:, absent].any()
    labels = played.run.history.last.labels
    assert [labels[i] for i in absent] == [-1] * 3
    assert -1 not in [labels[i] for i in trained]
    assert played.result.notes[0]["name"] == "flis-dc.sizes"


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["pick", "last_local"])
def test_everybody_is_judged_by_the_best_model_or_by_its_own_last(
    play_toy: Play, choice: Any
) -> None:
    played, spy = dc(play_toy, rule=FlisDC(beta=0.9, eval=choice), seed=3)
    ctx, last = round_context(played.run, 3), played.run.context.initial.repeat(N, 1)
    for at in spy.seen:
        last[at.upload.ids] = at.upload.selected()
    found = played.run.hooks.personalise(played.state, ctx.everybody, ctx)
    if choice == "last_local":
        assert torch.equal(found.params, last)
        ids = torch.tensor([4, 1])
        assert torch.equal(played.run.hooks.personalise(played.state, ids, ctx).params, last[ids])
        others = set(range(N)) - set(spy.seen[-1].upload.ids.tolist())
        moved = [bool((last[i] != ctx.initial).any()) for i in others]
        assert set(moved) == {True, False}, "remembered over a round; never trained: w_0"
    else:
        table = losses(played, played.state.models, played.run.executor.samples, "validation")
        assert torch.equal(found.row, table.argmin(dim=1))
        by_training = losses(played, played.state.models, played.run.executor.samples, "train")
        assert not torch.equal(found.row, by_training.argmin(dim=1))


@pytest.mark.slow
def test_the_released_choice_on_test_data_is_made_on_demand_and_said(play_toy: Play) -> None:
    def choices(settings: dict[str, object]) -> tuple[Played, list[Any]]:
        spy = Spy([], [])
        method = compose("flis-dc", settings)
        method = replace(method, layers=(*method.layers, ("spy", spy)))
        played = play_toy(method, rounds=2, seed=3, **SERVER)
        return played, [at for at in spy.scored if at.phase == "before"]

    leaky, asked = choices({"paper_leak": True, "beta": 2})
    for at in asked:
        table = losses(leaky, at.state.models, leaky.run.held_out, "test")[at.stage.clients]
        torch.testing.assert_close(at.scores.values, -table.double(), rtol=1e-5, atol=1e-6)
    assert leaky.result.method.plugins[0].paper_leak
    plain, _ = choices({"beta": 2})
    assert not plain.result.method.plugins[0].paper_leak
    assert not torch.equal(plain.state.models, leaky.state.models)


# --- flis-dc: laws and compositions -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"answers": "softmax"}, {"dedup": True}])
def test_a_threshold_of_zero_is_fedavg(play_toy: Play, settings: Any) -> None:  # T19
    for more in (SERVER, {**MANY, "local": PLAIN}):
        one = play_toy("flis-dc", settings={"beta": 0, **settings}, **more)
        fedavg = play_toy("fedavg", **more)
        n = one.job.suite.cohort_size
        assert torch.equal(one.state.models, fedavg.state.models.expand(n, -1)), "every row"
        assert len(one.state.models) == n
        assert one.run.history.curves["train_loss"] == fedavg.run.history.curves["train_loss"]
        same_evaluations(one, fedavg)


def test_a_threshold_above_one_keeps_every_model_apart(play_toy: Play) -> None:  # T19
    played, spy = dc(play_toy, rule=FlisDC(beta=1.01))
    for at, new in zip(spy.seen, [*spy.scored[2::2], played], strict=True):
        assert torch.equal(new.state.models, at.upload.selected())
    assert torch.equal(played.state.membership.weights.sum(dim=1), torch.ones(3))


@pytest.mark.slow
def test_every_row_takes_the_momentum_of_the_model_it_came_from(play_toy: Play) -> None:
    zero = play_toy("flis-dc+fedavgm", settings={"flis-dc.beta": 0}, **SERVER)
    alone = play_toy("fedavgm", **SERVER)
    assert torch.equal(zero.state.models, alone.state.models.expand(3, -1))
    played, spy = dc(play_toy, ("fedavgm", FedAvgM(beta=0.5)), rule=FlisDC(beta=2), rounds=5)
    v, parents = torch.zeros(1, W), set()
    for at, before in zip(spy.seen, spy.scored[::2], strict=True):
        chosen = before.scores.values.argmax(dim=1)
        parents.add(tuple(chosen.tolist()))
        v = 0.5 * v[chosen] + before.state.models[chosen] - at.upload.selected()
    torch.testing.assert_close(played.state.memory["fedavgm.momentum"], v, rtol=0, atol=1e-5)
    expected = before.state.models[chosen] - v
    torch.testing.assert_close(played.state.models, expected, rtol=0, atol=1e-5)
    assert not parents <= {(0, 1, 2), (0, 0, 0)}, "rows changed places"


def test_what_flis_cannot_do_is_refused_with_a_reason(play_toy: Play) -> None:
    spy = Spy([], [])
    for name in ("flis-dc", "flis-hc"):
        with pytest.raises(fl.Undefined, match=mention("server_samples", "samples")):
            play_toy(composition(*compose(name).layers, ("spy", spy)))
        assert not spy.scored, "at once"
        with pytest.raises(UserError, match="both decide who is grouped"):
            play_toy(f"{name}+oracle", **SERVER)
    with pytest.raises(fl.Undefined, match="needs disjoint groups: overlapping rows"):
        play_toy("flis-dc+scaffold", local=PLAIN, **SERVER)


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["pick", "last_local"])
def test_a_newcomer_picks_the_best_model_of_the_bank(play_toy: Play, choice: Any) -> None:
    more = {**UNSEEN, "server_samples": 8, "dataset": toy_dataset(samples=180)}
    played = play_toy("flis-dc", settings={"eval": choice, "beta": 2}, **more)
    guests = both(played.run.newcomers)
    table = losses(played, played.state.models, guests, "validation")
    given, right = played.state.models[table.argmin(dim=1)], []
    for row, rows in zip(given, guests.splits["test"], strict=True):
        played.run.executor.workspace.load(row)
        said = played.run.executor.workspace.module(guests.x[rows]).argmax(dim=1)
        right.append(int((said == guests.y[rows]).sum()))
    assert played.result.unseen.correct == right
    assert played.result.unseen.epochs == 1
    assert len(given.unique(dim=0)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"answers": "softmax", "eval": "last_local"}])
def test_executors_agree(play_toy: Play, settings: Any) -> None:
    pair = [
        play_toy("flis-dc", settings=settings, executor=e, **SERVER)
        for e in ("sequential", "vectorised")
    ]
    torch.testing.assert_close(pair[0].state.models, pair[1].state.models, rtol=0, atol=1e-5)
    assert torch.equal(pair[0].state.membership.weights, pair[1].state.membership.weights)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals


# --- whom clients are grouped with, against the truth ---------------------------------------------


def test_wrong_and_missing_members_by_hand() -> None:
    """Without groups the truth are labels that overlap by half; without a row nobody is counted."""
    counts = torch.tensor([[5, 5, 0, 0], [5, 0, 5, 0], [0, 0, 5, 5], [0, 5, 0, 5]])
    chosen = torch.tensor([[1.0, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 0]])  # truth: 0~1, 1~2
    membership = fl.Membership(torch.tensor([0, 1, 2, -1]), chosen)
    found = selection_quality(membership, None, counts)
    assert found["selection_false_positives"] == pytest.approx(1 / 3), "2 in the row of 0"
    assert found["selection_false_negatives"] == pytest.approx(3 / 3), "0-1, 1-2, 2-1"
    assert found["selection_error"] == pytest.approx(4 / 3)
    told = selection_quality(membership, torch.tensor([0, 0, 1, 1]), counts)
    assert told["selection_error"] == pytest.approx(2 / 3), "2 in the row of 0, 1 missing there"
    plain = fl.Membership(torch.zeros(4, dtype=torch.int64))
    assert set(selection_quality(plain, None, counts).values()) == {None}, "disjoint groups"
    uneven = counts.clone()
    uneven[0, 2] = 1
    assert set(selection_quality(membership, None, uneven).values()) == {None}


@pytest.mark.slow
def test_the_clustering_error_is_a_mean_over_rounds_too(play_toy: Play) -> None:
    played = play_toy("flis-dc", rounds=4, **SERVER)
    curve = played.run.history.curves["selection_error"]
    assert len(curve) == 4
    assert None not in curve
    summary = played.result.summary
    assert summary["selection_error"] == pytest.approx(curve[-1], abs=1e-6)
    assert summary["selection_error_mean"] == pytest.approx(sum(curve) / 4, abs=1e-6)
    plain = play_toy("fedavg", rounds=1)
    assert "selection_error" not in plain.run.history.curves
    assert plain.result.summary["selection_error_mean"] is None
