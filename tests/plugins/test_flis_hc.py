"""FLIS-HC: similarities and groups by hand, the probe, laws, compositions, newcomers."""

from __future__ import annotations

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
from flbench_plugins.fedavgm import FedAvgM
from flbench_plugins.flis_hc import PROBE, FlisHC
from flbench_plugins.local_only import LocalOnly

N, W = CLIENTS, 28
PLAIN = {"epochs": 2, "batch_size": 4, "lr": 0.1}
SERVER = {"server_samples": 24, "dataset": toy_dataset(samples=240)}
UNSEEN = {"unseen": 0.34, "clients": 9, "unseen_epochs": 1, "server_samples": 24,
          "dataset": toy_dataset(samples=360)}  # fmt: skip


@dataclass(frozen=True)
class Spy:
    """Decides nothing; keeps what `cluster` and `aggregate` are given."""

    scored: list[Any]
    seen: list[Any]

    @fl.hookimpl
    def cluster(self, state: Any, stage: Any, scores: Any) -> None:
        if scores is not None:
            self.scored.append(SimpleNamespace(state=state, stage=stage, scores=scores))

    @fl.hookimpl
    def aggregate(self, state: Any, upload: Any) -> None:
        self.seen.append(SimpleNamespace(state=state, upload=upload))


def hc(play_toy: Play, *more: Any, rule: Any = None, **changes: Any) -> tuple[Played, Spy]:
    spy, named = Spy([], []), ("flis-hc", rule or FlisHC())
    return play_toy(composition(named, *more, ("spy", spy)), **{**SERVER, **changes}), spy


def same_run(one: Played, other: Played) -> None:
    assert torch.equal(one.personal, other.personal)
    assert one.run.history.curves["train_loss"] == other.run.history.curves["train_loss"]
    same_evaluations(one, other)


# --- similarities and groups by hand ------------------------------------------------------------


def test_agreement_by_hand() -> None:  # T19
    labels = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 3, 2], [1, 0, 3, 2]])
    logits = F.one_hot(labels, 4) * 5.0
    expected = [[1, 1, 0.5, 0], [1, 1, 0.5, 0], [0.5, 0.5, 1, 0.5], [0, 0, 0.5, 1]]
    assert (
        fl.similarity.prediction_agreement(fl.similarity.predictions(logits)).tolist() == expected
    )
    sure, even = [100.0, 0.0], [0.0, 0.0]
    soft = fl.similarity.predictions(torch.tensor([[sure], [even]]), "softmax")
    found = float(fl.similarity.prediction_agreement(soft)[0, 1])
    assert found == pytest.approx(0.5 / 0.5**0.5)


@pytest.mark.parametrize("kind", ["onehot", "softmax"])
def test_agreement_is_symmetric_within_bounds_and_1_with_oneself(kind: Any) -> None:  # T19
    logits = torch.randn(6, 40, 4, generator=torch.Generator().manual_seed(0))
    found = fl.similarity.prediction_agreement(fl.similarity.predictions(logits, kind))
    assert torch.equal(found, found.T)
    assert found.diagonal().tolist() == [1.0] * 6
    assert found.min() >= 0
    assert found.max() <= 1
    assert len(found.unique()) > 5


def grouped(rule: FlisHC, alike: Any) -> tuple[fl.Membership, list[Any]]:
    """How clients of a given similarity are grouped after the probe, and what they send."""
    alike, sent = torch.as_tensor(alike, dtype=torch.float64), []
    ids = torch.arange(len(alike))
    ctx = SimpleNamespace(
        clients=len(ids),
        everybody=ids,
        send=lambda way, who, item, scalars: sent.append((way, len(who), item, scalars)),
    )
    state = fl.State(0, torch.zeros(1, 1), fl.Membership(torch.zeros_like(ids)))
    stage = fl.Stage("probe", ids, 1, name=PROBE)
    return rule.cluster(state, stage, fl.Scores(alike, ids, "clients", ids), ctx), sent


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
def test_blocks_are_found_exactly(linkage: Any) -> None:  # T20
    groups = torch.tensor([0, 1, 0, 2, 1, 2, 0])
    alike = torch.where(groups[:, None] == groups, 0.8, 0.3).fill_diagonal_(1)
    found, sent = grouped(FlisHC(beta=0.5, linkage=linkage), alike)
    assert found.home.tolist() == groups.tolist()
    assert found.parent.tolist() == [0, 0, 0], "every group starts from the one model"
    assert found.weights is None
    assert sent == [("up", 7, "cluster", 1)]
    assert grouped(FlisHC(beta=0.2, linkage=linkage), alike)[0].home.tolist() == [0] * 7
    assert grouped(FlisHC(beta=0.9, linkage=linkage), alike)[0].home.tolist() == [*range(7)]


CHAIN = [[1, 0.8, 0.1], [0.8, 1, 0.6], [0.1, 0.6, 1]]


@pytest.mark.parametrize(
    ("linkage", "beta", "home"),
    [("single", 0.5, [0, 0, 0]), ("single", 0.61, [0, 0, 1]), ("single", 0.6, [0, 0, 0]),
     ("complete", 0.1, [0, 0, 0]), ("complete", 0.11, [0, 0, 1]),
     ("average", 0.35, [0, 0, 0]), ("average", 0.36, [0, 0, 1]),  # (.1 + .6) / 2
     ("average", 0.8, [0, 0, 1]), ("average", 0.81, [0, 1, 2]), ("average", 1.5, [0, 1, 2])],
)  # fmt: skip
def test_a_chain_is_cut_where_its_similarity_falls_below(
    linkage: Any, beta: float, home: list[int]
) -> None:
    assert grouped(FlisHC(beta=beta, linkage=linkage), CHAIN)[0].home.tolist() == home
    assert FlisHC() == FlisHC(beta=0.5, linkage="average", answers="onehot")


def test_models_that_always_agree_are_together_at_the_strictest_threshold() -> None:
    third = 1 - 1e-15  # a mean of similarities is exact to rounding only
    alike = [[1, third, 0.9], [third, 1, 0.9], [0.9, 0.9, 1]]
    assert grouped(FlisHC(beta=1.0), alike)[0].home.tolist() == [0, 0, 1]
    assert grouped(FlisHC(), [[1.0]])[0].home.tolist() == [0]


# --- the probe ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["onehot", "softmax"])
def test_groups_are_found_once_from_the_probes_answers(play_toy: Play, answers: Any) -> None:
    beta = {"onehot": 0.5, "softmax": 0.85}[answers]
    played, spy = hc(play_toy, rule=FlisHC(beta=beta, answers=answers), rounds=4)
    (at,) = spy.scored
    assert (at.stage.kind, at.stage.label, at.stage.epochs) == ("probe", PROBE, 2)
    assert at.scores.values.shape == (N, N)
    assert at.scores.row_ids.tolist() == [*range(N)], "everybody, whatever the participation"
    groups = played.run.groups
    assert torch.equal(played.state.membership.home, groups)
    assert [entry["round"] for entry in played.run.history.membership] == [1]
    if answers == "onehot":
        counts = at.scores.values * 24  # samples of the server
        torch.testing.assert_close(counts, counts.round())
    else:
        mates = groups[:, None] == groups
        assert at.scores.values[mates].min() > beta > at.scores.values[~mates].max()


@pytest.mark.slow
def test_what_the_probe_trained_is_thrown_away(play_toy: Play) -> None:
    played, spy = hc(play_toy)
    initial = played.run.context.initial
    assert torch.equal(spy.seen[0].state.models, initial.expand(2, -1)), "groups start from w_0"
    plain = Spy([], [])
    play_toy(composition(("spy", plain)), **SERVER)
    assert torch.equal(spy.seen[0].upload.params, plain.seen[0].upload.params), "as in fedavg"
    assert [len(at.upload.ids) for at in spy.seen] == [3, 3, 3]
    for before, after in zip(spy.seen, [*spy.seen[1:], None], strict=True):
        home, kept = played.state.membership.home[before.upload.ids], before.upload.selected()
        new = played.state.models if after is None else after.state.models
        for group in (0, 1):
            mine = kept[home == group]
            expected = mine.mean(dim=0) if len(mine) else before.state.models[group]
            torch.testing.assert_close(new[group], expected)
    assert torch.equal(played.personal, played.state.models[played.run.groups])


@pytest.mark.slow
def test_the_probe_is_counted_in_the_first_round(play_toy: Play) -> None:  # T24
    for groups, beta in ((2, 0.5), (1, 0.0)):
        played, _ = hc(play_toy, rule=FlisHC(beta=beta))
        assert len(played.state.models) == groups
        up = {"model": 4 * W * (N + 9), "cluster": 4 * N}
        # whoever trained w_0 in the probe holds it when round 1 begins
        down = {"model": 4 * W * (N + 6)}
        assert played.run.ledger.totals == {"down": down, "up": up, "peer": {}}
        rounds = played.run.history.curves["bytes_up"]
        assert rounds[0] == 4 * W * (N + 3) + 4 * N
        assert rounds[2] == rounds[0] + 2 * 4 * W * 3


# --- laws and compositions ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
@pytest.mark.parametrize("answers", ["onehot", "softmax"])
def test_a_threshold_of_zero_is_fedavg_after_the_probe(
    play_toy: Play, answers: Any, linkage: Any
) -> None:  # T20
    played, spy = hc(play_toy, rule=FlisHC(beta=0, answers=answers, linkage=linkage))
    assert len(spy.scored) == 1, "the probe took place"
    assert len(played.state.models) == 1
    same_run(played, play_toy("fedavg", **SERVER))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_groups_are_a_partition(play_toy: Play, seed: int) -> None:  # T20
    played, _ = hc(play_toy, rule=FlisHC(beta=0.8), seed=seed, rounds=1)
    home = played.state.membership.home
    assert home.unique().tolist() == [*range(len(played.state.models))], "nobody is left out"
    assert home.shape == (N,)
    assert len(played.state.models) > 1


@pytest.mark.slow
def test_a_proximal_term_of_no_pull_changes_nothing(play_toy: Play) -> None:
    both = play_toy("flis-hc+fedprox", settings={"mu": 0}, **SERVER)
    alone = play_toy("flis-hc", **SERVER)
    assert torch.equal(both.state.models, alone.state.models)
    assert torch.equal(both.state.membership.home, alone.state.membership.home)
    assert both.run.ledger.totals == alone.run.ledger.totals
    same_run(both, alone)


@pytest.mark.slow
def test_the_probe_trains_with_the_terms_of_others(play_toy: Play) -> None:
    pair = [play_toy("flis-hc+fedprox", settings={"mu": mu}, **UNSEEN) for mu in (0, 50)]
    said = [played.state.memory["flis-hc.answers"] for played in pair]
    assert said[0].shape == (N, 24, 4)
    assert not torch.equal(*said), "so did the probe"
    assert not torch.equal(pair[0].personal, pair[1].personal), "the rounds felt the pull"


@pytest.mark.slow
def test_every_group_keeps_a_server_momentum_of_its_own(play_toy: Play) -> None:
    zero = play_toy("flis-hc+fedavgm", settings={"flis-hc.beta": 0}, **SERVER)
    assert torch.equal(zero.personal, play_toy("fedavgm", **SERVER).personal)
    played, spy = hc(play_toy, ("fedavgm", FedAvgM(beta=0.5)), rounds=4)
    home, v = played.state.membership.home, torch.zeros(2, W)
    for at in spy.seen:
        momentum = at.state.memory["fedavgm.momentum"]
        torch.testing.assert_close(momentum, v, rtol=0, atol=1e-5)
        for group in (0, 1):
            mine = at.upload.selected()[home[at.upload.ids] == group]
            if len(mine):
                v[group] = 0.5 * v[group] + at.state.models[group] - mine.mean(dim=0)
    assert (v[0] - v[1]).abs().max() > 1e-2


def test_a_bank_that_is_already_split_is_refused(play_toy: Play) -> None:
    with pytest.raises(UserError, match=mention("flis-hc.cluster", "model", "found 6")):
        play_toy(composition(("local-only", LocalOnly()), ("flis-hc", FlisHC())), **SERVER)


@pytest.mark.slow
def test_every_group_has_a_variate_of_its_own(play_toy: Play) -> None:
    played = play_toy("flis-hc+scaffold", local=PLAIN, **SERVER)
    assert len(played.state.models) == 2
    assert played.run.ledger.totals["down"]["c"] == 4 * W * (9 + N), "also for the probe"


# --- newcomers ----------------------------------------------------------------------------------


def test_the_mean_agreement_with_a_group_counts_by_hand() -> None:
    told: list[Any] = []

    def train(models: Any, clients: torch.Tensor, epochs: int | None = None) -> torch.Tensor:
        told.append((models, clients.tolist(), epochs))
        return torch.zeros(1, 1)

    said = F.one_hot(torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 2]]), 3)
    state = fl.State(3, torch.zeros(2, 1), fl.Membership(torch.tensor([0, 0, 1, -1])),
                     {"flis-hc.answers": said})  # fmt: skip
    ctx = SimpleNamespace(
        clients=3, initial="w_0", train=train,
        server_data=lambda: (None, None),
        logits=lambda models, x: F.one_hot(torch.zeros(1, 4, dtype=torch.int64), 3).float(),
    )  # fmt: skip
    found = FlisHC().join(state, torch.tensor([3]), ctx)
    assert found.row.tolist() == [1], "(1 + 0) / 2 of the first group, 3/4 of the second"
    assert told == [("w_0", [3], None)]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"answers": "softmax", "beta": 0.85}])
def test_a_newcomer_joins_whom_its_own_model_agrees_with_most(
    play_toy: Play, settings: Any
) -> None:
    told: list[Any] = []

    @dataclass(frozen=True)
    class Ask:
        @fl.hookimpl
        def join(self, state: Any, clients: Any, ctx: fl.Context) -> None:
            given = FlisHC(**settings).join(state, clients, ctx).row
            x = ctx.server_data()[0]
            told.append((given, ctx.logits(ctx.train(ctx.initial, clients), x)))

    rule = FlisHC(**settings)
    played = play_toy(composition(("flis-hc", rule), ("ask", Ask())), **UNSEEN)
    unseen = played.result.unseen
    row, logits = told[0]
    known = played.state.memory["flis-hc.answers"].double()
    fresh = fl.similarity.predictions(logits, rule.answers).double()
    home, expected = played.state.membership.home, []
    for mine in fresh:
        alike = [float((mine * b).sum() / (mine.norm() * b.norm())) for b in known]
        means = [torch.tensor(alike)[home == k].mean() for k in range(len(played.state.models))]
        expected.append(int(torch.stack(means).argmax()))
    assert row.tolist() == expected
    assert len(set(expected)) > 1
    assert home.tolist() == [0, 0, 0, 1, 1, 1]
    assert expected == unseen.group, "newcomers find their true group"
    assert unseen.epochs == 1


@pytest.mark.slow
def test_without_newcomers_the_servers_memory_stays_empty(play_toy: Play) -> None:
    assert len(play_toy("flis-hc", **SERVER).state.memory["flis-hc.answers"]) == 0


@pytest.mark.slow
def test_with_one_group_a_newcomer_gets_the_one_model(play_toy: Play) -> None:
    one = play_toy("flis-hc", settings={"beta": 0}, **UNSEEN).result.unseen
    assert one.correct == play_toy("fedavg", **UNSEEN).result.unseen.correct


@pytest.mark.slow
def test_one_client_is_a_group(play_toy: Play) -> None:
    one = {"clients": 1, "partition": {"name": "iid"}, "participation": 1.0}
    same_run(play_toy("flis-hc", **one, **SERVER), play_toy("fedavg", **one, **SERVER))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"answers": "softmax", "beta": 0.85}])
def test_executors_agree(play_toy: Play, settings: Any) -> None:
    pair = [
        play_toy("flis-hc", settings=settings, executor=e, **SERVER)
        for e in ("sequential", "vectorised")
    ]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-5)
    assert torch.equal(pair[0].state.membership.home, pair[1].state.membership.home)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals


# --- what the released script does ----------------------------------------------------------------


def released(rows: list[float], ids: list[int], label: str, memory: Any, alike: Any) -> Any:
    """Memory after clients `ids` uploaded one scalar each."""
    ids_ = torch.tensor(ids)
    rule = FlisHC(mode="released")
    object.__setattr__(rule, "predictions", lambda models, ctx: alike)
    ctx = SimpleNamespace(
        newcomers=0,
        samples=torch.tensor([1, 3, 1]),
        everybody=torch.arange(3),
        layout=SimpleNamespace(counters=torch.zeros(1, dtype=torch.bool)),
    )
    upload = SimpleNamespace(ids=ids_, selected=lambda: torch.tensor(rows)[:, None])
    state = fl.State(1, torch.zeros(1, 1), fl.Membership(torch.zeros(3, dtype=torch.int64)),
                     memory=memory)  # fmt: skip
    scores = rule.score(state, fl.Stage("train", ids_, 1, name=label), upload, ctx)
    return {**memory, **scores.memory}


def released_starts(memory: Any, ids: list[int]) -> list[float]:
    """What clients start from whose samples are 1, 3 and 1."""
    layout = SimpleNamespace(counters=torch.zeros(1, dtype=torch.bool))
    ctx = SimpleNamespace(samples=torch.tensor([1, 3, 1]), layout=layout)
    state = fl.State(1, torch.zeros(1, 1), fl.Membership(torch.zeros(3).long()), memory=memory)
    rule, stage = FlisHC(mode="released"), fl.Stage("train", torch.tensor(ids), 1)
    starts: list[float] = rule.dispatch(state, stage, ctx).params.flatten().tolist()
    return starts


def test_released_clients_start_from_the_latest_models_of_those_near_them() -> None:
    answers = F.one_hot(torch.tensor([[0, 1], [0, 1], [1, 0]]), 2).double()
    nothing = {"flis-hc.last": torch.full((3, 1), 0.5)}
    kept = released([1.0, 2.0, 10.0], [0, 1, 2], PROBE, nothing, answers)
    assert kept["flis-hc.near"].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert released_starts(kept, [0, 1, 2]) == [0.5, 0.5, 0.5], "the probe's models are not used"
    first = released([1.0, 2.0, 10.0], [0, 1, 2], "train", kept, None)
    assert released_starts(first, [2, 0]) == [10, 1.75]  # (1 * 1 + 3 * 2) / 4
    later = released([5.0], [0], "train", first, None)
    assert later["flis-hc.last"][:, 0].tolist() == [5, 2, 10]
    assert released_starts(later, [1, 0]) == [2.75, 2.75], "also of who was absent"


@pytest.mark.parametrize(("agreed", "near"), [(95, 0), (96, 1), (97, 1)])
def test_released_accepts_whoever_agrees_to_96_percent(agreed: int, near: int) -> None:
    said = torch.zeros(3, 100, dtype=torch.int64)
    said[1, agreed:], said[2] = 1, 2
    nothing = {"flis-hc.last": torch.zeros(3, 1)}
    kept = released([1.0, 2.0, 3.0], [0, 1, 2], PROBE, nothing, F.one_hot(said, 3).double())
    assert kept["flis-hc.near"].tolist() == [[1, near, 0], [near, 1, 0], [0, 0, 1]]


@pytest.mark.slow
def test_released_has_no_groups_and_the_bytes_of_the_paper_but_for_the_group_ids(
    play_toy: Play,
) -> None:
    paper, _ = hc(play_toy, rounds=3)
    played, _ = hc(play_toy, rule=FlisHC(mode="released"), rounds=3)
    assert played.state.membership.home.tolist() == [0] * N
    totals, other = (run.run.ledger.totals for run in (played, paper))
    assert other["up"].pop("cluster") == 4 * N
    assert totals == other
    kept = played.state.memory["flis-hc.last"]
    served = played.run.hooks.personalise(played.state, torch.tensor([4, 1]), played.run.context)
    assert torch.equal(served.params, kept[[4, 1]])
    assert len(kept.unique(dim=0)) > 1


def test_released_probes_start_from_the_one_model_and_so_do_groups() -> None:
    state = fl.State(1, torch.zeros(1, 2), fl.Membership(torch.zeros(3).long()), memory={})
    ids, ctx = torch.tensor([2, 0]), SimpleNamespace()
    probe = fl.Stage("probe", ids, 1, name=PROBE)
    assert FlisHC(mode="released").dispatch(state, probe, ctx) is None
    assert FlisHC().dispatch(state, fl.Stage("train", ids, 1), ctx) is None


def test_a_released_newcomer_gets_the_mean_of_whom_it_agrees_with_most() -> None:
    said = F.one_hot(torch.tensor([[0, 0, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]]), 2).double()
    last = torch.tensor([[5.0], [6.0]])
    memory = {"flis-hc.answers": said[:2], "flis-hc.last": last, "flis-hc.near": torch.ones(2, 2)}
    state = fl.State(1, torch.zeros(1, 1), fl.Membership(torch.zeros(2).long()), memory=memory)
    ctx = SimpleNamespace(
        clients=2,
        initial=torch.zeros(1),
        samples=torch.tensor([3, 1, 9]),
        layout=SimpleNamespace(counters=torch.zeros(1, dtype=torch.bool)),
        server_data=lambda: (torch.zeros(4, 1), None),
        train=lambda models, clients: torch.zeros(1, 1),
        logits=lambda models, x: said[2:],
    )
    found = FlisHC(mode="released").join(state, torch.tensor([2]), ctx)
    assert found is not None
    assert found.params is not None
    assert found.params.tolist() == [[5.25]]
    memory["flis-hc.near"] = torch.eye(2)
    found = FlisHC(mode="released").join(state, torch.tensor([2]), ctx)
    assert found is not None
    assert found.params is not None
    assert found.params.tolist() == [[6.0]], "of the client that it agrees with most"


def test_what_is_compared_is_what_was_asked_for() -> None:
    logits = torch.tensor([[[0.0, 1.0]]])
    ctx = SimpleNamespace(server_data=lambda: (None, None), logits=lambda models, x: logits)
    soft = FlisHC(answers="softmax").predictions(torch.zeros(1, 1), ctx)
    assert soft.flatten().tolist() == pytest.approx([0.26894, 0.73106], abs=1e-5)
    assert FlisHC().predictions(torch.zeros(1, 1), ctx).flatten().tolist() == [0, 1]


@pytest.mark.slow
def test_released_newcomers_get_the_mean_of_whom_they_agree_with_most(play_toy: Play) -> None:
    played, _ = hc(play_toy, rule=FlisHC(mode="released"), rounds=3, **UNSEEN)
    from flbench.run.newcomers import evaluate_newcomers

    welcomed = evaluate_newcomers(played.run, played.state)
    assert welcomed is not None
    assert len(welcomed.correct) == 3
