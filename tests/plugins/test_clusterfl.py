"""ClusterFL: indicators by hand, the pull, laws, compositions, newcomers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mentions import mention
from toy import CLIENTS, Play, Played, composition, same_evaluations, toy_dataset

import flbench as fl
from flbench.errors import UserError
from flbench.run.rounds import round_context
from flbench_plugins.clusterfl import ClusterFL, divergence, hard_indicator, soft_indicator

N, W = CLIENTS, 28
PLAIN = {"epochs": 2, "batch_size": 4, "lr": 0.1}
SOFT = {"clusterer": "affinity"}
SERVER = {"server_samples": 8}
UNSEEN = {"unseen": 0.34, "clients": 9, "unseen_epochs": 1, "dataset": toy_dataset(samples=180)}


def batchnorm() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 4)
    )


@dataclass(frozen=True)
class Spy:
    """Decides nothing; keeps what `cluster` and `aggregate` are given."""

    scored: list[Any]
    uploads: list[Any]

    @fl.hookimpl
    def cluster(self, state: Any, scores: Any, ctx: fl.Context) -> None:
        if scores is not None:
            self.scored.append(SimpleNamespace(round=ctx.round, scores=scores, memory=state.memory))

    @fl.hookimpl
    def aggregate(self, upload: Any) -> None:
        self.uploads.append(upload)


def spied(play_toy: Play, rule: ClusterFL, *more: Any, **changes: Any) -> tuple[Played, Spy]:
    spy = Spy([], [])
    return play_toy(composition(("clusterfl", rule), *more, ("spy", spy)), **changes), spy


def centres_of(played: Played, clients: Sequence[int] = range(N)) -> torch.Tensor:
    """What clients would be told in the next round."""
    stage = fl.Stage("train", torch.tensor(clients), 1)
    ctx = round_context(played.run, played.state.round + 1)
    return played.run.hooks.dispatch(played.state, stage, ctx).extras["centre"]


# --- indicators by hand -------------------------------------------------------------------------


def test_a_hard_indicator_by_hand() -> None:
    labels = torch.tensor([0, 2, 0, 0, 0])
    expected = [[0.5, 0, 0], [0, 0, 1], [0.5, 0, 0], [0.5, 0, 0], [0.5, 0, 0]]
    assert hard_indicator(labels, 3).tolist() == expected
    labels = torch.tensor([0, 1, 1, 2, 1, 2])
    f = hard_indicator(labels, 3)
    torch.testing.assert_close(f.T @ f, torch.eye(3, dtype=torch.float64))
    rows = torch.arange(12.0).reshape(6, 2).double()
    pulled = (f @ f.T @ rows)[[1, 2, 4]]
    torch.testing.assert_close(pulled, rows[[1, 2, 4]].mean(dim=0).expand(3, -1))


def test_the_regulariser_is_the_scatter_within_clusters() -> None:  # T15
    labels = torch.tensor([0, 1, 1, 0, 2, 1, 0])
    w = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).double()
    f = hard_indicator(labels, 3)
    groups = [w[labels == k] for k in range(3)]
    scatter = sum((rows - rows.mean(dim=0)).square().sum() for rows in groups)
    torch.testing.assert_close(w.square().sum() - (f.T @ w).square().sum(), scatter)


def test_the_divergence_of_answers_by_hand() -> None:
    even, odd = [0.5, 0.5], [0.75, 0.25]
    logits = torch.tensor([[even, even], [odd, even]]).log() + 3  # two models, two samples
    found = divergence(logits)
    expected = [[0, 0.143841 / 2], [0.130812 / 2, 0]]  # row: expectation under its own answers
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-6)


def test_a_token_of_a_text_is_a_sample_of_a_divergence() -> None:
    logits = torch.randn(2, 5, 3, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(divergence(logits), divergence(logits.view(2, 15, 7)))


def test_a_soft_indicator_by_hand() -> None:
    values = torch.tensor([[0.0, -1, -5], [-3, 0, -4], [-6, -2, 0]])
    # centred: (3, 0, -2), (0, 1, -1), (-3, -1, 3); products (13, 2, -15), (2, 2, -4), (.., .., 19)
    expected = torch.tensor([[13 / 15, 2 / 4, 0], [2 / 15, 2 / 4, 0], [0, 0, 1]])
    torch.testing.assert_close(soft_indicator(values), expected)
    assert not soft_indicator(torch.zeros(4, 4)).any(), "equal answers pull nobody, nowhere"


# --- the pull -----------------------------------------------------------------------------------


def test_the_term_and_its_gradient_by_hand() -> None:
    u = torch.tensor([1.0, 2.0], requires_grad=True)
    module = SimpleNamespace(flat=lambda: u, received={"centre": torch.tensor([3.0, -1.0])})
    value = ClusterFL(alpha=0.5, beta=0.25).local_term()(module)
    assert value.item() == 0.5 * 5 - 2 * 0.25 * 1
    value.backward()
    assert u.grad.tolist() == [0.5 * 2 * 1 - 2 * 0.25 * 3, 0.5 * 2 * 2 + 2 * 0.25 * 1]


@dataclass(frozen=True)
class Silent:
    """Models of their own to begin with, and data that say nothing."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        generator = torch.Generator().manual_seed(1)
        return fl.Setup(models=torch.randn(ctx.clients, ctx.layout.width, generator=generator))

    @fl.hookimpl
    def client_module(self, net: Any, ctx: fl.Context) -> fl.ClientModule:
        class Module(fl.ClientModule):
            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                return 0 * self.flat().sum()

        return Module(net, ctx.local)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.5, 0.25)])
def test_without_data_everybody_contracts_to_the_mean(
    play_toy: Play, alpha: float, beta: float
) -> None:
    rule = ClusterFL(k=1, alpha=alpha, beta=beta)
    played = play_toy(composition(("clusterfl", rule), ("silent", Silent())), local=PLAIN, rounds=2)
    w = torch.randn(N, W, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        centre = w.mean(dim=0)  # stands still during a round of 2 epochs of 2 batches
        for _ in range(4):
            w = w - 0.1 * (2 * alpha * w - 2 * beta * centre)
    torch.testing.assert_close(played.state.models, w)
    if alpha == beta:  # (1 - .1)^8 of the distance is left, the mean itself stays
        start = torch.randn(N, W, generator=torch.Generator().manual_seed(1))
        left = (start - start.mean(dim=0)) * 0.9**8
        torch.testing.assert_close(w - w.mean(dim=0), left, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("net", [None, batchnorm])
def test_the_centre_is_the_mean_of_the_own_cluster(play_toy: Play, net: Any) -> None:
    first = play_toy("clusterfl", settings={"k": 2}, net=net, rounds=2)
    p = first.run.context.layout.parameters
    everybody = first.state.models[:, :p].mean(dim=0).expand(N, -1)
    torch.testing.assert_close(centres_of(first), everybody)
    later = play_toy("clusterfl", settings={"k": 2}, net=net, rounds=4)
    own = torch.zeros(N, p)
    for i, members in enumerate(later.state.membership.weights > 0):
        own[i] = later.state.models[members, :p].mean(dim=0)
    torch.testing.assert_close(centres_of(later), own)
    assert len(own.unique(dim=0)) == 2
    torch.testing.assert_close(centres_of(later, [1, 4]), own[[1, 4]])


# --- clusterings --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refresh", "rounds", "expected"), [(3, 7, [3, 6]), (1, 3, [1, 2, 3]), (3, 2, [])]
)
def test_clusters_are_found_every_few_rounds(
    play_toy: Play, refresh: int, rounds: int, expected: list[int]
) -> None:
    played, spy = spied(play_toy, ClusterFL(k=2, refresh=refresh), rounds=rounds)
    assert [at.round for at in spy.scored] == expected
    assert (played.state.membership.weights is None) is (not expected)


@pytest.mark.slow
def test_k_means_finds_the_groups_by_the_trained_models(play_toy: Play) -> None:
    played, spy = spied(play_toy, ClusterFL(k=2), net=batchnorm, participation=0.5)
    (at,) = spy.scored
    p = played.run.context.layout.parameters
    rows = spy.uploads[2].selected()[:, :p].double()
    expected = -(rows[:, None] - rows).norm(dim=2)  # buffers have no say
    torch.testing.assert_close(at.scores.values, expected)
    assert [u.ids.tolist() for u in spy.uploads] == [[*range(N)]] * 3, "everybody always trains"
    assert torch.equal(played.state.models, spy.uploads[2].selected())
    groups, membership = (
        played.run.groups,
        play_toy("clusterfl", settings={"k": 2}).state.membership,
    )
    assert torch.equal(membership.weights, fl.same_group(groups))
    assert membership.home.tolist() == [*range(N)]


@pytest.mark.slow
def test_affinity_compares_softened_answers_on_the_servers_samples(play_toy: Play) -> None:
    rule = ClusterFL(clusterer="affinity", temperature=2.0, refresh=2)
    played, spy = spied(play_toy, rule, rounds=2, **SERVER)
    space, samples = played.run.executor.workspace, played.run.executor.samples
    x, answers = samples.x[samples.splits["server"][0]], []
    for row in spy.uploads[1].selected():
        space.load(row)
        answers.append(F.log_softmax(space.module(x).double() / 2, dim=1).detach())
    expected = torch.tensor(
        [[-float(F.kl_div(q, p, log_target=True, reduction="sum")) / len(x) for q in answers]
         for p in answers]
    )  # fmt: skip
    (at,) = spy.scored
    torch.testing.assert_close(at.scores.values, expected.double(), rtol=1e-5, atol=1e-6)
    f = at.memory["clusterfl.f"]
    torch.testing.assert_close(f, soft_indicator(at.scores.values).float())
    torch.testing.assert_close(f.sum(dim=0), torch.ones(N))
    assert torch.equal(played.state.membership.weights > 0, f @ f.T > 0)
    torch.testing.assert_close(centres_of(played), f @ f.T @ played.state.models)
    assert ClusterFL() == ClusterFL(3, 1e-3, 5e-4, 3, "kmeans", 6.0)
    with pytest.raises(fl.Undefined, match="the server owns no samples"):
        play_toy("clusterfl", settings=SOFT, rounds=1)


@dataclass(frozen=True)
class Half:
    """Only the cohort trains."""

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> tuple[fl.Stage, ...]:
        return (fl.Stage("train", ctx.cohort, ctx.local.epochs),)


@pytest.mark.slow
@pytest.mark.parametrize("clusterer", ["kmeans", "affinity"])
def test_whoever_does_not_train_is_clustered_by_an_older_model(
    play_toy: Play, clusterer: Any
) -> None:
    rule = ClusterFL(k=2, clusterer=clusterer, refresh=2)
    played, spy = spied(play_toy, rule, ("half", Half()), rounds=2, **SERVER)
    latest = played.run.context.initial.expand(N, -1).clone()
    for upload in spy.uploads:
        assert len(upload.ids) == 3
        latest[upload.ids] = upload.selected()
    assert torch.equal(played.state.models, latest)
    (at,) = spy.scored
    assert at.scores.row_ids.tolist() == [*range(N)]
    if clusterer == "kmeans":
        rows = latest.double()
        torch.testing.assert_close(at.scores.values, -(rows[:, None] - rows).norm(dim=2))


@pytest.mark.slow
def test_fewer_clients_than_clusters_are_a_cluster_each(play_toy: Play) -> None:
    played = play_toy("clusterfl", clients=2, partition={"name": "iid"})
    assert torch.equal(played.state.membership.weights, torch.eye(2))
    assert len(play_toy("clusterfl").state.membership.weights.unique(dim=0)) == 3


# --- laws, bytes, compositions, newcomers -------------------------------------------------------


@pytest.mark.slow
def test_without_a_pull_it_is_local_only(play_toy: Play) -> None:  # T15
    free = play_toy("clusterfl", settings={"alpha": 0, "beta": 0, "k": 2})
    alone = play_toy("local-only", settings={"schedule": "full"})
    assert torch.equal(free.personal, alone.personal)
    assert free.run.history.curves["train_loss"] == alone.run.history.curves["train_loss"]
    same_evaluations(free, alone)
    assert free.state.membership.weights is not None, "the clustering took place"
    pulled = play_toy("clusterfl", settings={"alpha": 0.1, "beta": 0.1})
    assert (pulled.personal - free.personal).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("net", "p", "w"), [(None, W, W), (batchnorm, 44, 53)])
def test_a_centre_comes_down_and_a_model_goes_up(play_toy: Play, net: Any, p: int, w: int) -> None:
    for settings in ({}, SOFT):  # T24; buffers travel with the model and have no centre
        totals = play_toy("clusterfl", settings=settings, net=net, **SERVER).run.ledger.totals
        down, up = {"model": 0, "centre": 4 * 3 * N * p}, {"model": 4 * 3 * N * w}
        assert totals == {"down": down, "up": up, "peer": {}}


@pytest.mark.parametrize(("beta", "said"), [(1e-3, False), (2e-3, True)])
def test_a_pull_that_is_not_convex_is_told(play_toy: Play, beta: float, said: bool) -> None:
    played = play_toy("clusterfl", settings={"beta": beta}, rounds=1)
    warning = "clusterfl: beta=0.002 above alpha=0.001 is not convex"
    assert played.said == [warning] * said


@pytest.mark.slow
def test_a_proximal_term_of_no_pull_changes_nothing(play_toy: Play) -> None:
    both, alone = play_toy("clusterfl+fedprox", settings={"mu": 0}), play_toy("clusterfl")
    assert torch.equal(both.state.models, alone.state.models)


def test_what_would_average_or_regroup_own_models_is_refused(play_toy: Play) -> None:
    for name in ("scaffold", "fedavgm"):
        with pytest.raises(UserError, match=mention("clusterfl", name)):
            play_toy(f"clusterfl+{name}")
    with pytest.raises(UserError, match=mention("clusterfl", "oracle")):
        play_toy("clusterfl+oracle")


def test_the_nearest_centre_by_hand() -> None:
    told: list[Any] = []

    def train(models: torch.Tensor, clients: torch.Tensor, epochs: int | None = None) -> Any:
        told.append((models, clients, epochs))
        return torch.tensor([[2.5, -4.0], [9.0, 0.0]])

    f = hard_indicator(torch.tensor([0, 0, 1]), 2).float()
    bank = torch.tensor([[0.0, 10], [2, 10], [5, -4]])  # one parameter and one buffer each
    state = fl.State(3, bank, fl.Membership(torch.arange(5)), {"clusterfl.f": f})
    ctx = SimpleNamespace(layout=SimpleNamespace(parameters=1), initial="w", train=train)
    found = ClusterFL().join(state, torch.tensor([3, 4]), ctx)
    torch.testing.assert_close(found.params, torch.tensor([[1.0, 10], [5, -4]]))
    assert [(told[0][0], told[0][1].tolist(), told[0][2])] == [("w", [3, 4], None)]


def test_the_nearest_centre_of_an_affinity_by_hand() -> None:
    """Rows of F F^T: (1, 1, 0) of 2 and 4, (1, 5, 0) of them, and nothing but the own 9."""
    f = torch.tensor([[1.0, 0.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    bank = torch.tensor([[2.0], [4.0], [9.0]])
    state = fl.State(3, bank, fl.Membership(torch.arange(3)), {"clusterfl.f": f})
    moved = torch.tensor([[2.9], [3.9], [8.0]])
    ctx: Any = SimpleNamespace(
        layout=SimpleNamespace(parameters=1),
        initial=None,
        train=lambda initial, clients: moved,
    )
    found = ClusterFL(clusterer="affinity").join(state, torch.tensor([3, 4, 5]), ctx)
    assert found is not None
    torch.testing.assert_close(found.params, torch.tensor([[3.0], [22 / 6], [9.0]]))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"k": 2}, SOFT, {"k": 2, "refresh": 9}])
def test_a_newcomer_trains_once_and_takes_the_nearest_centre(play_toy: Play, settings: Any) -> None:
    told: list[Any] = []

    @dataclass(frozen=True)
    class Ask:
        @fl.hookimpl
        def join(self, state: Any, clients: Any, ctx: fl.Context) -> None:
            given = ClusterFL(**settings).join(state, clients, ctx).params
            told.append((given, ctx.train(ctx.initial, clients)))

    method = composition(("clusterfl", ClusterFL(**settings)), ("ask", Ask()))
    played = play_toy(method, **UNSEEN, **SERVER)
    unseen, centres = played.result.unseen, centres_of(played)
    if settings == SOFT:
        f = played.state.memory["clusterfl.f"]
        centres = centres / (f @ f.T).sum(dim=1, keepdim=True)
    given, moved = told[0]
    nearest = (moved[:, None] - centres).norm(dim=2).argmin(dim=1)
    torch.testing.assert_close(given, centres[nearest])
    assert (len(given.unique(dim=0)) > 1) is (settings.get("refresh") != 9), (
        "one cluster until then"
    )
    assert (unseen.epochs, unseen.group, len(unseen.correct)) == (1, [0, 0, 1], 3)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"k": 2}, SOFT])
def test_executors_agree(play_toy: Play, settings: Any) -> None:
    pair = [
        play_toy("clusterfl", settings={**settings, "refresh": 2}, executor=e, **SERVER)
        for e in ("sequential", "vectorised")
    ]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-5)
    assert torch.equal(pair[0].state.membership.weights, pair[1].state.membership.weights)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
