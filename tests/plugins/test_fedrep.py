"""LG-FedAvg, FedPer and FedRep: what is shared, what stays, and what they become at their ends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import THREE, create, toy_upload
from mentions import mention, mentioning
from torch import nn
from toy import CLIENTS, Play, Played, composition, same_evaluations, watching

import flbench as fl
from flbench.errors import UserError
from flbench.run.rounds import cohort
from flbench_plugins.fedrep import FedRep
from flbench_plugins.lg_fedavg import LgFedAvg

HARD = {"epochs": 3, "batch_size": 4, "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}
HEAD = torch.arange(28) >= 12


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


def sampled(played: Played, rounds: int) -> set[int]:
    suite, seed = played.job.suite, played.job.seed
    return {i for r in range(rounds) for i in cohort(suite, seed, r + 1).tolist()}


@pytest.mark.slow
def test_sharing_every_layer_is_fedavg(play_toy: Play) -> None:  # T06
    for share in ("last", "first"):
        lg = play_toy("lg-fedavg", settings={"k": 99, "share": share})
        fedavg = play_toy("fedavg")
        assert torch.equal(lg.personal, fedavg.personal)
        assert lg.run.ledger.totals == fedavg.run.ledger.totals
    warm = play_toy("lg-fedavg", settings={"k": 0, "warm_rounds": 3})
    assert torch.equal(warm.personal, play_toy("fedavg").personal)


@pytest.mark.slow
def test_sharing_nothing_is_local_only(play_toy: Play) -> None:  # T06
    lg, alone = play_toy("lg-fedavg", settings={"k": 0}), play_toy("local-only")
    assert torch.equal(lg.personal, alone.personal)
    same_evaluations(lg, alone)
    assert lg.run.ledger.total("down") == lg.run.ledger.total("up") == 0


def test_the_local_part_of_the_unsampled_is_untouched(play_toy: Play) -> None:  # T06
    played = play_toy("lg-fedavg", rounds=1)
    rows, initial = played.state.models, played.run.context.initial
    assert (rows[:, HEAD] == rows[0, HEAD]).all(), "the head is shared by default"
    assert not torch.equal(rows[0, HEAD], initial[HEAD])
    for client in range(CLIENTS):
        same = torch.equal(rows[client, ~HEAD], initial[~HEAD])
        assert same is (client not in sampled(played, 1))
    assert played.run.ledger.totals["up"] == {"model": 4 * 3 * 16}
    assert played.run.ledger.totals["down"] == {"model": 4 * 3 * 16}


def test_a_shared_layer_takes_its_buffers_along(play_toy: Play) -> None:
    settings: dict[str, Any] = {"k": 1, "share": "first"}
    played = play_toy("lg-fedavg", settings=settings, net=batchnorm, rounds=1)
    layout, rows = played.run.context.layout, played.state.models
    shared = LgFedAvg(**settings).shared(replace(played.run.context, round=1))
    names = {slot.name for slot in layout.slots if bool(shared[slot.start])}
    assert {"net.0.weight", "net.1.running_mean"} <= names, "BatchNorm goes with the layer before"
    assert "net.3.weight" not in names
    assert (rows[:, shared] == rows[0, shared]).all()


@pytest.mark.parametrize(
    ("body", "shared", "local"),
    [
        ([nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)], 12 + 6 + 7 + 4 * 4, 12),
        ([nn.Conv2d(1, 1, 2), nn.Conv2d(1, 3, 2), nn.GroupNorm(1, 3)], 4 * 4, 5 + 15 + 6),
    ],
)
def test_two_linear_layers_are_shared_with_their_statistics_or_the_last_layer_alone(
    body: list[nn.Module], shared: int, local: int
) -> None:
    layout = fl.ParameterLayout.of(nn.Sequential(*body, nn.Linear(3, 4)))
    ctx: Any = SimpleNamespace(layout=layout, networks=None, round=1)
    mask = LgFedAvg().shared(ctx)
    assert (int(mask.sum()), int((~mask).sum())) == (shared, local)


def test_fedper_by_hand() -> None:
    """Bodies (1, 2) of 10 samples and (5, 6) of 30: (1 + 15) / 4 and (2 + 18) / 4; heads stay."""
    ctx: Any = SimpleNamespace(layout=THREE)
    one = toy_upload([[1.0, 2.0, 5.0], [5.0, 6.0, 7.0]], [1.0, 1.0])
    upload = replace(one, samples=torch.tensor([10, 30]))
    state = fl.State(0, torch.zeros(2, 3), fl.Membership(torch.arange(2)))
    found = create("fedper").aggregate(state, upload, ctx).rows
    assert found.tolist() == [[4.0, 5.0, 5.0], [4.0, 5.0, 7.0]]
    assert create("fedper").dispatch(state, ctx).sent_mask.tolist() == [True, True, False]
    assert create("fedper", personal=2).shared(ctx).tolist() == [False] * 3
    assert create("fedper", personal=0).shared(ctx).tolist() == [True] * 3


@pytest.mark.slow
def test_fedper_is_lg_fedavg_that_shares_the_first_layers(play_toy: Play) -> None:
    fedper = play_toy("fedper", local=HARD, net=batchnorm)
    lg = play_toy("lg-fedavg", settings={"share": "first", "k": 1}, local=HARD, net=batchnorm)
    assert torch.equal(fedper.personal, lg.personal)
    assert fedper.run.ledger.totals == lg.run.ledger.totals
    alone, local = play_toy("fedper", settings={"personal": 3}), play_toy("local-only")
    assert torch.equal(alone.personal, local.personal)


@pytest.mark.slow
def test_fedper_trains_body_and_head_together(play_toy: Play) -> None:
    """Each upload is that of FedAvg in round 1, when all start alike; that of FedRep is not."""
    uploads: dict[str, list[Any]] = {"fedper": [], "fedavg": [], "fedrep": []}
    for name, seen in uploads.items():
        layers = ((name, create(name)), ("watch", watching(seen)))
        play_toy(composition(*layers), rounds=1, local=HARD)
    first = {name: seen[0].selected() for name, seen in uploads.items()}
    assert torch.equal(first["fedper"], first["fedavg"])
    assert not torch.equal(first["fedper"], first["fedrep"])


def test_heads_and_bodies_stay_where_they_belong(play_toy: Play) -> None:  # T08
    played = play_toy("fedrep", local=HARD, rounds=1)
    rows, initial = played.state.models, played.run.context.initial
    assert (rows[:, ~HEAD] == rows[0, ~HEAD]).all()
    for client in range(CLIENTS):
        same = torch.equal(rows[client, HEAD], initial[HEAD])
        assert same is (client not in sampled(played, 1)), "never sampled: the initial head"
    width = int((~HEAD).sum())
    assert played.run.ledger.totals == {
        "down": {"model": 4 * 3 * width}, "up": {"model": 4 * 3 * width}, "peer": {}
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_a_frozen_part_does_not_move_even_with_momentum_and_decay(
    play_toy: Play, executor: str
) -> None:  # T08
    for body_epochs, frozen in ((0, ~HEAD), (3, HEAD)):
        uploads: list[Any] = []
        method = composition(("fedrep", FedRep(body_epochs)), ("watch", watching(uploads)))
        played = play_toy(method, local=HARD, executor=executor)
        initial = played.run.context.initial
        for upload in uploads:
            assert (upload.selected()[:, frozen] == initial[frozen]).all()
            assert (upload.selected()[:, ~frozen] != initial[~frozen]).any()


def test_a_part_that_never_trains_is_told_and_a_network_without_a_head_is_refused() -> None:
    said: list[str] = []
    local = fl.LocalTraining(epochs=2)
    ctx: Any = SimpleNamespace(layout=THREE, local=local, warn=said.append)
    ctx.initial, ctx.networks, ctx.everybody = torch.zeros(3), None, torch.arange(1)
    ctx.repeated = lambda row: row[None]
    for body_epochs in (0, 1, 2):
        FedRep(body_epochs).setup(ctx)
    assert said == [
        mentioning("fedrep", "body_epochs=0", "local.epochs=2"),
        mentioning("fedrep", "body_epochs=2", "local.epochs=2"),
    ]
    ctx.layout = fl.ParameterLayout.of(nn.Conv2d(1, 1, 1))
    with pytest.raises(fl.Undefined, match="the network has no head"):
        FedRep().setup(ctx)


def test_statistics_stand_still_while_the_head_moves(play_toy: Play) -> None:
    uploads: list[Any] = []
    method = composition(("fedrep", FedRep(0)), ("watch", watching(uploads)))
    played = play_toy(method, net=batchnorm, rounds=1)
    p = played.run.context.layout.parameters
    assert (uploads[0].selected()[:, p:-1] == played.run.context.initial[p:-1]).all()
    moving: list[Any] = []
    method = composition(("fedrep", FedRep(1)), ("watch", watching(moving)))
    play_toy(method, net=batchnorm, rounds=1)
    assert not (moving[0].selected()[:, p:-1] == played.run.context.initial[p:-1]).any()


def test_phases_say_what_moves_and_how_batchnorm_behaves(play_toy: Play) -> None:
    run = play_toy("fedrep", net=batchnorm, rounds=1).run
    module = run.executor.workspace.module
    head = torch.arange(53) >= 24
    head &= torch.arange(53) < 44
    phases = FedRep().phases(run.context)
    module.train()
    module.received = {}
    (first, second) = phases(module, 5)
    assert (first.epochs, second.epochs) == (4, 1)
    assert torch.equal(first.mask, head)
    assert torch.equal(second.mask, ~head)
    first.start(module)
    assert not module.net[1].training
    assert module.net[0].training
    second.start(module)
    assert module.net[1].training
    module.received = {"head_only": torch.ones(())}
    (only,) = phases(module, 5)
    assert only.epochs == 5
    assert torch.equal(only.mask, head)
    assert only.start is first.start


@pytest.mark.slow
def test_final_head_epochs_change_what_is_judged_and_nothing_else(play_toy: Play) -> None:
    plain = play_toy("fedrep")
    final = play_toy("fedrep", settings={"final_head_epochs": 5})
    assert torch.equal(plain.state.models, final.state.models)
    pair = [played.run.history.curves["loss"] for played in (plain, final)]
    assert pair[0][:2] == pair[1][:2]
    assert pair[1][2] < pair[0][2]


def test_what_keeps_a_part_per_client_refuses_to_be_regrouped(play_toy: Play) -> None:
    for name in ("lg-fedavg", "fedrep"):
        with pytest.raises(UserError, match=mention("oracle", "regroup")):
            play_toy(f"{name}+oracle", settings={"warmup": 0})
    with pytest.raises(UserError, match="body_epochs=9: expected at most"):
        play_toy("fedrep", settings={"body_epochs": 9})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lg-fedavg", "fedrep"])
def test_executors_agree(play_toy: Play, name: str) -> None:
    pair = [play_toy(name, executor=e) for e in ("sequential", "vectorised")]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-5)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
