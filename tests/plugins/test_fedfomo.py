"""FedFomo: hand-computed numbers, then laws, then newcomers and compositions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small import (
    NEWCOMERS,
    TRAIN,
    Door,
    Small,
    begin,
    cohorts,
    executors_agree,
    resumed,
    same_end,
    uploaded,
)
from toy import CLIENTS, Play, composition

import flbench as fl
from flbench.errors import UserError
from flbench_plugins.fedfomo import FedFomo, gains

# --- FedFomo by hand ----------------------------------------------------------------------------


def test_fomo_weighs_what_each_candidate_saves_per_distance() -> None:
    """Client 0 saves 4.5 over 3 by itself, 8 over 4 with 1, and loses 37.5 over 5 with 2."""
    ctx, rule = Small([[3, 4], [0, 0], [-3, -4]]), FedFomo(m=3, eps=0)
    state, upload = begin(rule, ctx), uploaded([[3, 0], [0, 4], [-3, -4]])
    assert rule.score(state, TRAIN, "before", None, ctx) is None
    assert rule.score(state, replace(TRAIN, kind="probe"), "after", upload, ctx) is None
    scores = rule.score(state, TRAIN, "after", upload, ctx)
    v = torch.tensor([[1.5, 2, -7.5], [-1.5, -2, -2.5], [-4.5, -6, 2.5]]).double()
    torch.testing.assert_close(scores.values, v, rtol=1e-4, atol=0)
    mix = torch.tensor([[3 / 7, 4 / 7, 0], [0, 0, 0], [0, 0, 1]]).double()
    torch.testing.assert_close(scores.memory["fedfomo.mix"], mix, rtol=0, atol=1e-5)
    q = 0.1 * torch.eye(3) + v / torch.tensor([[4.0], [6.0], [8.0]])
    torch.testing.assert_close(scores.memory["fedfomo.q"], q, rtol=1e-4, atol=0)
    sent = [("up", "gains", [3, 3, 3]), ("down", "candidates", [4, 4, 4])]
    assert ctx.sent == sent, "three v up, two models of two scalars down"
    models = rule.aggregate(state.remember(scores.memory), upload, ctx)
    torch.testing.assert_close(models.rows[0], torch.tensor([9 / 7, 16 / 7]))
    assert models.rows[1:].tolist() == [[0, 0], [-3, -4]], "kept as it was; its own, to the bit"
    assert not models.memory["fedfomo.mix"].any()


def test_fomo_before_training_mixes_the_last_rounds_models() -> None:
    """Client 0 sits at (3, 0): 1 saves 3.5 over 5, 2 saves 6 over 2, itself nothing."""
    ctx, rule = Small([[3, 4], [0, 4], [9, 9]], 2), FedFomo("flbench", m=2, eps=0)
    rows = [[3.0, 0.0], [0.0, 4.0], [3.0, 2.0]]
    state = begin(rule, ctx, rows)
    assert rule.score(state, TRAIN, "before", None, ctx) is None, "nobody has uploaded yet"
    seen = torch.tensor([True, True, True])
    state = state.remember({"fedfomo.uploaded": seen})
    upload = uploaded([[7, 7]] * 3)
    assert rule.score(state, TRAIN, "after", upload, ctx) is None
    scores = rule.score(state, TRAIN, "before", None, ctx)
    expected = torch.tensor([0, 0.7, 3.0]).double()
    torch.testing.assert_close(scores.values[0], expected, rtol=1e-4, atol=0)
    state = state.remember(scores.memory)
    start = rule.dispatch(state, TRAIN, ctx)
    torch.testing.assert_close(start.params[0, 0], torch.tensor([9 / 3.7, 8.8 / 3.7]))
    assert start.params[1, 0].tolist() == [0, 4], "nobody helps: its own latest model"
    assert not start.sent_mask.any()
    assert start.returned_mask.all()
    models = rule.aggregate(state, uploaded([[7, 7], [8, 8]], (0, 2)), ctx)
    assert models.rows.tolist() == [[7, 7], [0, 4], [8, 8]]
    assert models.memory["fedfomo.uploaded"].tolist() == [True, False, True]
    assert not models.memory["fedfomo.mix"].any()


@pytest.mark.parametrize(
    ("variant", "m", "expected"),
    [
        ("paper", 1, [[0], [2]]),
        ("paper", 2, [[0, 2], [0, 2]]),
        ("paper", 3, [[0, 1, 2], [0, 1, 2]]),
        ("flbench", 1, [[2], [0]]),
        ("flbench", 2, [[1, 2], [0, 1]]),
        ("flbench", 9, [[1, 2, 3], [0, 1, 3]]),
    ],
)
def test_fomo_offers_oneself_and_whom_the_affinities_praise(
    variant: str, m: int, expected: list[list[int]]
) -> None:
    q = torch.tensor([[0.1, 0.5, 0.9, 0.2], [0, 0, 0.1, 0]]).double()
    rule, ids = FedFomo(variant, m=m, eps=0), torch.tensor([0, 2])
    offered = rule.candidates(q, ids, torch.arange(4), Small())
    assert [row.nonzero()[:, 0].tolist() for row in offered] == expected


def test_fomo_asks_the_affinities_of_the_judge_and_sends_statistics_along() -> None:
    """Client 0 prefers 2, which prefers 1, which prefers nobody."""
    ctx, rule = Small(), FedFomo(m=2, eps=0)
    ctx.layout = fl.ParameterLayout((), 1, 1)
    q = torch.tensor([[0.1, 0, 0.5], [0, 0.1, 0], [0, 0.7, 0.1]]).double()
    state = begin(rule, ctx).remember({"fedfomo.q": q})
    scores = rule.score(state, TRAIN, "after", uploaded([[1, 0], [2, 0], [3, 0]]), ctx)
    offered = [row.nonzero()[:, 0].tolist() for row in ~scores.values.isnan()]
    assert offered == [[0, 2], [0, 1], [1, 2]]
    sent = [("up", "gains", [2, 2, 2]), ("down", "candidates", [2, 2, 2])]
    assert ctx.sent == sent, "one model of P + B = 2 scalars each"


@pytest.mark.parametrize(("round_", "expected"), [(1, 3), (2, 1)])
def test_fomo_explores_less_every_round(round_: int, expected: int) -> None:
    class Rng:
        def random(self) -> float:
            return 0.26  # below .3, not below .25

        def integers(self, count: int) -> int:
            return count - 1

    ctx = Small(round_=round_)
    ctx.rng = lambda *_: Rng()
    q = torch.tensor([[0.1, 0.5, 0.4, 0.2]]).double()
    offered = FedFomo(m=2).candidates(q, torch.tensor([0]), torch.arange(4), ctx)
    assert offered[0].nonzero()[:, 0].tolist() == [0, expected]


def test_fomo_gains_nothing_where_nothing_moved() -> None:  # T11
    class Rounding(Small):
        """One client judged alone rounds otherwise than three judged together."""

        layout = fl.ParameterLayout((), 1, 1)

        def evaluate(self, models: torch.Tensor, clients: torch.Tensor) -> torch.Tensor:
            return super().evaluate(models, clients) + 1e-7 * len(clients)

    rows = torch.tensor([[0.0, 5.0], [1e-5, 5.0], [0.0, 6.0]])
    found = gains(rows, rows, torch.arange(3), Rounding([[1, 5]] * 3))
    assert found.diagonal().tolist() == [0, 0, 0]
    assert found[0, 2] == found[2, 0] == 0, "statistics are no distance"
    assert found[0, 1] == pytest.approx(0.5 - 0.01, abs=1e-3), "1e-5 is added to the distance"
    ctx, rule = Small([[1, 0]] * 3), FedFomo(m=3)
    gain_and_loss = uploaded([[1, 0], [0, 1], [0, 0]])  # v = .5, -.5, 0: their sum says nothing
    scores = rule.score(begin(rule, ctx), TRAIN, "after", gain_and_loss, ctx)
    assert torch.equal(scores.memory["fedfomo.q"], 0.1 * torch.eye(3).double())
    assert scores.memory["fedfomo.mix"].tolist() == [[1, 0, 0]] * 3
    ctx, rule = Small(), FedFomo(m=1)
    scores = rule.score(begin(rule, ctx), TRAIN, "after", uploaded([[0, 0]] * 3), ctx)
    assert torch.equal(scores.memory["fedfomo.q"], 0.1 * torch.eye(3).double())
    assert not scores.memory["fedfomo.mix"].any()


# --- FedFomo in a run ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixes:
    """Keeps what is mixed, and the rows before and after."""

    seen: list[Any]

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload) -> None:
        self.seen.append((upload.ids, state.memory["fedfomo.mix"], state.models))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "flbench"])
def test_fomo_weights_are_shares_or_nothing(play_toy: Play, variant: str) -> None:  # T11
    seen: list[Any] = []
    method = composition(("fedfomo", FedFomo(variant)), ("mixes", Mixes(seen)))
    played = play_toy(method, rounds=6, local={"epochs": 2, "batch_size": 4, "lr": 0.7})
    later = [*[rows for _, _, rows in seen[1:]], played.state.models]
    sums = set()
    for (ids, mix, rows), after in zip(seen, later, strict=True):
        others = [i for i in range(CLIENTS) if i not in ids.tolist()]
        assert (mix >= 0).all()
        assert not mix[others].any()
        assert torch.equal(rows[others], after[others]), "whoever did not act keeps its model"
        totals = mix[ids].sum(dim=1)
        sums |= {round(total, 9) for total in totals.tolist()}
        if variant == "paper":
            assert torch.equal(rows[ids][totals == 0], after[ids][totals == 0]), "nobody helped"
        else:
            assert not mix.diagonal().any(), "the own model has v = 0"
    assert sums == {0.0, 1.0}, "both happened"


def test_fomo_of_one_candidate_rejects_what_does_not_help(play_toy: Play) -> None:
    wild = {"epochs": 3, "batch_size": 4, "lr": 3.0}
    more = {"rounds": 1, "participation": 1.0, "local": wild, "partition": {"name": "iid"}}
    played, alone = play_toy("fedfomo", settings={"m": 1}, **more), play_toy("local-only", **more)
    ctx, initial = played.run.context, played.run.context.initial
    losses = ctx.evaluate(torch.cat([initial[None], alone.personal]), ctx.everybody)
    better = [bool(losses[i, i + 1] < losses[i, 0]) for i in range(CLIENTS)]
    assert set(better) == {True, False}, "both happened"
    for client, helped in enumerate(better):
        expected = alone.personal[client] if helped else initial
        assert torch.equal(played.personal[client], expected)
    assert played.run.ledger.totals["down"] == {"model": 0, "candidates": 0}


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_fomo_sends_what_is_offered(play_toy: Play, m: int) -> None:  # T24
    played = play_toy("fedfomo", settings={"m": m})
    each = 4 * played.run.context.layout.width
    assert played.run.ledger.totals == {
        "down": {"model": 0, "candidates": 3 * 3 * min(m - 1, 2) * each},
        "up": {"model": 3 * 3 * each, "gains": 3 * 3 * min(m, 3) * 4},
        "peer": {},
    }
    played = play_toy("fedfomo", settings={"m": m, "variant": "flbench"})
    rounds = cohorts(played)
    pairs = zip(rounds[1:], rounds, strict=False)
    offered = sum(min(m, 3 - (i in before)) for now, before in pairs for i in now)
    assert played.run.ledger.totals["down"] == {"model": 0, "candidates": offered * each}
    assert played.run.ledger.totals["up"] == {"model": 3 * 3 * each, "gains": 4 * offered}


@pytest.mark.slow
def test_fomo_before_training_begins_as_local_training(play_toy: Play) -> None:
    pair = [play_toy("fedfomo", settings={"variant": "flbench"}, rounds=r) for r in (1, 2)]
    alone = [play_toy("local-only", rounds=r) for r in (1, 2)]
    assert torch.equal(pair[0].personal, alone[0].personal)
    assert not torch.equal(pair[1].personal, alone[1].personal)


@pytest.mark.slow
def test_fomo_gives_a_newcomer_the_model_its_validation_likes_best(play_toy: Play) -> None:
    rule, found = FedFomo(), []

    def look(state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> Any:
        row = rule.join(state, clients, ctx).row
        for place, client in enumerate(clients.tolist()):
            x, y = ctx.client_data(client, "validation")
            logits = ctx.logits(state.models, x)
            losses = [torch.nn.functional.cross_entropy(z, y) for z in logits]
            assert row[place] == torch.stack(losses).argmin()
        assert not torch.equal(row, ctx.evaluate(state.models, clients, "train").argmin(dim=1))
        return row

    method = composition(("fedfomo", rule), ("door", Door(look, found)))
    local = {"epochs": 2, "batch_size": 4, "lr": 0.5}
    played = play_toy(method, rounds=4, local=local, **NEWCOMERS)
    unseen = played.result.unseen
    assert len(unseen.correct) == 3
    assert len(set(found[0].tolist())) > 1, "they liked different models"
    groups = played.run.groups[found[0]].tolist()
    assert groups == unseen.group, "and those of their own group"


# --- FedFomo in company -------------------------------------------------------------------------


def test_fomo_is_as_its_defaults_say() -> None:
    assert FedFomo() == FedFomo(variant="paper", m=5, eps=0.3, eps_decay=0.05)


def test_fomo_refuses_to_be_regrouped(play_toy: Play) -> None:
    with pytest.raises(UserError, match="nothing may regroup them"):
        play_toy("fedfomo+oracle", settings={"warmup": 0})


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "flbench"])
def test_fomo_trains_any_local_objective(play_toy: Play, variant: str) -> None:
    alone = play_toy("fedfomo", settings={"variant": variant})
    free = play_toy("fedfomo+fedprox", settings={"variant": variant, "mu": 0})
    assert torch.equal(alone.personal, free.personal)
    pulled = play_toy("fedfomo+fedprox", settings={"variant": variant, "mu": 1})
    assert not torch.equal(alone.personal, pulled.personal)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "flbench"])
def test_fomo_ends_in_the_same_bits_after_a_break(
    play_toy: Play, tmp_path: Path, variant: str
) -> None:  # T25
    whole = play_toy("fedfomo", settings={"variant": variant, "m": 2}, rounds=4)
    same_end(whole, resumed(whole, tmp_path, 2))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "flbench"])
def test_fomo_is_the_same_with_either_executor(play_toy: Play, variant: str) -> None:
    executors_agree(play_toy, "fedfomo", atol=1e-4, settings={"variant": variant})
