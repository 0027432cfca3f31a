"""FedProto: the distance and the server's means by hand, laws, and what clients predict by."""

from __future__ import annotations

import math
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mentions import mention
from torch import Tensor, nn
from toy import CLIENTS, Play, Played, composition, toy_dataset, watching

import flbench as fl
from flbench.run.rounds import cohort, round_context
from flbench_plugins.fedproto import FedProto, Prototypical, nearest

NAN = math.nan
EXECUTORS = ["sequential", "vectorised"]
EVERY = {"participation": 1.0}
HARD = {"epochs": 2, "batch_size": 4, "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}
RAGGED = {"partition": {"name": "iid"}, "participation": 1.0, "dataset": toy_dataset(samples=105)}


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


def network(played: Played, rows: Tensor) -> Tensor:
    """The network's scalars alone, without what a method keeps beside them."""
    slots = [slot for slot in played.run.context.layout.slots if slot.name.startswith("net.")]
    return torch.cat([rows[..., slot.start : slot.stop] for slot in slots], dim=-1)


def small() -> nn.Module:
    """z = x, logits = z."""
    net = nn.Sequential(OrderedDict(body=nn.Identity(), head=nn.Linear(2, 2, bias=False)))
    net.head.weight.data = torch.eye(2)
    return net


def owned(played: Played, client: int, split: str = "train") -> tuple[Tensor, Tensor]:
    """A client's samples of some split."""
    samples = played.run.held_out if split == "test" else played.run.executor.samples
    rows = samples.splits[split][client]
    return samples.x[rows], samples.y[rows]


def test_the_distance_to_prototypes_by_hand() -> None:
    x, y = torch.tensor([[1.0, 2.0], [5.0, 5.0]]), torch.tensor([0, 1])
    module = Prototypical(small(), fl.LocalTraining(), 0.5,
                          torch.zeros(2, 2), False)  # fmt: skip
    plain = module.training_step((x, y), 0).item()
    assert plain == float(F.cross_entropy(x, y))
    for known, gap in (
        ([[0.0, 0.0], [4.0, 6.0]], 7 / 4),
        ([[0.0, 0.0], [NAN, NAN]], 5 / 4),
        ([[NAN, NAN], [NAN, NAN]], 0.0),
    ):
        module.received = {"known": torch.tensor(known)}
        assert module.training_step((x, y), 0).item() == pytest.approx(plain + 0.5 * gap)


def received(extras: dict[str, Any], known: list[Any], rule: FedProto) -> Tensor:
    """What the server knows after an upload of these extras."""
    n = len(extras["counts"])
    upload: Any = SimpleNamespace(
        ids=torch.arange(n), client_weights=torch.ones(n).double(), rows=None,
        selected=lambda: torch.zeros(n, 1),
        extras={name: torch.tensor(value) for name, value in extras.items()},
    )  # fmt: skip
    state = fl.State(0, torch.zeros(n, 1), fl.Membership(torch.arange(n)),
                     {"fedproto.known": torch.tensor(known)})  # fmt: skip
    ctx: Any = SimpleNamespace(layout=fl.ParameterLayout((), 1, 0))
    models = rule.aggregate(state, upload, state.membership, ctx)
    return models.memory["fedproto.known"]


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", 2.0), ("samples", 2.5)])
def test_the_server_averages_what_was_sent_and_keeps_the_rest(
    weighting: Any, expected: float
) -> None:
    extras = {
        "prototypes": [[[1.0], [2.0], [NAN], [NAN]], [[3.0], [NAN], [NAN], [NAN]]],
        "counts": [[1.0, 3.0, NAN, NAN], [3.0, NAN, NAN, NAN]],
    }
    found = received(extras, [[NAN], [9.0], [7.0], [NAN]], FedProto(weighting=weighting))
    torch.testing.assert_close(
        found, torch.tensor([[expected], [2.0], [7.0], [NAN]]), equal_nan=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"net": batchnorm}, RAGGED])
@pytest.mark.parametrize("protos", ["end_pass", "running"])
def test_without_the_distance_it_is_local_only(
    play_toy: Play, protos: str, more: dict[str, Any]
) -> None:  # T10
    alone = play_toy("local-only", local=HARD, executor="sequential", **more)
    more = {**more, "local": HARD, "executor": "sequential"}
    proto = play_toy("fedproto", settings={"weight": 0, "protos": protos}, **more)
    assert torch.equal(network(proto, proto.state.models), alone.state.models)
    assert proto.run.history.last.correct == alone.run.history.last.correct
    assert proto.run.history.curves["loss"] == alone.run.history.curves["loss"]
    assert not proto.state.memory["fedproto.known"].isnan().all(), "prototypes were sent"
    pulled = play_toy("fedproto", settings={"protos": protos}, **more)
    assert not torch.equal(network(pulled, pulled.state.models), alone.state.models)


def test_running_prototypes_of_half_precision_are_added_in_full() -> None:
    net = nn.Sequential(OrderedDict(body=nn.Linear(2, 2), head=nn.Linear(2, 2)))
    module = Prototypical(net, fl.LocalTraining(), 0.0, torch.zeros(2, 2), True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module.training_step((torch.ones(3, 2), torch.tensor([0, 1, 1])), 0)
    assert module.seen.dtype == torch.float32
    assert module.seen[:, -1].tolist() == [1.0, 2.0]


def test_before_the_first_upload_nothing_pulls(play_toy: Play) -> None:
    one, none = (play_toy("fedproto", settings={"weight": w}, rounds=1) for w in (9, 0))
    assert torch.equal(one.state.models, none.state.models)
    assert one.run.ledger.totals["down"] == {"model": 0, "known": 0}


@pytest.mark.slow
@pytest.mark.parametrize("width", [3, 50])
def test_bytes_do_not_depend_on_the_networks_size(play_toy: Play, width: int) -> None:  # T10
    def net() -> nn.Module:
        body = nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 5), nn.ReLU()
        return nn.Sequential(*body, nn.Linear(5, 4))

    for protos in ("end_pass", "running"):
        settings = {"protos": protos}
        totals = play_toy("fedproto", settings=settings, net=net, **EVERY).run.ledger.totals
        sent = 4 * 3 * CLIENTS * 2  # bytes, rounds, clients, labels of a client
        assert totals["up"] == {"model": 0, "prototypes": sent * 5, "counts": sent}
        assert totals["down"] == {"model": 0, "known": 4 * 2 * CLIENTS * 4 * 5}, "from round 2"


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("net", [None, batchnorm])
def test_the_prototype_of_one_owner_is_its_class_mean(
    play_toy: Play, net: Any, executor: str
) -> None:  # T10
    played = play_toy("fedproto", participation=0.2, rounds=1, net=net, executor=executor)
    (client,) = cohort(played.job.suite, played.job.seed, 1).tolist()
    x, y = owned(played, client)
    features = played.run.context.features(played.state.models[client, None], x)[0]
    known = played.state.memory["fedproto.known"]
    for label in range(4):
        if (y == label).any():
            torch.testing.assert_close(known[label], features[y == label].mean(dim=0))
        else:
            assert known[label].isnan().all()
    still = (played.state.models == played.run.context.initial).all(dim=1)
    assert [not s for s in still] == [i == client for i in range(CLIENTS)]


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("buffers", ["global", "local", "reset"])
def test_running_prototypes_are_means_of_what_training_saw(
    play_toy: Play, buffers: Any, executor: str
) -> None:
    uploads: list[Any] = []
    rule = FedProto(protos="running", weight=0)
    method = composition(("fedproto", rule), ("watch", watching(uploads)))
    more = {"buffers": buffers, "executor": executor, **EVERY}
    for epochs, rounds in ((1, 1), (2, 2)):
        local = {"epochs": epochs, "batch_size": 16, "lr": 0.5}  # one batch an epoch
        played = play_toy(method, local=local, rounds=rounds, **more)
    assert len(uploads) == 3
    start = uploads[0].selected()  # of the second epoch
    for client in range(CLIENTS):
        x, y = owned(played, client)
        last = played.run.context.features(start[client, None], x)[0]
        counts = torch.bincount(y, minlength=4)
        for label in counts.nonzero()[:, 0].tolist():
            mean = last[y == label].mean(dim=0)
            torch.testing.assert_close(uploads[1].extras["prototypes"][client, label], mean)
        for upload in uploads:
            heard = upload.extras["counts"][client].nan_to_num()
            assert heard.tolist() == counts.tolist(), "every epoch counts anew"


def test_the_nearest_prototype_is_the_prediction() -> None:
    module: Any = fl.ClientModule(small(), fl.LocalTraining())
    module.received = {"own": torch.tensor([[0.0, 0.0], [NAN, NAN], [3.0, 4.0]])}
    logits = nearest(module, torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    torch.testing.assert_close(logits, torch.tensor([[0.0, -1e4, -5.0], [-3.0, -1e4, -4.0]]))


@pytest.mark.slow
def test_nearest_chooses_among_the_clients_own_classes(play_toy: Play) -> None:
    head, near = (play_toy("fedproto", settings={"predictor": p}) for p in ("head", "nearest"))
    assert torch.equal(head.state.models, near.state.models), "it judges, it does not train"
    for one, other, name in ((head, near, "head"), (near, head, "nearest")):
        curves = one.run.history.curves, other.run.history.curves
        assert curves[0]["accuracy"] == curves[1][f"accuracy_{name}"]
    assert head.run.history.curves["accuracy"] != near.run.history.curves["accuracy"]
    known, correct = near.state.memory["fedproto.known"], []
    assert not known.isnan().any(), "every class is known to somebody"
    for played in (head, near):
        ctx = round_context(played.run, 3)
        told = played.run.hooks.personalise(played.state, ctx.everybody, ctx).extras["known"]
        assert (told == known).all(), "for further training"
    for client in range(CLIENTS):
        own = owned(near, client)[1].unique()
        x, y = owned(near, client, "test")
        z = near.run.context.features(near.state.models[client, None], x)[0]
        guess = own[(z[:, None] - known[own]).norm(dim=2).argmin(dim=1)]
        correct.append(int((guess == y).sum()))
    assert near.run.history.last.correct == correct
    unheard = play_toy("fedproto", settings={"predictor": "nearest"}, participation=0.2, rounds=1)
    assert math.isfinite(unheard.run.history.curves["loss"][0])


@pytest.mark.slow
def test_a_newcomer_starts_anew_and_knows_the_prototypes(play_toy: Play) -> None:
    more = {"unseen": 0.34, "partition": {"name": "iid"}, "unseen_epochs": 2}
    proto, alone = play_toy("fedproto", **more), play_toy("local-only", **more)
    assert proto.result.unseen.correct == alone.result.unseen.correct
    assert proto.result.unseen.correct_tuned is not None


@pytest.mark.slow
@pytest.mark.parametrize("net", [None, batchnorm])
@pytest.mark.parametrize(
    "settings",
    [{}, {"protos": "running"}, {"weighting": "samples"}, {"predictor": "nearest", "weight": 0.1}],
)
def test_executors_agree(play_toy: Play, settings: dict[str, Any], net: Any) -> None:
    local = {"epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": 0.5}
    more = {"settings": settings, "net": net, "local": local, **RAGGED, "rounds": 2}
    pair = [play_toy("fedproto", executor=e, **more) for e in EXECUTORS]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=1e-5, atol=1e-5)
    known = [played.state.memory["fedproto.known"] for played in pair]
    torch.testing.assert_close(*known, rtol=0, atol=1e-5)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
    assert pair[0].run.history.last.correct == pair[1].run.history.last.correct


def test_what_has_no_meaning_is_refused(play_toy: Play) -> None:
    with pytest.raises(fl.Undefined, match=mention("prototypes", "enters")):
        play_toy("fedproto", net=lambda: nn.BatchNorm1d(3))
    with pytest.raises(fl.UserError, match="nothing may regroup them"):
        play_toy("fedproto+oracle", settings={"warmup": 0})
