"""DC-PFL in real rounds: what a trial leaves behind, which layers cross, bytes, laws, newcomers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
from mentions import mention
from toy import CLIENTS, Play, Played, composition, toy_dataset, watching

import flbench as fl
from flbench.errors import Undefined
from flbench.run.context import RunContext
from flbench_plugins.dc_pfl import DCPFL, NoDC, NoLA

MODEL, LOSS, BODY = 4 * CLIENTS * 28, 4 * CLIENTS, 4 * CLIENTS * 12  # bytes of all clients
ALL_LOW, ONE_LOW = {"threshold": 1e9}, {"threshold": 1.0}
TRUTH = torch.tensor([0, 0, 0, 1, 1, 1])

# --- trials ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """Tells the rule the same losses, and who wins the trial of a round."""

    rule: DCPFL
    wins: Any = ()

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        if upload is None:
            return None
        loss = torch.full_like(upload.loss_start, 0.8**ctx.round)
        after = loss * torch.tensor([1.0, 0.9 if ctx.round in self.wins else 1.1])[: loss.shape[1]]
        return self.rule.score(state, stage, replace(upload, loss_start=loss, loss_end=after), ctx)


def told(play: Play, rule: DCPFL, wins: Any = (), seen: Any = None, **changes: Any) -> Played:
    watch = watching([] if seen is None else seen)
    return play(
        composition(("dc-pfl", rule), ("told", Told(rule, wins)), ("watch", watch)), **changes
    )


def trials(played: Played) -> list[int]:
    return [n["round"] for n in played.run.history.notes if n["name"] == "dc-pfl.trial"]


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1, 3])
def test_a_refused_trial_leaves_no_trace(play_toy: Play, alpha: int) -> None:
    runs, uploads = [], []
    for lambda_step in (0.2, 0.0):
        rule = DCPFL(tau=1, alpha=alpha, lambda_step=lambda_step, **ONE_LOW)
        uploads.append([])
        runs.append(told(play_toy, rule, seen=uploads[-1], rounds=14))
    at = 12 if alpha == 3 else 11
    assert [trials(played) for played in runs] == [[at], []]
    trial = uploads[0][at - 1].params
    assert trial.shape[1] == 2
    assert not torch.equal(trial[:, 0], trial[:, 1])
    for one, other in zip(*uploads, strict=True):
        assert torch.equal(one.params[:, 0], other.params[:, 0]), "the same batches"
    assert torch.equal(runs[0].state.models, runs[1].state.models)
    for name in ("low", "crossed", "last"):
        assert torch.equal(*[played.state.memory[f"dc-pfl.{name}"] for played in runs])
    assert runs[0].run.history.last == runs[1].run.history.last
    assert runs[0].run.history.curves["train_loss"] == runs[1].run.history.curves["train_loss"]


@pytest.mark.slow
def test_an_adopted_trial_averages_all_layers_of_the_new_groups(play_toy: Play) -> None:
    seen: list[Any] = []
    rule = DCPFL(tau=1, **ALL_LOW)
    played = told(play_toy, rule, [12], seen, rounds=12)
    before, trial = seen[10].selected(), seen[11].params
    assert torch.equal(fl.same_group(played.state.membership.labels()), fl.same_group(TRUTH))
    state = told(play_toy, rule, rounds=11).state
    assert not state.memory["dc-pfl.low"].logical_not().any(), "both layers are low"
    stage = fl.Stage("trial", torch.arange(CLIENTS), 1)
    start = rule.dispatch(state, stage, replace(played.run.context, round=12))
    assert torch.equal(start.params[:, 0], state.models)
    for mates in (slice(0, 3), slice(3, 6)):
        mean = before[mates].double().mean(dim=0).float()
        assert (start.params[mates, 1] == mean).all(), "what round 11 sent up, regrouped"
        mean = trial[mates, 1].double().mean(dim=0).float()
        assert (played.state.models[mates] == mean).all(), "low or not"
    assert not torch.equal(played.state.models[0], played.state.models[3])
    assert torch.equal(played.state.memory["dc-pfl.last"], trial[:, 1])
    assert bool(played.state.memory["dc-pfl.crossed"].all())


def test_a_trial_can_be_decided_on_validation_samples(play_toy: Play) -> None:
    played = play_toy("dc-pfl", settings={"tau": 1}, rounds=1)
    ctx, ids = replace(played.run.context, round=1), torch.arange(CLIENTS)
    params = ctx.initial + torch.randn(CLIENTS, 2, 28, generator=torch.Generator().manual_seed(0))
    table = torch.rand(CLIENTS, 2).double()
    upload = fl.Upload(
        ids, params, table > -1, ids, ids, table[:, 0], table, table + 1, torch.zeros_like(ids)
    )
    stage = fl.Stage("trial", ids, 1)
    train = DCPFL().score(played.state, stage, upload, ctx)
    assert torch.equal(train.values, -table - 1)
    assert float(train.memory["dc-pfl.losses"][0]) == float(table[:, 0].mean()), "the old group's"
    val = DCPFL(trial_metric="val").score(played.state, stage, upload, ctx)
    for client in range(CLIENTS):
        x, y = ctx.client_data(client, "validation")
        for candidate in (0, 1):
            logits = ctx.logits(params[client, candidate][None], x)[0]
            loss = float(torch.nn.functional.cross_entropy(logits, y))
            assert float(val.values[client, candidate]) == pytest.approx(-loss, abs=1e-5)


# --- what is measured, averaged and sent ----------------------------------------------------------


@pytest.mark.slow
def test_the_discrepancy_is_the_mean_over_the_first_rounds(play_toy: Play) -> None:
    for scale, parts in (("model", None), ("tensor", [9, 3, 12, 4])):
        seen: list[Any] = []
        rule = DCPFL(tau=1, t_start=2, scale=scale)
        played = play_toy(composition(("dc-pfl", rule), ("watch", watching(seen))), rounds=4)
        pair = [-fl.similarity.neg_discrepancy(upload.selected(), parts) for upload in seen[:2]]
        found = played.state.memory["dc-pfl.discrepancy"]
        torch.testing.assert_close(found, (pair[0] + pair[1]) / 2)
        assert found[0, 1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.8, 1.0, 1.2])
def test_a_layer_is_low_exactly_below_its_share_of_the_mean(
    play_toy: Play, threshold: float
) -> None:
    seen: list[Any] = []
    rule = NoDC(tau=1, alpha=2, t_start=2, threshold=threshold)
    played = play_toy(composition(("dc-pfl", rule), ("watch", watching(seen))), rounds=5)
    labels, low = played.state.membership.labels(), played.state.memory["dc-pfl.low"]
    assert torch.equal(fl.same_group(labels), fl.same_group(TRUTH))
    for group in (0, 1):
        mates = [i for i in range(CLIENTS) if TRUTH[i] == group]
        rows = seen[4].selected()[mates]
        mean, apart = rows.double().mean(dim=0), []
        for layer in (slice(0, 12), slice(12, 28)):
            parts = [*rows[:, layer].double(), mean[layer]]
            scaled = [(part - part.min()) / (part.max() - part.min()) for part in parts]
            apart.append(sum(float((s - scaled[-1]).abs().mean()) for s in scaled[:-1]) / 3)
        for layer in (0, 1):
            expected = apart[layer] < threshold * (apart[0] + apart[1]) / 2
            assert low[mates, layer].tolist() == [expected] * 3
    if threshold == 1:
        assert low.sum(dim=1).tolist() == [1] * CLIENTS, "one of two layers is below their mean"


@pytest.mark.slow
def test_one_layer_alone_is_not_below_its_own_mean(play_toy: Play) -> None:
    for threshold, low in ((1.0, False), (1.01, True)):
        played = play_toy(
            "dc-pfl",
            net=lambda: torch.nn.Linear(3, 4),
            settings={"tau": 1, "t_start": 1, "threshold": threshold},
            rounds=2,
        )
        assert played.state.memory["dc-pfl.low"].tolist() == [[low]] * CLIENTS


@pytest.mark.slow
def test_what_is_not_due_stays_with_its_client(play_toy: Play) -> None:
    seen: list[Any] = []
    rule = DCPFL(tau=1, t_start=1, lambda_step=0, **ONE_LOW)
    played = play_toy(composition(("dc-pfl", rule), ("watch", watching(seen))), rounds=4)
    rows, trained = played.state.models, seen[3].selected()
    low = played.run.context.layout.of_layers(played.state.memory["dc-pfl.low"])[0]
    assert low.sum() in (12, 16)
    assert torch.equal(rows[:, low], trained[:, low]), "5 is no multiple of 3"
    assert (rows[:, ~low] == trained[:, ~low].double().mean(dim=0).float()).all()
    assert not (rows[:, low] == rows[0, low]).all()


def per_round(played: Played, way: str) -> list[int]:
    curve = played.run.history.curves[f"bytes_{way}"]
    return [int(b - a) for a, b in pairwise([0, *curve])]


@pytest.mark.slow
def test_low_layers_cost_one_model_every_alpha_rounds(play_toy: Play) -> None:  # T23
    settings = {"tau": 1, "t_start": 1, "lambda_step": 0, **ALL_LOW}
    played = play_toy("dc-pfl", settings=settings, rounds=10)
    assert bool(played.state.memory["dc-pfl.low"].all())
    m, loss = MODEL, LOSS
    # after rounds 1, 2, 5, 8 everything is averaged, and down it goes in the round after
    assert per_round(played, "down") == [m, m, m, 0, 0, m, 0, 0, m, 0]
    assert per_round(played, "up") == [m + loss, m + loss, *[loss, loss, m + loss] * 2, loss, loss]
    high = play_toy("dc-pfl", settings={**settings, "threshold": 0}, rounds=6)
    assert per_round(high, "down") == [m] * 6
    seldom = play_toy("dc-pfl", settings={**settings, "alpha": 9}, rounds=6)
    assert per_round(seldom, "down") == [m, m, 0, 0, 0, 0]


@pytest.mark.slow
def test_a_high_layer_crosses_every_round(play_toy: Play) -> None:  # T23
    settings = {"tau": 1, "t_start": 1, "lambda_step": 0, **ONE_LOW}
    played = play_toy("dc-pfl", settings=settings, rounds=8)
    down, up = per_round(played, "down"), [part - LOSS for part in per_round(played, "up")]
    assert down[:3] == [MODEL] * 3
    assert down[3] == down[4] in (BODY, MODEL - BODY)
    assert down[5] == MODEL
    assert down[6] == down[7] in (BODY, MODEL - BODY), "in between another layer may be high"
    assert up[:-1] == down[1:], "what was averaged after a round goes down in the next"


@pytest.mark.slow
def test_bytes_of_early_rounds_nola_and_trials(play_toy: Play) -> None:  # T23
    assert NoLA().alpha == 1
    nola = play_toy("dc-pfl-nola", settings={"tau": 1, **ALL_LOW}, rounds=8)
    assert per_round(nola, "down") == [MODEL] * 8
    assert per_round(nola, "up") == [MODEL + LOSS] * 8
    tried = told(play_toy, DCPFL(tau=1, **ALL_LOW), rounds=13)
    assert trials(tried) == [12]
    m = MODEL
    assert per_round(tried, "down") == [m, m, m, m, m, m, 0, 0, m, 0, 0, 2 * m, 0]
    assert tried.run.ledger.totals["up"] == {"model": 8 * m, "loss": 14 * LOSS}
    assert per_round(tried, "up")[11] == m + 2 * LOSS
    half = play_toy("dc-pfl", settings={"tau": 1}, rounds=2, participation=1.0)
    again = play_toy("dc-pfl", settings={"tau": 1}, rounds=2, participation=0.5)
    assert torch.equal(half.state.models, again.state.models), "everybody takes part"


@pytest.mark.slow
def test_clients_alone_exchange_nothing(play_toy: Play) -> None:
    played = play_toy("dc-pfl-nodc", settings={"tau": 1, "t_start": 2, "fixed": 0.01}, rounds=6)
    assert len(set(played.state.membership.labels().tolist())) == CLIENTS
    assert per_round(played, "down") == [MODEL, MODEL, 0, 0, 0, 0]
    assert per_round(played, "up") == [MODEL + LOSS, MODEL + LOSS, *[LOSS] * 4]


# --- laws, ablations, newcomers -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"lambda_step": 0, "alpha": 1, "t_start": 1}, {"t_start": 3, **ALL_LOW}]
)
def test_with_nothing_to_try_and_nothing_low_it_is_fedavg(
    play_toy: Play, settings: dict[str, object]
) -> None:  # T22
    uniform = {"k": 99, "weighting": "uniform"}
    for dataset in (None, toy_dataset(samples=105)):
        changes = {"participation": 1.0, "dataset": dataset, "partition": {"name": "iid"}}
        fedavg = play_toy("lg-fedavg", settings=uniform, **changes)
        played = play_toy("dc-pfl", settings={"tau": 2, **settings}, **changes)
        assert torch.equal(played.personal, fedavg.personal)
        for curve in ("accuracy", "loss", "train_loss"):
            assert played.run.history.curves[curve] == fedavg.run.history.curves[curve]
        width = played.run.ledger.totals["down"]["model"]
        assert width == fedavg.run.ledger.totals["down"]["model"]
    assert len(set(played.run.context.samples.tolist())) > 1, "clients count alike, large or small"


def test_tau_epochs_of_everybody(play_toy: Play) -> None:
    assert (DCPFL().tau, DCPFL().alpha, DCPFL().lambda_step) == (5, 3, 0.2)
    assert (DCPFL().t_start, DCPFL().t_obs, DCPFL().t_sp, DCPFL().window) == (5, 3, 6, 5)
    seen: list[Any] = []
    play_toy(composition(("dc-pfl", DCPFL()), ("watch", watching(seen))), rounds=1)
    assert seen[0].ids.tolist() == [*range(CLIENTS)]
    assert seen[0].steps.tolist() == [5 * 2] * CLIENTS


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["global", "local"])
def test_statistics_travel_with_their_layer_and_are_no_distance(
    play_toy: Play, policy: str
) -> None:
    def net() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)
        )

    seen: list[Any] = []
    rule = DCPFL(tau=1, t_start=1, **ONE_LOW)
    played = play_toy(
        composition(("dc-pfl", rule), ("watch", watching(seen))), net=net, rounds=2, buffers=policy
    )
    layout, rows, trained = played.run.context.layout, played.state.models, seen[1].selected()
    assert (layout.parameters, layout.width) == (44, 53)
    width = 53 if policy == "global" else 44
    assert per_round(played, "down") == [4 * CLIENTS * width] * 2
    assert (rows == rows[0]).all()
    batches = 4 if policy == "global" else 0
    assert int(rows[0, -1]) == batches, "two rounds of two batches, if they are sent"
    found = -fl.similarity.neg_discrepancy(seen[0].selected()[:, :44])
    torch.testing.assert_close(played.state.memory["dc-pfl.discrepancy"], found)
    layers = [(0, 16), (16, 24), (24, 44)]
    flags = torch.stack([(torch.arange(53) >= a) & (torch.arange(53) < b) for a, b in layers])
    apart = fl.similarity.layer_discrepancy(trained, rows, flags).mean(dim=0)
    low, ctx = played.state.memory["dc-pfl.low"], replace(played.run.context, round=2)
    assert low[0].tolist() == (apart < apart.mean()).tolist()
    for change in (torch.full((CLIENTS, 8), 1e6), 1e6 * torch.arange(CLIENTS * 8.0).view(-1, 8)):
        params = seen[1].params.clone()
        params[:, 0, 44:52] += change
        params[:, 0, 52] = torch.arange(CLIENTS)
        upload = replace(seen[1], params=params)
        again = rule.aggregate(played.state, upload, played.state.membership, ctx)
        assert torch.equal(again.memory["dc-pfl.low"], low)
        assert again.rows[:, 52].tolist() == [5] * CLIENTS, "a counter's maximum"
    state = played.state.remember({"dc-pfl.last": params[:, 0]})
    start = rule.dispatch(state, fl.Stage("trial", ctx.everybody, 1), ctx)
    groups = rule.groups(state, rule.g(state, rule.finer(state)))
    assert start.params[:, 1, 52].tolist() == [int((groups == g).nonzero().max()) for g in groups]


@pytest.mark.slow
def test_newcomers_join_the_group_they_train_like(play_toy: Play) -> None:
    kept: list[Any] = []

    @dataclass(frozen=True)
    class Spy:
        rule: DCPFL

        @fl.hookimpl
        def join(self, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> Any:
            train_ = RunContext.train
            with patch.object(RunContext, "train", autospec=True, side_effect=train_) as train:
                answer = self.rule.join(state, clients, ctx)
            starts = train.call_args.args[1]
            kept.extend([answer.params, starts, ctx.train(starts, clients)])
            return answer

    changes = {"clients": 9, "unseen": 0.34, "unseen_epochs": 1, "rounds": 4}
    for scale, parts in (("model", None), ("tensor", [9, 3, 12, 4])):
        rule = NoDC(tau=1, t_start=3, scale=scale)
        played = play_toy(composition(("dc-pfl", rule), ("spy", Spy(rule))), **changes)
        unseen, (params, starts, moved) = played.result.unseen, kept[-3:]
        labels, models = played.state.membership.labels(), played.state.models
        assert (starts == models.double().mean(dim=0).float()).all()
        assert labels.unique().tolist() == [0, 1]
        joined = []
        for newcomer in range(3):
            rows = torch.cat([moved[newcomer, None], models])
            apart = -fl.similarity.neg_discrepancy(rows, parts)[0, 1:]
            joined.append(int(apart[labels == 1].mean() < apart[labels == 0].mean()))
            mean = models[labels == joined[-1]].double().mean(dim=0).float()
            assert torch.equal(params[newcomer], mean)
        assert len(set(joined)) == 2, "not all of them join the same group"
        assert len(unseen.correct) == len(unseen.correct_tuned) == 3


def test_one_client_has_no_groups(play_toy: Play) -> None:
    with pytest.raises(Undefined, match=mention("groups", "clients")):
        play_toy("dc-pfl", clients=1, partition={"name": "iid"})


@pytest.mark.slow
def test_executors_agree(play_toy: Play) -> None:
    rule = DCPFL(tau=1, **ONE_LOW)
    pair = [told(play_toy, rule, [12], rounds=13, executor=e) for e in ("sequential", "vectorised")]
    assert [trials(played) for played in pair] == [[12], [12]]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-5)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
    assert pair[0].run.history.last.labels == pair[1].run.history.last.labels == TRUTH.tolist()


# --- absence --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Follows what each client holds, and where it would start from scalars that it never got."""

    models: dict[int, torch.Tensor]
    never: list[tuple[int, int]]

    @fl.hookimpl(wrapper=True)
    def dispatch(self, stage: fl.Stage, ctx: fl.Context) -> Any:
        starts = yield
        params = next(start.params for start in starts if start.params is not None)[:, 0]
        sent = next(start.sent_mask for start in starts if start.sent_mask is not None)
        for i, client in enumerate(stage.clients.tolist()):
            changed = params[i] != self.models.get(client, ctx.initial)
            if (changed & ~sent[i]).any():
                self.never.append((ctx.round, client))
        return starts

    @fl.hookimpl
    def aggregate(self, upload: fl.Upload) -> None:
        self.models.update(zip(upload.ids.tolist(), upload.selected(), strict=True))


def test_whoever_was_missing_gets_the_layers_of_earlier_rounds_too(play_toy: Play) -> None:
    rule, held = DCPFL(tau=1, t_start=1, lambda_step=0.0, **ONE_LOW), Held({}, [])
    method = composition(("dc-pfl", rule), ("held", held))
    played = play_toy(method, rounds=8, clock={"absent": 0.4})
    assert len(held.models) == CLIENTS
    assert not held.never
    assert played.state.memory["dc-pfl.low"].any(), "layers are sent rarely"
