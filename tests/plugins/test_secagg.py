"""Secure aggregation: sums by hand, clients that fail, and who may not be there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from by_hand import message
from mentions import mention, mentioning
from small import Small, uploaded
from toy import CLIENTS, WIDTH, Play, composition, refused, watching

import flbench as fl
from flbench.core import seeding
from flbench.errors import UserError
from flbench.run.composition import check_compatible, compose
from flbench_plugins.secagg import RING, SecAgg

RULE = SecAgg(bound=8.0)  # g = 2^-20
UPDATES = ((1.0, -2.0), (0.5, 4.0), (-3.0, 7.0))
STAGE = fl.Stage("train", torch.arange(3), 1)


class Keyed(Small):
    """A context whose random numbers have addresses; what it warns of is kept."""

    def __init__(self) -> None:
        super().__init__(round_=4)
        self.warned: list[str] = []

    def rng(self, purpose: str, *address: Any, client: Any) -> Any:
        return seeding.rng(0, purpose, *address, *sorted(client))

    def send(self, way: str, ids: Any, item: str, scalars: Any) -> None:
        each = scalars.tolist() if isinstance(scalars, torch.Tensor) else [scalars] * len(ids)
        self.sent.append((way, item, each))

    def warn(self, text: str) -> None:
        self.warned.append(text)


def state(home: Any = (0, 0, 0)) -> fl.State:
    return fl.State(3, torch.ones(2, 2), fl.Membership(torch.tensor(home)))


def decoded(upload: fl.Upload, ctx: Any, before: fl.State) -> tuple[fl.Upload, list[list[float]]]:
    """What the server gets, and how far its models are from where the clients began."""
    found = RULE.decode(before, STAGE, upload, ctx)
    return found, (found.params[:, 0] - 1).tolist()


def sent(ctx: Any, before: fl.State, clients: Any = (0, 1, 2), **changes: Any) -> fl.Upload:
    """What some clients send; of 1, 2 and 3 samples."""
    coder = RULE.encode(before, STAGE, ctx)
    messages = [
        coder(replace(message(UPDATES[i]), client=i, samples=int(ctx.samples[i]), **changes))
        for i in clients
    ]
    assert all(one.bits == 24 for one in messages)
    return uploaded([one.params.tolist() for one in messages], clients)


def test_the_sum_of_three_clients_by_hand() -> None:
    """(1 (1, -2) + 2 (.5, 4) + 3 (-3, 7)) / 6 = (-7, 27) / 6; a client's share is 1/6, 2/6, 3/6."""
    ctx: Any = Keyed()
    upload = sent(ctx, state())
    shares = (1 / 6, 2 / 6, 3 / 6)
    fixed = [
        [round(share * scalar * 2**20) % RING for scalar in update]
        for share, update in zip(shares, UPDATES, strict=True)
    ]
    sums = [sum(column) % RING for column in zip(*fixed, strict=True)]
    assert (upload.params[:, 0].long().sum(dim=0) % RING).tolist() == sums
    assert bool((upload.params[:, 0].long() != torch.tensor(fixed)).all()), "none is in the clear"
    _, means = decoded(upload, ctx, state())
    assert means == [pytest.approx([-7 / 6, 27 / 6], abs=3 / 2**20)] * 3
    assert ctx.sent == [("up", "keys", [8] * 3), ("down", "keys", [16] * 3)]


def test_what_a_failed_client_leaves_is_taken_out_by_hand() -> None:
    """Without client 1: (1 (1, -2) + 3 (-3, 7)) / 4 = (-2, 19 / 4); two seeds of 128 bits."""
    ctx: Any = Keyed()
    upload = sent(ctx, state(), (0, 2))
    _, means = decoded(upload, ctx, state())
    assert means == [pytest.approx([-2.0, 4.75], abs=2 * 6 / 4 / 2**20)] * 2
    assert ctx.sent[-1] == ("up", "seeds of failed pairs", [4, 4])


def test_each_group_has_a_sum_of_its_own_and_a_sum_of_one_is_not_asked_for() -> None:
    """Clients 0 and 2 together: (-8, 19) / 4; client 1 alone keeps its model."""
    ctx: Any = Keyed()
    before = state((0, 1, 0))
    found, means = decoded(sent(ctx, before), ctx, before)
    assert found.ids.tolist() == [0, 2] and found.samples.tolist() == [1, 3]
    assert means == [pytest.approx([-2.0, 4.75], abs=2 / 2**20)] * 2
    assert ctx.sent[1] == ("down", "keys", [8, 0, 8])
    assert ctx.warned == [mentioning("round 4", "secagg", "1 of a", "2")]


def test_an_update_that_the_ring_cannot_hold_is_refused() -> None:
    rule, ctx = SecAgg(bound=6.9), Keyed()
    coder = rule.encode(state(), STAGE, ctx)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=mention("7", "secagg.bound=6.9")):
        coder(replace(message(UPDATES[2]), client=2, samples=3))
    coder(replace(message(UPDATES[1]), client=1, samples=2))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": 3}, "no plugin before codes"),
        ({"overhead": 32}, "no plugin before codes"),
        ({"mask": torch.tensor([True, False])}, "whole models"),
        ({"start": torch.zeros(2)}, "start from one model"),
    ],
)
def test_what_cannot_be_summed_is_refused(changes: Any, said: str) -> None:
    with pytest.raises(fl.Undefined, match=said):
        sent(Keyed(), state(), **changes)


SINGLE = "reads what single clients sent"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("secagg+krum", f"krum {SINGLE} (aggregate)"),
        ("secagg+pfedlia", f"pfedlia {SINGLE} (score)"),
        ("median+secagg", f"median {SINGLE} (aggregate)"),
        ("inner-product+secagg", f"inner-product {SINGLE} (encode)"),
        ("scaffold+secagg", "scaffold weighs clients otherwise than they weigh what they send"),
        ("norm-bound+secagg", "norm-bound changes what single clients sent (encode)"),
        ("secagg+dp-fedavg", "dp-fedavg codes what secagg has hidden (name secagg last)"),
        ("fedper+secagg", "fedper keeps a model per client, which is a sum of one"),
    ],
)
def test_who_needs_more_than_sums_is_refused_before_the_run(text: str, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        compose(text)
    said = f"'{text}' cannot be composed: {reason}, and secagg reveals sums only"
    assert str(caught.value) == said


def test_any_plugin_can_reveal_sums_only_and_any_can_read_them() -> None:
    """The core knows no names: what counts is what classes say and which hooks take an upload."""

    @dataclass(frozen=True)
    class Hides:
        reveals = "sum"

    @dataclass(frozen=True)
    class Looks:
        @fl.hookimpl(wrapper=True)
        def aggregate(self, upload: fl.Upload) -> Any:
            return (yield)

    @dataclass(frozen=True)
    class Sums(Looks):
        reads_sums = True

    @dataclass(frozen=True)
    class Blind:
        @fl.hookimpl(wrapper=True)
        def aggregate(self, ctx: fl.Context) -> Any:
            return (yield)

    for other in (Sums(), Blind()):
        check_compatible([("other", other), ("hides", Hides())])
    with pytest.raises(UserError, match=mention("aggregate", "reveals")):
        check_compatible([("other", Looks()), ("hides", Hides())])


def apart(one: Any, other: Any) -> float:
    """How far models lie apart, relative to the distance that they moved."""
    moved = (other.state.models - other.run.context.initial).norm()
    return float((one.state.models - other.state.models).norm() / moved)


@pytest.mark.parametrize(
    ("method", "own"),
    [("secagg", "fedavg"), ("oracle+secagg", "oracle"), ("fedavgm+secagg", "fedavgm")],
)
def test_models_are_those_without_it_to_rounding(play_toy: Play, method: str, own: str) -> None:
    changes: dict[str, Any] = {
        "partition": {"name": "label-groups", "groups": 2}, "participation": 1.0,
    }  # fmt: skip
    assert 0 < apart(play_toy(method, **changes), play_toy(own, **changes)) < 1e-5


def test_noise_is_added_before_the_masks(play_toy: Play) -> None:
    settings: dict[str, object] = {"noise": 0.0}
    mine = play_toy("dp-fedavg+secagg", settings=settings)
    assert 0 < apart(mine, play_toy("dp-fedavg", settings=settings)) < 1e-4


LATE = {"seconds_per_step": [1.0, 1.0, 1.0, 1.0, 1.0, 9.0], "deadline": 20.0}


def test_a_client_that_is_late_is_in_no_sum_and_its_seeds_are_counted(play_toy: Play) -> None:
    """Client 5 of group 1 is always late: of its two mates each sends one seed in each round."""
    changes: dict[str, Any] = {"clock": LATE, "participation": 1.0, "rounds": 2}
    uploads: list[Any] = []
    layers = (*compose("secagg").layers, ("watch", watching(uploads)))
    mine = play_toy(composition(*layers), **changes)
    assert [upload.ids.tolist() for upload in uploads] == [[0, 1, 2, 3, 4]] * 2
    assert apart(mine, play_toy("fedavg", **changes)) < 1e-5
    counted = mine.run.ledger.bits
    assert counted["up"] == {
        "keys": 2 * CLIENTS * 256,
        "model": 2 * CLIENTS * WIDTH * 24,
        "seeds of failed pairs": 2 * 5 * 128,
    }
    assert counted["down"]["keys"] == 2 * CLIENTS * 5 * 256


def test_what_the_server_gets_of_each_client_is_the_mean(play_toy: Play) -> None:
    uploads: list[Any] = []
    layers = (*compose("secagg").layers, ("watch", watching(uploads)))
    play_toy(composition(*layers), rounds=1, participation=1.0)
    assert len(uploads[0].params[:, 0].unique(dim=0)) == 1


@pytest.mark.parametrize("answer", ["more", "none", "nan"])
def test_what_decode_answers_is_checked(play_toy: Play, answer: str) -> None:
    @dataclass(frozen=True)
    class Decodes:
        @fl.hookimpl
        def decode(self, upload: fl.Upload) -> Any:
            if answer == "more":
                return replace(upload, ids=upload.ids + 100)
            if answer == "nan":
                return replace(upload, params=upload.params * torch.nan)
            return replace(upload, params=upload.params[:1])

    said = refused(play_toy, composition(("bad", Decodes())))
    assert said.startswith("round 1: bad.decode: ")


def test_a_round_whose_uploads_are_all_left_out_moves_nothing(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Nobody:
        @fl.hookimpl
        def decode(self, upload: fl.Upload) -> fl.Upload:
            return upload.select(torch.empty(0, dtype=torch.int64))

    played = play_toy(composition(("nobody", Nobody())), rounds=1)
    assert torch.equal(played.state.models[0], played.run.context.initial)
    assert played.run.history.warnings == [mentioning("round 1", "train")]
