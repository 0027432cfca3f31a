"""Defences over the uploads: by hand, then laws, then what they do against an attack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import create, message
from small import uploaded
from torch import nn
from toy import Play, composition, refused

import flbench as fl

SIX = [[0.0, 9.0], [1.0, 8.0], [2.0, 7.0], [3.0, 6.0], [4.0, 5.0], [90.0, -60.0]]
"""Six uploads of two scalars; the last one is false."""
LAYOUT = fl.ParameterLayout((), 2, 0)
CTX: Any = SimpleNamespace(layout=LAYOUT, round=1)
ONE = fl.Membership(torch.zeros(6, dtype=torch.int64))


def upload(rows: Any = SIX) -> fl.Upload:
    """Uploads of clients with 1, 2, 3, ... samples."""
    found = uploaded(rows[:3])
    n = len(rows)
    return replace(
        found,
        ids=torch.arange(n),
        params=torch.tensor(rows)[:, None],
        samples=torch.arange(1, n + 1),
        chosen=torch.zeros(n, dtype=torch.int64),
    )


def aggregated(method: Any, membership: fl.Membership = ONE, rows: int = 1) -> Any:
    """The bank, which was zero, after the six uploads."""
    state = fl.State(0, torch.zeros(rows, 2), membership)
    return method.aggregate(state, upload(), membership, CTX).rows


# --- trimmed mean and median --------------------------------------------------------------------


def test_trimmed_mean_by_hand() -> None:
    """beta = .2 of six: one at each end. (1 + 2 + 3 + 4) / 4 and (5 + 6 + 7 + 8) / 4."""
    assert aggregated(create("trimmed-mean", beta=0.2)).tolist() == [[2.5, 6.5]]


@pytest.mark.parametrize(
    ("beta", "uploads", "trimmed"), [(0.1, 9, 0), (0.1, 10, 1), (0.29, 100, 29), (0.49, 3, 1)]
)
def test_a_share_is_rounded_down(beta: float, uploads: int, trimmed: int) -> None:
    assert create("trimmed-mean", beta=beta).trimmed(uploads) == trimmed


def test_median_by_hand() -> None:
    """Of six the mean of the middle two, (2 + 3) / 2 and (6 + 7) / 2; of five the middle one."""
    assert aggregated(create("median")).tolist() == [[2.5, 6.5]]
    assert create("median").mean(torch.tensor(SIX[1:])).tolist() == [3.0, 6.0]
    assert create("median").mean(torch.tensor(SIX[:1])).tolist() == [0.0, 9.0]


def test_the_median_is_that_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for n in range(1, 8):
        drawn = rng.integers(0, 4, (n, 20)).astype("float32")  # with ties
        expected = np.median(drawn, axis=0).astype("float32")
        assert create("median").mean(torch.as_tensor(drawn)).tolist() == expected.tolist()


def test_each_row_is_trimmed_among_its_members() -> None:
    """Clients 0 to 2 and 3 to 5: middle scalars 1 and 4, 8 and 5; nobody is in row 2."""
    apart = fl.Membership(torch.tensor([0, 0, 0, 1, 1, 1]))
    assert aggregated(create("median"), apart, 3).tolist() == [[1.0, 8.0], [4.0, 5.0], [0.0, 0.0]]


@dataclass(frozen=True)
class Uniform:
    """The mean of each row's members, which count alike."""

    @fl.hookimpl
    def aggregate(self, state: Any, upload: Any, membership: Any, ctx: Any) -> fl.Models:
        counters = ctx.layout.counters
        return fl.Models(fl.member_mean(state.models, upload, membership, counters, "uniform"))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


@pytest.mark.slow
def test_without_trimming_it_is_the_uniform_mean(play_toy: Play) -> None:
    """Bit for bit, in two groups and with counters of BatchNorm."""
    oracle = ("oracle", create("oracle", warmup=0))
    last = ("trimmed-mean", create("trimmed-mean", beta=0.0)), ("uniform", Uniform())
    ways = [composition(oracle, one) for one in last]
    first, second = (play_toy(way, rounds=2, net=normed).state.models for way in ways)
    assert len(first) == 2
    assert torch.equal(first, second)


# --- Multi-Krum ---------------------------------------------------------------------------------


def test_multi_krum_by_hand() -> None:
    """n = 6, f = 1: all but the last one, whose mean is (0 + 1 + 2 + 3 + 4) / 5 and 35 / 5."""
    assert aggregated(create("multi-krum")).tolist() == [[2.0, 7.0]]
    assert len(create("multi-krum", byzantine=9).nearest(torch.tensor(SIX))) == 1


def test_multi_krum_counts_batches_and_does_not_average_them() -> None:
    """The second scalar is a count: of 9, 8, 7, 6 and 5, which are chosen, the most."""
    slot = fl.Slot("net.num_batches_tracked", (), 1, 2, "counter", head=False)
    ctx: Any = SimpleNamespace(layout=fl.ParameterLayout((slot,), 1, 1))
    state = fl.State(0, torch.zeros(1, 2), ONE)
    found = create("multi-krum", byzantine=1).aggregate(state, upload(), ONE, ctx)
    assert found.rows.tolist() == [[2.0, 9.0]]


def test_multi_krum_without_attackers_is_the_uniform_mean() -> None:
    everyone = aggregated(create("trimmed-mean", beta=0.0))
    torch.testing.assert_close(aggregated(create("multi-krum", byzantine=0)), everyone)


# --- norm bound ---------------------------------------------------------------------------------


def test_norm_bound_by_hand() -> None:
    """|(3, 4)| = 5 is over 2: times 2/5. Of what is within the bound every bit stays."""
    bounded = create("norm-bound", bound=2.0).encode()
    assert bounded(message([3.0, 4.0])).update.tolist() == pytest.approx([1.2, 1.6])
    short = message([0.3, 0.4])
    assert bounded(short) is short


@pytest.mark.parametrize("names", [("sign-flip", "norm-bound"), ("norm-bound", "sign-flip")])
def test_the_bound_comes_after_the_attack_in_any_order(
    names: tuple[str, str], play_toy: Play
) -> None:
    """An attacker's update that is a hundred times too long has the norm of the bound."""
    made = {
        "sign-flip": create("sign-flip", share=1.0, scale=100.0),
        "norm-bound": create("norm-bound", bound=0.01),
    }
    played = play_toy(composition(*((name, made[name]) for name in names)), rounds=1)
    moved = (played.state.models[0] - played.run.context.initial).norm().item()
    assert 0 < moved <= 0.01 + 1e-6


# --- FLTrust ------------------------------------------------------------------------------------


def test_fltrust_by_hand() -> None:
    """g_0 = (2, 0). (3, 4): cosine .6, scaled to (1.2, 1.6); (1, 0): 1, to (2, 0); (-9, 0): 0.

    (.6 (1.2, 1.6) + 1 (2, 0)) / 1.6 = (2.72, .96) / 1.6 = (1.7, .6).
    """
    updates = torch.tensor([[3.0, 4.0], [1.0, 0.0], [-9.0, 0.0]], dtype=torch.float64)
    own = torch.tensor([2.0, 0.0], dtype=torch.float64)
    mean, trust = create("fltrust").trusted(updates, own)
    assert trust.tolist() == pytest.approx([0.6, 1.0, 0.0])
    assert mean.tolist() == pytest.approx([1.7, 0.6])
    longer, same = create("fltrust").trusted(updates * torch.tensor([[4.0], [8.0], [2.0]]), own)
    assert longer.equal(mean) and same.equal(trust), "the length of an upload does not count"


def test_fltrust_moves_nowhere_if_it_trusts_nobody() -> None:
    against = torch.tensor([[-1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    mean, trust = create("fltrust").trusted(against, torch.tensor([2.0, 0.0]).double())
    assert mean.tolist() == [0.0, 0.0] and trust.tolist() == [0.0, 0.0]


class Linear(SimpleNamespace):
    """A linear model without bias; the server has one sample, x = 1 of label 0 of two."""

    layout, round = LAYOUT, 1

    def forward(self, models: Any, x: Any) -> Any:
        return torch.einsum("mw,b->mbw", models, x[:, 0])

    def server_data(self) -> Any:
        return torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)

    def rng(self, *_: Any) -> Any:
        return np.random.default_rng(0)

    def note(self, name: str, value: Any) -> None:
        self.noted = value


def test_the_server_trains_as_a_client_does_by_hand() -> None:
    """From (0, 0), rate 1: the gradient is p - (1, 0) = (-.5, .5), the step goes to (.5, -.5).

    There p_0 = e / (e + 1), and the second step adds (1 - p_0) (1, -1). Two epochs are two steps.
    """
    ctx: Any = Linear(local=fl.LocalTraining(epochs=2, batch_size=4, lr=1.0))
    trained = create("fltrust").trained(torch.zeros(2), 0, ctx)
    p = np.e / (np.e + 1)
    assert trained.tolist() == pytest.approx([0.5 + 1 - p, p - 1 - 0.5])


def test_fltrust_goes_where_its_own_update_points_by_hand() -> None:
    """The server's update is (.5, -.5). Row 0: (8, -8) is trusted, (-1, 1) is not. Row 1: nobody.

    (8, -8) counts with the length of the server's: alpha = 2 times (.5, -.5).
    """
    ctx: Any = Linear(local=fl.LocalTraining(epochs=1, batch_size=4, lr=1.0))
    state = fl.State(0, torch.zeros(3, 2), fl.Membership(torch.tensor([0, 0, 1])))
    three = upload([[8.0, -8.0], [-1.0, 1.0], [-3.0, 3.0]])
    found = create("fltrust", alpha=2.0).aggregate(state, three, state.membership, ctx)
    torch.testing.assert_close(found.rows, torch.tensor([[1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert ctx.noted == {"0": [1.0, 0.0], "1": [0.0]}


def test_fltrust_needs_samples_at_the_server(play_toy: Play) -> None:
    assert "the server owns no samples" in refused(play_toy, "fltrust", rounds=1)


def test_fltrust_does_not_trust_who_turns_around(play_toy: Play) -> None:
    """Client 0 sends the opposite of what it learned; the mean goes where nobody else objects."""
    flip = ("sign-flip", create("sign-flip", attackers=(0,), scale=1.0))
    plain, played = (
        play_toy(
            composition(*layers, ("fltrust", create("fltrust"))),
            rounds=1,
            participation=1.0,
            server_samples=8,
        )
        for layers in ([], [flip])
    )
    trust = [
        next(note["value"]["0"] for note in one.run.history.notes if "trust" in note["name"])
        for one in (plain, played)
    ]
    assert trust[0][0] > 0
    assert trust[1] == [0.0, *trust[0][1:]]


@pytest.mark.slow
@pytest.mark.parametrize("defence", ["trimmed-mean", "median", "multi-krum", "fltrust"])
def test_defences_keep_what_the_majority_learned(defence: str, play_toy: Play) -> None:
    """Under the attack, FedAvg loses more; IFCA goes with all of them."""
    flip = ("sign-flip", create("sign-flip", attackers=(0,), scale=10.0))
    more = {"beta": 0.2} if defence == "trimmed-mean" else {}
    suite = {"participation": 1.0, "rounds": 6, "not_judged": [0], "server_samples": 8}
    suite["partition"] = {"name": "iid"}
    attacked = play_toy(composition(flip), **suite)
    defended = play_toy(composition(flip, (defence, create(defence, **more))), **suite)
    loss = [played.run.history.last.mean_loss() for played in (attacked, defended)]
    assert loss[1] < loss[0] / 2
    assert len(play_toy(f"ifca+{defence}", rounds=1, server_samples=8).state.models) == 2
