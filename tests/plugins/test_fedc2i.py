"""FedC2I: weights by hand, mixing recomputed the naive way, laws, ablations, bytes, newcomers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mentions import mention
from toy import CLIENTS, Play, Played, composition, watching

import flbench as fl
from flbench.errors import Undefined, UserError
from flbench.run.composition import compose
from flbench.run.context import RunContext
from flbench_plugins import fedc2i
from flbench_plugins.fedc2i import FedC2I, influence, left_out

HEAD = torch.arange(28) >= 12
VARIANTS = ["fedc2i", "fedc2i-lambda", "fedc2i-class-local", "fedc2i-class-global"]
ALL = {"participation": 1.0}


# --- weights, by hand ---------------------------------------------------------------------------


def test_weights_by_hand() -> None:  # T21
    pair = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(influence(pair, 2.0), torch.tensor([0.2, 0.8]).double())
    torch.testing.assert_close(influence(pair, 1.0), torch.tensor([1 / 3, 2 / 3]).double())
    table = torch.tensor([[1.0, 3.0, 1.0], [2.0, 1.0, 1.0]])
    expected = torch.tensor([[0.2, 0.9, 0.5], [0.8, 0.1, 0.5]]).double()
    torch.testing.assert_close(influence(table, 2.0), expected)
    assert FedC2I() == FedC2I(gamma=5.0, body="lambda", head="Lambda", probe_split="train")


def test_columns_sum_to_one_and_a_larger_loss_weighs_more() -> None:  # T21, orientation
    losses = torch.rand(7, 4, generator=torch.Generator().manual_seed(0)) + 0.01
    for gamma in (0.5, 1.0, 2.0, 5.0, 10.0):
        weights = influence(losses, gamma)
        torch.testing.assert_close(weights.sum(dim=0), torch.ones(4).double())
        assert (weights > 0).all()
        assert torch.equal(weights.argsort(dim=0), losses.argsort(dim=0))


@pytest.mark.parametrize("gamma", [0.0, 5.0])
def test_equal_losses_weigh_alike_even_where_all_are_zero(gamma: float) -> None:
    for loss in (0.0, 0.7, 1e-15):
        weights = influence(torch.tensor([loss] * 4), gamma)
        torch.testing.assert_close(weights, torch.full((4,), 0.25).double())
    beside = influence(torch.tensor([0.0, 1.0]), gamma).tolist()
    assert beside == pytest.approx([0, 1] if gamma else [0.5, 0.5]), "0 ** 0 is 1"


def test_the_mean_of_all_but_one_by_hand() -> None:
    rows = torch.tensor([[1.0, 10.0], [2.0, 20.0]])
    assert left_out(rows).tolist() == [[2.0, 20.0], [1.0, 10.0]], "of two, the other"
    rows = torch.tensor([[1.0], [2.0], [6.0]])
    assert left_out(rows).tolist() == [[4.0], [3.5], [1.5]]


# --- mixing, recomputed with one forward pass per loss ------------------------------------------


def bank(ctx: fl.Context) -> torch.Tensor:
    noise = torch.randn(CLIENTS, 28, generator=torch.Generator().manual_seed(1))
    return ctx.initial + noise


def context(play: Play, round_: int = 3, **changes: Any) -> fl.Context:
    return replace(play("fedc2i", rounds=1, **changes).run.context, round=round_)


def loss(ctx: fl.Context, row: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
    return float(F.cross_entropy(ctx.logits(row[None], x)[0].double(), y))


def of_class(c: int) -> torch.Tensor:
    """Class c's weights and bias: the head is a (4, 3) matrix and a vector of 4."""
    mask = torch.zeros(28, dtype=torch.bool)
    mask[12 + 3 * c : 15 + 3 * c] = mask[24 + c] = True
    return mask


def naive_losses(
    ctx: fl.Context, own: torch.Tensor, models: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """l, shape (N,), and h, shape (N, C), with one forward pass each."""
    by_client, by_class = [], []
    for i in range(len(models)):
        others = torch.cat([models[:i], models[i + 1 :]]).double().mean(dim=0).float()
        by_client.append(loss(ctx, torch.where(HEAD, own, others), x, y))
        changed = [torch.where(of_class(c), others, own) for c in range(4)]
        by_class.append([loss(ctx, row, x, y) for row in changed])
    return torch.tensor(by_client).double(), torch.tensor(by_class).double()


def batch_of(ctx: fl.Context, client: int, split: Any = "train") -> tuple[Any, Any]:
    x, y = ctx.client_data(client, split)
    chosen = ctx.rng("fedc2i", ctx.round, client).permutation(len(y))[:4]
    return x[chosen], y[chosen]


@pytest.mark.slow
def test_class_losses_in_one_pass_are_the_naive_ones(play_toy: Play) -> None:  # T21
    ctx = context(play_toy)
    models = bank(ctx)
    for client in range(CLIENTS):
        x, y = batch_of(ctx, client)
        assert len(set(y.tolist())) < 4, "classes that are absent have a loss too"
        fast = fedc2i.class_losses(models[client], left_out(models), x, y, ctx)
        _, slow = naive_losses(ctx, models[client], models, x, y)
        assert fast.shape == (CLIENTS, 4)
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-5)
        assert slow.std(dim=0).max() > 1e-2, "they differ"


def by_hand(
    rule: FedC2I, own: torch.Tensor, models: torch.Tensor, client: int, ctx: fl.Context
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a client mixes, shape (W,), and its l, shape (N,)."""
    x, y = batch_of(ctx, client, rule.probe_split)
    by_client, by_class = naive_losses(ctx, own, models, x, y)

    def mixed(losses: torch.Tensor) -> torch.Tensor:
        weights = losses**rule.gamma / (losses**rule.gamma).sum()
        return (weights[:, None] * models).sum(dim=0).float()

    ways = {"lambda": mixed(by_client), "mean": models.mean(dim=0), "local": own}
    ways["Lambda"] = own.clone()
    for c in range(4):
        ways["Lambda"][of_class(c)] = mixed(by_class[:, c])[of_class(c)]
    return torch.where(HEAD, ways[rule.head], ways[rule.body]), by_client


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("body", ["lambda", "mean", "local"])
def test_each_part_is_made_as_its_option_says(play_toy: Play, body: Any, split: Any) -> None:
    ctx = context(play_toy)
    models = bank(ctx)
    for head in ("Lambda", "lambda", "mean", "local"):
        rule = FedC2I(2.0, body, head, split)
        expected, by_client = by_hand(rule, models[4], models, 4, ctx)
        found, losses = rule.mix(models[4], models, left_out(models), 4, ctx)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        if "lambda" not in (body, head):
            by_client = torch.full((CLIENTS,), torch.nan).double()  # nobody needs them
        torch.testing.assert_close(losses, by_client, rtol=0, atol=1e-5, equal_nan=True)


@dataclass(frozen=True, kw_only=True)
class Watched(RunContext):
    """A context that remembers which samples models were asked about."""

    asked: list[torch.Tensor]

    def logits(self, models: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.asked.append(x)
        return super().logits(models, x)

    def features(self, models: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.asked.append(x)
        return super().features(models, x)


def watched(ctx: Any, **changes: Any) -> Watched:
    return Watched(**{**vars(ctx), **changes}, asked=[])


def test_one_batch_of_the_clients_own_samples_serves_all_losses(play_toy: Play) -> None:
    ctx = context(play_toy)
    batches: dict[Any, torch.Tensor] = {}
    for round_, client in ((1, 0), (1, 1), (2, 0)):
        models, now = bank(ctx), watched(ctx, round=round_)
        FedC2I().mix(models[client], models, left_out(models), client, now)
        assert len(now.asked) == 2, "logits for the body, features for the head"
        assert torch.equal(*now.asked)
        batches[round_, client] = now.asked[0]
        own = ctx.client_data(client)[0].tolist()
        assert len(now.asked[0]) == ctx.local.batch_size == 4
        assert all(x in own for x in now.asked[0].tolist())
    assert not torch.equal(batches[1, 0], batches[2, 0]), "every round has a batch of its own"
    large = watched(ctx, local=replace(ctx.local, batch_size=99))
    FedC2I().mix(models[0], models, left_out(models), 0, large)
    assert len(large.asked[0]) == 7


# --- rounds -------------------------------------------------------------------------------------


def spied(play: Play, rule: FedC2I, **changes: Any) -> tuple[Played, list[Any], list[Any]]:
    """A run, its uploads, and the scores of every round."""
    uploads: list[Any] = []
    scores: list[Any] = []

    @dataclass(frozen=True)
    class Spy:
        @fl.hookimpl
        def score(self, state: fl.State, stage: Any, phase: Any, ctx: fl.Context) -> Any:
            answer = rule.score(state, stage, phase, ctx)
            if answer is not None:
                ctx.send("down", stage.clients, "models", 0)
                scores.append((state.models, answer, ctx))
            return answer

    method = composition(("fedc2i", rule), ("spy", Spy()), ("watch", watching(uploads)))
    return play(method, **changes), uploads, scores


@pytest.mark.slow
def test_without_gamma_everybody_starts_from_the_uniform_mean(play_toy: Play) -> None:  # T21
    played, uploads, _ = spied(play_toy, FedC2I(gamma=0.0))
    uniform = {"k": 99, "weighting": "uniform"}
    two, three = (play_toy("lg-fedavg", settings=uniform, rounds=r, **ALL) for r in (2, 3))
    mixed = played.state.memory["fedc2i.mixed"]
    torch.testing.assert_close(mixed, two.personal, rtol=0, atol=1e-6)
    mean = uploads[-1].selected().double().mean(dim=0).float()
    torch.testing.assert_close(mean, three.personal[0], rtol=0, atol=1e-6)
    assert not torch.equal(played.personal[0], played.personal[1]), "judged after local training"


@pytest.mark.slow
def test_a_row_of_the_scores_is_a_client_and_a_column_who_is_missing(play_toy: Play) -> None:
    played, uploads, scores = spied(play_toy, FedC2I())
    first, last = scores[0][1].values, scores[2][1].values
    torch.testing.assert_close(first, first[:, :1].expand(-1, CLIENTS))  # all start equal
    models, answer, ctx = scores[2]
    assert torch.equal(models, uploads[1].selected()), "everybody's row is what it trained"
    for client in range(CLIENTS):
        x, y = batch_of(ctx, client)
        by_client, _ = naive_losses(ctx, models[client], models, x, y)
        torch.testing.assert_close(answer.values[client], by_client, rtol=0, atol=1e-5)
    mates = played.run.groups[:, None] == played.run.groups
    assert last[mates].mean() > last[~mates].mean(), "mates are missed more than strangers"


@pytest.mark.slow
def test_everybody_trains_what_it_mixed_and_is_judged_after_training(play_toy: Play) -> None:
    played, uploads, scores = spied(play_toy, FedC2I())
    assert [upload.ids.tolist() for upload in uploads] == [[*range(CLIENTS)]] * 3
    assert [upload.steps.tolist() for upload in uploads] == [[2 * 2] * CLIENTS] * 3
    assert torch.equal(played.state.models, uploads[2].selected())
    mixed = scores[2][1].memory["fedc2i.mixed"]
    assert torch.equal(played.state.memory["fedc2i.mixed"], mixed)
    alone = play_toy("local-only", rounds=1, **ALL)
    torch.testing.assert_close(uploads[0].selected(), alone.personal, rtol=0, atol=1e-6)
    run, held = played.run, played.run.held_out
    for name, rows in (("accuracy", played.state.models), ("accuracy_mixed", mixed)):
        right = []
        for client, places in enumerate(held.splits["test"]):
            found = run.context.logits(rows[client][None], held.x[places])[0].argmax(dim=1)
            right.append(float((found == held.y[places]).float().mean()))
        assert run.history.curves[name][2] == pytest.approx(sum(right) / CLIENTS, abs=1e-6)
    assert run.history.curves["accuracy"] != run.history.curves["accuracy_mixed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "down", "up"), [*zip(VARIANTS, (140, 76, 80, 92), (28, 28, 16, 28), strict=True)]
)
def test_bytes(play_toy: Play, name: str, down: int, up: int) -> None:  # T24
    # Five others' bodies (12) and heads (16) go down, or one mean; what others mix goes up.
    totals, all_ = play_toy(name).run.ledger.totals, 4 * 3 * CLIENTS
    assert totals["down"] == {"models": all_ * down, "model": 0}
    assert (totals["up"], totals["peer"]) == ({"model": all_ * up}, {})


@pytest.mark.parametrize("body", ["lambda", "mean", "local"])
def test_heads_mixed_like_bodies_need_the_bodies_of_all_others(play_toy: Play, body: str) -> None:
    """Their weights are from losses of (theta^-i, phi_m), so whole models are sent."""
    settings = {"head": "lambda", "body": body}
    totals = play_toy("fedc2i", settings=settings, rounds=1).run.ledger.totals
    assert totals["down"] == {"models": 4 * CLIENTS * (CLIENTS - 1) * 28, "model": 0}
    assert totals["up"] == {"model": 4 * CLIENTS * 28}


@pytest.mark.slow
def test_local_bodies_are_those_of_local_only_after_round_one_alone(play_toy: Play) -> None:
    pairs = []
    for rounds in (1, 2):
        played = play_toy("fedc2i-class-local", rounds=rounds)
        alone = play_toy("local-only", rounds=rounds, **ALL)
        pairs.append((played.personal, alone.personal))
    torch.testing.assert_close(*pairs[0], rtol=0, atol=1e-6)
    assert (pairs[1][0] - pairs[1][1])[:, ~HEAD].abs().max() > 1e-3, "the mixed head moved them"
    mixed = played.state.memory["fedc2i.mixed"]
    assert torch.equal(mixed[:, ~HEAD], pairs[0][0][:, ~HEAD]), "a body starts where it ended"


@pytest.mark.slow
def test_bodies_are_the_mean_or_the_mix_as_the_ablation_says(play_toy: Play) -> None:
    found = {name: play_toy(name, rounds=2) for name in VARIANTS}
    mixed = {name: played.state.memory["fedc2i.mixed"] for name, played in found.items()}
    mean = play_toy("fedc2i", rounds=1).state.models.double().mean(dim=0).float()
    for name, part in (("fedc2i-class-global", ~HEAD), ("fedc2i-lambda", HEAD)):
        torch.testing.assert_close(mixed[name][:, part], mean[part].expand(CLIENTS, -1))
        assert (mixed[name][:, ~part] - mean[~part]).abs().max() > 1e-3
    assert torch.equal(mixed["fedc2i"][:, ~HEAD], mixed["fedc2i-lambda"][:, ~HEAD])
    for name in ("fedc2i-class-global", "fedc2i-class-local"):
        assert torch.equal(mixed["fedc2i"][:, HEAD], mixed[name][:, HEAD])


@pytest.mark.slow
def test_statistics_are_mixed_like_the_body_and_counters_are_kept(play_toy: Play) -> None:
    def net() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 4)
        )

    played, uploads, scores = spied(play_toy, FedC2I(), net=net, rounds=2)
    (_, answer, ctx), layout = scores[1], played.run.context.layout
    weights, mixed = influence(answer.values.T, 5.0).T, answer.memory["fedc2i.mixed"]
    assert FedC2I().score(played.state, fl.Stage("probe", ctx.cohort, 1), "before", ctx) is None
    expected = (weights @ uploads[0].selected().double()).float()
    body = layout.body & ~layout.counters
    torch.testing.assert_close(mixed[:, body], expected[:, body])
    assert mixed[:, -1].tolist() == [4.0] * CLIENTS, "two epochs of two batches"
    models = uploads[0].selected().clone()
    models[2, -1] = 9
    row, _ = FedC2I().mix(models[0], models, left_out(models), 0, played.run.context)
    assert float(row[-1]) == 9, "the largest, never a mean"


def test_what_has_no_meaning_is_refused(play_toy: Play) -> None:
    def headless() -> torch.nn.Module:
        layer = torch.nn.Conv1d(3, 4, 1)
        return torch.nn.Sequential(torch.nn.Unflatten(1, (3, 1)), layer, torch.nn.Flatten())

    with pytest.raises(Undefined, match=mention("leaving", "client")):
        play_toy("fedc2i", clients=1, partition={"name": "iid"})
    with pytest.raises(Undefined, match=mention("classes", "apart")):
        play_toy("fedc2i", net=headless)
    with pytest.raises(UserError, match="nothing may regroup them"):
        play_toy("fedc2i+oracle", settings={"warmup": 0})
    with pytest.raises(UserError, match="client 0 has no validation samples"):
        play_toy("fedc2i", settings={"probe_split": "validation"}, validation_fraction=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_newcomers_mix_once_as_if_they_held_the_mean(play_toy: Play, name: str) -> None:
    ((_, rule),) = compose(name).layers
    kept: list[Any] = []

    @dataclass(frozen=True)
    class Spy:
        @fl.hookimpl
        def join(self, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> Any:
            answer, mean = rule.join(state, clients, ctx), state.models.mean(dim=0)
            if name == "fedc2i-class-local":  # no client sends its body
                mean = torch.where(ctx.layout.body, ctx.initial, mean)
            rows = [by_hand(rule, mean, state.models, m, ctx)[0] for m in clients.tolist()]
            kept.extend([answer.params, torch.stack(rows)])
            return answer

    changes = {"clients": 9, "unseen": 0.34, "unseen_epochs": 1, "rounds": 2}
    unseen = play_toy(composition((name, rule), ("spy", Spy())), **changes).result.unseen
    torch.testing.assert_close(*kept, rtol=0, atol=1e-5)
    assert len(unseen.correct) == len(unseen.correct_tuned) == 3
    assert play_toy(name, **changes).result.unseen == unseen


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_executors_agree(play_toy: Play, name: str) -> None:
    pair = [play_toy(name, executor=e) for e in ("sequential", "vectorised")]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-5)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals


@pytest.mark.slow
def test_the_influence_on_client_0_is_noted_in_every_round(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play_toy("fedc2i", rounds=3)
    noted = [n for n in played.run.history.notes if n["name"] == "fedc2i.influence_0"]
    assert [n["round"] for n in noted] == [1, 2, 3]
    assert all(len(n["value"]) == 6 for n in noted)
    assert sum(noted[-1]["value"]) == pytest.approx(1, abs=1e-3), "weights of a mean"
    assert len(set(noted[-1]["value"])) > 1
    monkeypatch.setattr("flbench_plugins.fedc2i.FEW", 5)
    crowd = play_toy("fedc2i", rounds=1)
    assert crowd.run.history.notes == [], "of many clients it would outgrow the result file"
    of_classes = play_toy("fedc2i-class-local", rounds=2)
    assert not any(n["name"] == "fedc2i.influence_0" for n in of_classes.run.history.notes)
