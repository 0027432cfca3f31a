"""FedDyn: numbers by hand, the common optimum, and the methods whose means it corrects."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import THREE, create, message, toy_upload, wrapped
from toy import CLIENTS, Play, Played, composition

import flbench as fl
from flbench_plugins.feddyn import MEMORY, MOVED, FedDyn

TRAIN = fl.Stage("train", torch.arange(2), 1)


def context(*samples: int) -> Any:
    n = len(samples)
    return SimpleNamespace(
        layout=THREE, clients=n, everybody=torch.arange(n), samples=torch.tensor(samples)
    )


def client(u: list[float], drift: list[float], common: list[float]) -> Any:
    """A client that started from zero and is at u now."""
    received = {"feddyn.drift": torch.tensor(drift), "feddyn.common": torch.tensor(common)}
    return SimpleNamespace(
        received=received, start=torch.zeros(len(u)), flat=lambda: torch.tensor(u)
    )


def test_a_client_by_hand() -> None:
    """d = (1, 1, 0), u = (1, 2, 3), w = 0; the third scalar is not sent.

    alpha (<d, u> + (1 + 4) / 2) = (3 + 2.5) / 2; it has moved by (1, 2).
    """
    module = client([1.0, 2.0, 3.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0])
    term, report = FedDyn(0.5).local_term(), FedDyn(0.5).report(TRAIN)
    assert term is not None and report is not None
    assert term(module).item() == 2.75
    kept = report(module, torch.empty(0), torch.empty(0)).kept
    assert kept[MOVED].nan_to_num(9.0).tolist() == [1.0, 2.0, 9.0]
    assert FedDyn(0.5).report(replace(TRAIN, kind="probe")) is None


def corrected(mean: Any, drift: Any, ctx: Any, membership: fl.Membership, ids: Any) -> Any:
    """The rows after the correction of a mean; `drift` has what the clients that came moved."""
    after = torch.tensor(drift)
    before = after.clone()
    before[ids] = 0.0  # what others moved was lost
    memory = {MEMORY: before, MOVED: torch.where(after - before != 0, after, nan)}
    memory[MOVED][[i for i in range(len(after)) if i not in ids]] = 9.0
    state = fl.State(0, torch.zeros(1, 3), membership, memory)
    upload = replace(toy_upload(mean, [1.0] * len(mean)), ids=torch.tensor(ids))
    hook = FedDyn().aggregate(state, upload, membership, ctx)
    found = wrapped(hook, fl.Models(torch.tensor(mean)))
    assert torch.equal(found.memory[MEMORY], after)
    assert not found.memory[MOVED][ids].any()
    return found.rows.tolist()


def test_the_server_by_hand() -> None:
    """The mean is (2, 1, 1); drifts of 1 and 3 samples: (1, 0, 0) / 4 + 3 (3, 0, 8) / 4."""
    home = fl.Membership(torch.zeros(3, dtype=torch.int64))
    drift = [[1.0, 0.0, 0.0], [3.0, 0.0, 8.0], [0.0, 0.0, 0.0]]
    ctx = context(1, 3, 4)  # the third client was never there, but counts: half of everything
    assert corrected([[2.0, 1.0, 1.0]], drift, ctx, home, [0]) == [[2 + 1.25, 1.0, 1 + 3.0]]


def test_groups_have_drifts_of_their_own_and_rest_together() -> None:
    """Clients 0 and 1 share row 0, client 2 has row 1, of which nobody came."""
    groups = fl.Membership(torch.tensor([0, 0, 1]))
    drift = [[1.0, 0.0, 0.0], [3.0, 0.0, 8.0], [5.0, 5.0, 5.0]]
    found = corrected([[2.0, 1.0, 1.0], [9.0, 9.0, 9.0]], drift, context(1, 1, 1), groups, [0])
    assert found == [[4.0, 1.0, 5.0], [9.0, 9.0, 9.0]]


def test_all_clients_of_personal_models_are_one_group() -> None:
    own = fl.Membership(torch.arange(2))
    drift = [[1.0, 2.0, 0.0], [3.0, 4.0, 0.0]]
    found = corrected([[0.0, 0.0, 7.0], [0.0, 0.0, 8.0]], drift, context(1, 1), own, [1])
    assert found == [[2.0, 3.0, 7.0], [2.0, 3.0, 8.0]], "heads are as they were"


def test_as_many_groups_as_clients_have_drifts_of_their_own() -> None:
    """Clients 0 and 1 share row 0, client 2 has row 1, nobody has row 2."""
    groups = fl.Membership(torch.tensor([0, 0, 1]))
    drift = [[1.0, 0.0, 0.0], [3.0, 0.0, 0.0], [100.0, 0.0, 0.0]]
    found = corrected([[0.0, 0.0, 0.0]] * 3, drift, context(1, 1, 1), groups, [0])
    assert found == [[2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_a_client_has_moved_by_what_it_sends() -> None:
    """Another coder halves the update; of the third scalar nothing is common."""
    hook = FedDyn().encode(TRAIN, context(1, 1))
    coders = wrapped(hook, [lambda message: message.sending(message.update / 2)])
    coded = message([2.0, 4.0, 6.0], memory={MOVED: torch.tensor([2.0, 4.0, nan])})
    for coder in reversed(coders):
        coded = coder(coded)
    assert coded.memory[MOVED].nan_to_num(9.0).tolist() == [1.0, 2.0, 9.0]
    assert wrapped(FedDyn().encode(TRAIN, context(1, 1)), []) == []


@pytest.mark.parametrize("samples", [(1, 1), (1, 3)])
def test_clients_of_different_minds_find_the_common_optimum(samples: tuple[int, int]) -> None:
    """f_k(u) = a_k (u - c_k)^2 / 2, a = (1, 3), c = (0, 4), minimised exactly in each round.

    The optimum of sum n_k f_k is sum n_k a_k c_k / sum n_k a_k: 3 and 3.6. FedAvg ends in the mean
    of the c_k: 2 and 3.
    """
    a, c, n = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 4.0]), torch.tensor(samples)
    home, alpha, ctx = fl.Membership(torch.zeros(2, dtype=torch.int64)), 0.5, context(*samples)
    w, drift, rule = torch.zeros(1, 3), torch.zeros(2, 3), FedDyn(alpha)
    for _ in range(60):
        # the minimum of f_k + alpha (d_k u + (u - w)^2 / 2)
        u = ((a * c)[:, None] - alpha * drift + alpha * w) / (a[:, None] + alpha)
        drift = drift + (u - w)
        state = fl.State(0, w, home, {MEMORY: drift, MOVED: torch.zeros(2, 3)})
        mean = (n[:, None] * u).sum(dim=0, keepdim=True) / n.sum()
        upload = toy_upload(u.tolist(), [1.0, 1.0])
        w = wrapped(rule.aggregate(state, upload, home, ctx), fl.Models(mean)).rows
    expected = float((n * a * c).sum() / (n * a).sum())
    torch.testing.assert_close(w, torch.full((1, 3), expected), rtol=0, atol=1e-4)
    torch.testing.assert_close(alpha * drift, a[:, None] * (c[:, None] - w), rtol=0, atol=1e-3)


# --- in a run -----------------------------------------------------------------------------------


def same(one: Played, other: Played) -> bool:
    return torch.equal(one.personal, other.personal)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["fedavg", "fedper", "fedrep", "ifca", "fedprox"])
def test_without_alpha_it_is_the_other_method(other: str, play_toy: Play) -> None:
    pair = play_toy(f"{other}+feddyn", settings={"feddyn.alpha": 0.0})
    assert same(pair, play_toy(other))
    assert not same(play_toy(f"{other}+feddyn"), pair)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["fedper", "fedrep"])
def test_personal_heads_have_no_drift(other: str, play_toy: Play) -> None:
    played = play_toy(f"{other}+feddyn", rounds=2)
    ctx, rows = played.run.context, played.state.models
    head, body = ctx.layout.head, ctx.layout.body
    drift = played.state.memory[MEMORY]
    assert not drift[:, head].any() and drift[:, body].any()
    assert (rows[:, body] == rows[0, body]).all()
    alone = play_toy(other, rounds=2)
    assert played.run.ledger.totals == alone.run.ledger.totals, "drifts are never sent"
    for i in range(CLIENTS):
        met = not torch.equal(alone.state.models[i, head], ctx.initial[head])
        assert torch.equal(rows[i, head], ctx.initial[head]) is not met


@pytest.mark.slow
def test_the_model_is_ahead_of_the_mean_by_the_mean_drift(play_toy: Play) -> None:
    """In round 1 the drift of each client is its update; all take part: w_0 + 2 mean update."""
    fedavg, dyn = (play_toy(n, rounds=1, participation=1.0) for n in ("fedavg", "feddyn"))
    initial, one = fedavg.run.context.initial, create("feddyn", alpha=1e-9)
    weak = play_toy(composition(("feddyn", one)), rounds=1, participation=1.0)
    expected = initial + 2 * (fedavg.state.models[0] - initial)
    torch.testing.assert_close(weak.state.models[0], expected, rtol=0, atol=1e-6)
    assert not same(dyn, weak), "the regulariser acts"


def test_what_the_server_never_gets_moves_no_model(play_toy: Play) -> None:
    """An encoder that sends nothing, and clients that are too late."""
    silent = ("norm-bound", create("norm-bound", bound=1e-9))
    mute = play_toy(composition(silent, ("feddyn", create("feddyn"))), rounds=2)
    torch.testing.assert_close(mute.state.models[0], mute.run.context.initial)
    clock = {"seconds_per_step": [1.0, 1, 1, 9, 9, 9], "deadline": 20.0}
    late = play_toy("feddyn", rounds=2, participation=1.0, clock=clock)
    drift = late.state.memory[MEMORY]
    assert drift[:3].any(dim=1).all()
    assert not drift[3:].any()
