"""IFCA: choices by hand, laws, the start, compositions, newcomers."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from mentions import mentioning, mentions
from toy import CLIENTS, Play, Played, both, composition, toy_dataset

import flbench as fl
from flbench.engine.cross_evaluation import cross_evaluate
from flbench.run.rounds import round_context
from flbench_plugins.fedavgm import FedAvgM
from flbench_plugins.ifca import HEADS, IFCA

N, W = CLIENTS, 28
UNSEEN = {"unseen": 0.34, "clients": 9, "unseen_epochs": 1}
RAGGED = {"partition": {"name": "iid"}, "participation": 1.0}


def batchnorm() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 4)
    )


@dataclass(frozen=True)
class Spy:
    """Decides nothing; keeps what `aggregate` and `cluster` are given."""

    seen: list[Any]
    scored: list[Any]

    @fl.hookimpl
    def aggregate(self, state: Any, upload: Any, membership: Any, ctx: Any) -> None:
        self.seen.append(SimpleNamespace(state=state, upload=upload, membership=membership))

    @fl.hookimpl
    def cluster(self, state: Any, stage: Any, phase: str, scores: Any, ctx: Any) -> None:
        if scores is not None:
            self.scored.append(SimpleNamespace(state=state, stage=stage, scores=scores, ctx=ctx))


@dataclass(frozen=True)
class Bank:
    """Another first bank than the method's."""

    models: Any

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(models=self.models(ctx))


def spied(play_toy: Play, name: str, rule: Any, *more: Any, **changes: Any) -> tuple[Played, Spy]:
    spy = Spy([], [])
    return play_toy(composition((name, rule), *more, ("spy", spy)), **changes), spy


def same_run(one: Played, other: Played) -> None:
    assert torch.equal(one.personal, other.personal)
    for curve in ("accuracy", "loss", "train_loss"):
        assert one.run.history.curves[curve] == other.run.history.curves[curve]


def losses(played: Played, models: torch.Tensor, split: str) -> torch.Tensor:
    """Mean loss of every model on every client with plain torch, shape (N, K)."""
    space, samples = played.run.executor.workspace, played.run.executor.samples
    found = torch.zeros(len(samples.splits[split]), len(models))
    for k, row in enumerate(models):
        space.load(row)
        space.module.eval()
        for client, rows in enumerate(samples.splits[split]):
            with torch.no_grad():
                found[client, k] = F.cross_entropy(space.module(samples.x[rows]), samples.y[rows])
    return found


def unseen_correct(played: Played, models: torch.Tensor) -> list[int]:
    """How often the model of each newcomer answers its test samples rightly."""
    space, samples, right = played.run.executor.workspace, both(played.run.newcomers), []
    for row, rows in zip(models, samples.splits["test"], strict=True):
        space.load(row)
        space.module.eval()
        right.append(int((space.module(samples.x[rows]).argmax(dim=1) == samples.y[rows]).sum()))
    return right


# --- ifca: choices by hand ----------------------------------------------------------------------


def quadratic(client_means: list[float], clients: list[int]) -> tuple[Any, list[Any]]:
    """A context whose clients' losses are (u - m_i)^2 / 2; and what was sent."""
    sent: list[Any] = []
    means = torch.tensor(client_means)
    ctx = SimpleNamespace(
        samples=torch.arange(1, len(means) + 1),
        send_models=lambda ids, models: sent.append(("models", ids.tolist(), len(models))),
        send=lambda way, ids, item, scalars: sent.append((way, ids.tolist(), item, scalars)),
        evaluate=lambda models, ids, _: (means[ids, None] - models[:, 0]).square().double() / 2,
    )
    return (fl.Stage("train", torch.tensor(clients), 1), ctx), sent


@pytest.mark.parametrize(
    ("bank", "home"),
    [
        ([-0.9, 1.2], [0, 0, 1, 1, 7]),
        ([1.2, -0.9], [1, 1, 0, 0, 7]),  # permuted rows permute the assignments only
        ([0.0, 0.0], [0, 0, 0, 0, 7]),  # a tie goes to the first
        ([4.0, 5.0], [0, 0, 0, 0, 7]),  # nobody chooses the second
    ],
)
def test_clients_near_a_model_choose_it_from_the_first_round(
    bank: list[float], home: list[int]
) -> None:  # T14
    (stage, ctx), sent = quadratic([-1.0, -1.1, 1.0, 0.9, -1.0], [0, 1, 2, 3])
    state = fl.State(0, torch.tensor(bank)[:, None], fl.Membership(torch.full((5,), 7)))
    scores = IFCA().score(state, stage, "before", ctx)
    assert scores.values[0].tolist() == pytest.approx([-((-1 - u) ** 2) / 2 for u in bank])
    found = IFCA().cluster(state, stage, "before", scores, ctx)
    assert found.home.tolist() == home, "who does not act keeps its home"
    assert sent == [("models", [0, 1, 2, 3], 2), ("up", [0, 1, 2, 3], "cluster", 1)]
    assert IFCA().score(state, stage, "after", ctx) is None


def test_shares_are_of_all_clients() -> None:
    _, ctx = quadratic([-1.0, -1.0, 0.1, 2.0, 2.1], [])[0]
    ctx.clients, ctx.everybody = 5, torch.arange(5)
    found = IFCA(k=4).shares(torch.tensor([[-1.0], [0.0], [2.0], [9.0]]), ctx)
    assert found.tolist() == pytest.approx([0.4, 0.2, 0.4, 0.0])


@pytest.mark.parametrize("also", ["", "+power-of-choice"])
def test_uniform_means_do_not_count_samples(also: str, play_toy: Play) -> None:
    """Also where another plugin says what clients count."""
    changes = {"dataset": toy_dataset(samples=105), "participation": 1.0, **RAGGED}
    played = play_toy(f"ifca{also}", settings={"ifca.weighting": "uniform"}, **changes)
    by_samples = play_toy("ifca", **changes)
    equal = play_toy("ifca+power-of-choice", **changes)
    torch.testing.assert_close(played.state.models, equal.state.models)
    assert not torch.allclose(played.state.models, by_samples.state.models)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_round_of_ifca_by_hand(play_toy: Play, split: Any, weighting: Any) -> None:
    rule = IFCA(split=split, weighting=weighting)
    changes = {"dataset": toy_dataset(samples=105), **RAGGED}
    played, spy = spied(play_toy, "ifca", rule, rounds=2, **changes)
    for at in spy.seen:
        best = losses(played, at.state.models, split).argmin(dim=1)
        assert torch.equal(at.membership.home, best)
        assert len(played.run.context.samples[at.upload.ids].unique()) > 1, "weightings differ"
        for k in (0, 1):
            mine = best[at.upload.ids] == k
            n = at.upload.samples[mine].double() ** (weighting == "samples")
            mean = (n[:, None] * at.upload.selected()[mine]).sum(dim=0) / n.sum()
            expected = mean.float() if mine.any() else at.state.models[k]
            after = spy.seen[1].state.models if at is spy.seen[0] else played.state.models
            torch.testing.assert_close(after[k], expected)
    start, other = spy.seen[0], {"train": "validation", "validation": "train"}[split]
    by_other = losses(played, start.state.models, other).argmin(dim=1)
    assert not torch.equal(by_other, start.membership.home), "the split makes a difference"


@pytest.mark.slow
def test_the_least_loss_decides_and_not_the_accuracy(play_toy: Play) -> None:
    trained = play_toy("fedavg", rounds=9, **RAGGED).state.models[0]
    bank = Bank(lambda _: torch.stack([9 * trained, torch.zeros(W)]))  # too sure; knows nothing
    played, spy = spied(play_toy, "ifca", IFCA(), ("bank", bank), rounds=1, **RAGGED)
    run, start = played.run, spy.seen[0].state
    table = cross_evaluate(run.executor.workspace, start.models, run.executor.samples, "train",
                           run.context.everybody)  # fmt: skip
    more_right = table[:, 0, 1] > table[:, 1, 1]
    assert (more_right & (start.membership.home == 1)).any()


def test_unsampled_models_and_unsampled_clients_stay(play_toy: Play) -> None:
    played, spy = spied(play_toy, "ifca", IFCA(k=4), rounds=1, seed=1)
    acting, context = spy.seen[0].upload.ids, played.run.context
    fresh = torch.stack([context.initial, *(context.fresh_initial(i) for i in (1, 2, 3))])
    assert torch.equal(spy.seen[0].state.models, fresh)
    home, chosen = played.state.membership.home, losses(played, fresh, "train").argmin(dim=1)
    assert torch.equal(home[acting], chosen[acting])
    assert [int(home[i]) for i in range(N) if i not in acting] == [0] * 3
    moved = (played.state.models != fresh).any(dim=1).nonzero()[:, 0].tolist()
    assert moved == sorted(set(chosen[acting].tolist()))
    assert 0 < len(moved) < 4


@pytest.mark.parametrize("split", ["train", "validation"])
def test_everybody_is_judged_by_the_best_model_now(play_toy: Play, split: Any) -> None:
    changes = {"rounds": 1, "participation": 0.2, "seed": 3}
    played = play_toy("ifca", settings={"k": 3, "split": split}, **changes)
    state, ctx = played.state, round_context(played.run, 1)
    row = played.run.hooks.personalise(state, ctx.everybody, ctx).row
    best = {s: losses(played, state.models, s).argmin(dim=1) for s in ("train", "validation")}
    assert torch.equal(row, best[split])
    assert not torch.equal(best["train"], best["validation"])
    assert not torch.equal(row, state.membership.home), "the unsampled too"


# --- ifca: laws ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"balanced": True}, {"split": "validation"}])
def test_one_model_is_fedavg(play_toy: Play, settings: Any) -> None:  # T14
    one, fedavg = play_toy("ifca", settings={"k": 1, **settings}), play_toy("fedavg")
    assert torch.equal(one.state.models, fedavg.state.models)
    same_run(one, fedavg)
    assert one.run.history.last == fedavg.run.history.last
    totals = fedavg.run.ledger.totals
    assert one.run.ledger.totals == {**totals, "up": {**totals["up"], "cluster": 4 * 3 * 3}}


@pytest.mark.slow
def test_equal_models_tie_and_everybody_takes_the_first(play_toy: Play) -> None:  # T14
    bank = Bank(lambda ctx: ctx.initial.expand(2, -1).clone())
    played, spy = spied(play_toy, "ifca", IFCA(), ("bank", bank), rounds=1)
    (values,) = [at.scores.values for at in spy.scored]
    assert torch.equal(values[:, 0], values[:, 1])
    assert played.state.membership.home.tolist() == [0] * N
    assert torch.equal(played.state.models[0], play_toy("fedavg", rounds=1).state.models[0])
    assert torch.equal(played.state.models[1], played.run.context.initial)


@pytest.mark.slow
def test_different_models_separate_the_groups(play_toy: Play) -> None:  # T14
    ifca, fedavg = (play_toy(name, rounds=6).result.summary for name in ("ifca", "fedavg"))
    assert ifca["ari"] == 1.0
    assert ifca["accuracy_mean"] > fedavg["accuracy_mean"]


@pytest.mark.slow
def test_swapped_models_are_the_same_run(play_toy: Play) -> None:
    swapped = Bank(lambda ctx: torch.stack([ctx.fresh_initial(1), ctx.initial]))
    one, (other, _) = play_toy("ifca"), spied(play_toy, "ifca", IFCA(), ("bank", swapped))
    assert torch.equal(one.state.models, other.state.models.flip(0))
    same_run(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(("net", "width"), [(None, W), (batchnorm, 53)])
def test_ifca_sends_every_model_down_and_one_up(play_toy: Play, net: Any, width: int) -> None:
    for k in (1, 2, 3):  # T24: down n K (P + B), up n (P + B) and the choice
        played = play_toy("ifca", settings={"k": k}, net=net, rounds=2)
        assert played.run.context.layout.width == width
        up = {"model": 4 * 2 * 3 * width, "cluster": 4 * 2 * 3}
        expected = {"down": {"model": 4 * 2 * 3 * k * width}, "up": up, "peer": {}}
        assert played.run.ledger.totals == expected


# --- ifca: the start ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "shares", "draws"),
    [(1, [1.0], 1), (2, [0.35, 0.65], 1), (2, [0.34, 0.66], 2), (4, [0.1, 0.2, 0.3, 0.4], 1),
     (4, [0.09, 0.21, 0.3, 0.4], 2), (10, [0.04] * 10, 1), (10, [0.03] * 10, 2)],
)  # fmt: skip
def test_a_start_is_balanced_where_each_model_attracts_its_share(
    play_toy: Play, k: int, shares: list[float], draws: int
) -> None:
    tried = [torch.tensor(shares), torch.full((k,), 1 / k)]
    with patch.object(IFCA, "shares", side_effect=tried):
        played, spy = spied(play_toy, "ifca", IFCA(k=k, balanced=True), rounds=1)
    context = played.run.context
    first = [context.initial, context.fresh_initial(k)][draws - 1]
    assert torch.equal(spy.seen[0].state.models[0], first), "every draw has weights of its own"
    if k > 1:
        assert torch.equal(spy.seen[0].state.models[1], context.fresh_initial((draws - 1) * k + 1))
    assert not mentions(played.said, "ifca", "20 tries")


@pytest.mark.slow
@pytest.mark.parametrize(("good", "warned"), [(18, False), (19, False), (20, True)])
def test_twenty_starts_are_tried_and_then_the_person_is_told(
    play_toy: Play, good: int, warned: bool
) -> None:
    tried = [torch.tensor([0.0, 1.0])] * good + [torch.tensor([0.5, 0.5])]
    with patch.object(IFCA, "shares", side_effect=tried):
        played = play_toy("ifca", settings={"balanced": True}, rounds=1)
    assert (played.said == [mentioning("ifca", "20 tries")]) is warned
    assert played.result.warnings == played.said


@pytest.mark.slow
def test_a_balanced_start_attracts_half_of_the_clients(play_toy: Play) -> None:
    for seed in range(2):
        _, plain = spied(play_toy, "ifca", IFCA(), seed=seed, rounds=1)
        played, spy = spied(play_toy, "ifca", IFCA(balanced=True), seed=seed, rounds=1)
        first, found = plain.seen[0].state.models, spy.seen[0].state.models
        before, after = (losses(played, m, "train").argmin(dim=1).sum() for m in (first, found))
        assert after == 3
        assert torch.equal(first, found) is bool(before == 3)


@pytest.mark.slow
def test_heads_on_one_body_train_an_epoch_in_random_groups_first(play_toy: Play) -> None:
    rule = IFCA(init="heads", weighting="uniform")
    played, spy = spied(play_toy, "ifca", rule, rounds=2, seed=1)
    body, (first, *later) = played.run.context.layout.body, spy.seen
    start, initial = first.state.models, played.run.context.initial
    assert torch.equal(start[:, body], initial[body].expand(2, -1))
    assert torch.equal(start[0], initial)
    assert torch.equal(start[1, ~body], played.run.context.fresh_initial(1)[~body])
    assert first.upload.steps.tolist() == [2] * N, "one epoch of seven samples, four a batch"
    home = first.membership.home
    assert sorted(home.tolist()) == [0, 0, 0, 1, 1, 1]
    assert home.tolist() not in ([0, 1] * 3, [0, 0, 0, 1, 1, 1], [1, 0] * 3), "random"
    means = torch.stack([first.upload.selected()[home == k].mean(dim=0) for k in (0, 1)])
    torch.testing.assert_close(later[0].state.models, means)
    assert [at.upload.steps.tolist() for at in later] == [[4] * 3] * 2, "once, then as always"
    assert [at.stage.label for at in spy.scored] == ["train", "train"] != [HEADS]
    down, up = 4 * W * (N + 2 * 3 * 2), {"model": 4 * W * (N + 2 * 3), "cluster": 4 * 2 * 3}
    assert played.run.ledger.totals == {"down": {"model": down}, "up": up, "peer": {}}


# --- ifca: compositions, newcomers --------------------------------------------------------------


@pytest.mark.slow
def test_every_model_keeps_a_server_momentum_of_its_own(play_toy: Play) -> None:
    one = play_toy("ifca+fedavgm", settings={"k": 1}), play_toy("fedavgm")
    assert torch.equal(one[0].state.models, one[1].state.models)
    played, spy = spied(play_toy, "ifca", IFCA(k=3), ("fedavgm", FedAvgM(beta=0.5)), rounds=4)
    v, banks = torch.zeros(3, W), [at.state.models for at in spy.seen] + [played.state.models]
    for at, before, after in zip(spy.seen, banks[:-1], banks[1:], strict=True):
        for k in range(3):
            mine = at.upload.selected()[at.membership.home[at.upload.ids] == k]
            v[k] = 0.5 * v[k] + before[k] - mine.mean(dim=0) if len(mine) else v[k]
            expected = before[k] - v[k] if len(mine) else before[k]
            torch.testing.assert_close(after[k], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(played.state.memory["fedavgm.momentum"], v, rtol=0, atol=1e-5)
    assert len(v[v.any(dim=1)].unique(dim=0)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_newcomer_takes_the_model_with_the_least_loss(play_toy: Play, split: Any) -> None:
    more = {"dataset": toy_dataset(samples=180), **UNSEEN}
    played = play_toy("ifca", settings={"k": 3, "split": split}, **more)
    bank, space = played.state.models, played.run.executor.workspace
    table = cross_evaluate(space, bank, both(played.run.newcomers), split, torch.arange(3))
    best = table[..., 0].argmin(dim=1)
    assert played.result.unseen.correct == unseen_correct(played, bank[best])
    assert len({tuple(unseen_correct(played, bank[[k] * 3])) for k in range(3)}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"k": 3}, {"init": "heads"}, {"weighting": "uniform"}])
def test_executors_agree(play_toy: Play, settings: Any) -> None:
    pair = [play_toy("ifca", settings=settings, executor=e) for e in ("sequential", "vectorised")]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-5)
    assert torch.equal(pair[0].state.membership.home, pair[1].state.membership.home)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
