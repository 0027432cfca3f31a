"""local-dp by hand; the epsilon that dp-fedavg and local-dp note, beside closed forms."""

from __future__ import annotations

import dataclasses
import math
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import Drawn, create, message, toy_upload
from mentions import mention
from scipy.optimize import brentq
from scipy.stats import norm
from small import cohorts
from toy import Play, Played, toy_dataset

import flbench as fl
from flbench.core.seeding import rng as stream
from flbench.errors import Undefined, UserError
from flbench_plugins import dp_fedavg

STAGE = fl.Stage("train", torch.arange(4), 1)


def rng(*address: Any, client: int) -> Any:
    """A client's own numbers."""
    return stream(0, *address, client)


needs_accountant = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="needs dp-accounting: pip install 'flbench[privacy]'"
)


def test_local_dp_by_hand() -> None:
    """(3, 4) is clipped to (.6, .8); noise of z S = .2 times the draws is added, for any n."""
    one = create("local-dp", clip=1.0, noise=0.2)
    sent = one.encode(STAGE, Drawn(1.0, -1.0))(message([3.0, 4.0]))
    assert sent.update.tolist() == pytest.approx([0.8, 0.6])
    assert sent.memory == {}


def test_a_message_is_counted_where_an_epsilon_is_asked_for() -> None:
    one = create("local-dp", delta=1e-5).encode(STAGE, Drawn(0.0, 0.0))
    sent = one(message([3.0, 4.0], memory={"local-dp.sent": torch.tensor(2.0)}))
    assert sent.memory["local-dp.sent"].item() == 3.0


@pytest.mark.parametrize("name", ["dp-fedavg", "local-dp"])
def test_without_the_accountant_the_run_says_what_to_install(
    name: str, play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(UserError, match=r"pip install 'flbench\[privacy\]'"):
        play_toy(name, settings={"delta": 1e-5}, rounds=1)


def test_no_epsilon_is_noted_where_none_is_asked_for(play_toy: Play) -> None:
    assert not play_toy("local-dp", rounds=1).run.history.notes


@needs_accountant
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp-fedavg", "local-dp"])
def test_without_noise_there_is_no_epsilon(name: str, play_toy: Play) -> None:
    assert not epsilons(play_toy(name, settings={"noise": 0, "delta": 0.1}, rounds=1))


def epsilons(played: Played) -> list[float]:
    return [note["value"] for note in played.run.history.notes if note["name"].endswith("epsilon")]


def gaussian(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian whose mean may move by mu deviations (Balle, Wang, ICML 2018).

    delta = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu)
    """

    def excess(eps: float) -> float:
        tail = math.exp(eps + norm.logcdf(-mu / 2 - eps / mu))
        return float(norm.cdf(mu / 2 - eps / mu) - tail - delta)

    return float(brentq(excess, 1e-6, 100))


@needs_accountant
@pytest.mark.slow
def test_epsilon_of_local_dp_is_that_of_composed_gaussians(play_toy: Play) -> None:
    """k messages of multiplier z / 2 are one of z / (2 sqrt k); k is the largest count."""
    played = play_toy("local-dp", settings={"noise": 4.0, "delta": 1e-3}, rounds=3)
    sent = torch.zeros(6)
    for cohort, found in zip(cohorts(played), epsilons(played), strict=True):
        sent[cohort] += 1
        expected = gaussian(2 * math.sqrt(sent.max()) / 4.0, 1e-3)
        assert found == pytest.approx(expected, rel=1e-3)
    assert torch.equal(played.state.memory["local-dp.sent"], sent)


@needs_accountant
@pytest.mark.slow
def test_epsilon_of_dp_fedavg_with_everybody_is_that_of_composed_gaussians(play_toy: Play) -> None:
    """Renyi divergence is an upper bound, here within a fifth."""
    settings = {"noise": 4.0, "delta": 1e-3}
    found = epsilons(play_toy("dp-fedavg", settings=settings, rounds=3, participation=1.0))
    exact = [gaussian(2 * math.sqrt(k) / 4.0, 1e-3) for k in (1, 2, 3)]
    for upper, value in zip(found, exact, strict=True):
        assert value < upper < 1.2 * value
    half = epsilons(play_toy("dp-fedavg", settings=settings, rounds=3))
    assert all(one < other for one, other in zip(half, found, strict=True)), "sampling helps"


@needs_accountant
@pytest.mark.slow
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_further_stages_have_no_epsilon(participation: float, play_toy: Play) -> None:
    settings = {"warmup": 1, "probe_epochs": 1, "delta": 1e-3}
    with pytest.raises(Undefined, match=mention("rounds", "cohort")):
        play_toy("pfedlia+dp-fedavg", settings=settings, participation=participation)


# --- what an epsilon holds for, with an accountant that always says 7 ----------------------------


@pytest.fixture
def seven(monkeypatch: pytest.MonkeyPatch) -> None:
    accountant = SimpleNamespace(compose=lambda event, count: 1 / count, get_epsilon=lambda d: 7)
    package = SimpleNamespace(
        SampledWithoutReplacementDpEvent=lambda *cohort: cohort,
        GaussianDpEvent=lambda multiplier: multiplier,
        NeighboringRelation=SimpleNamespace(REPLACE_ONE=1),
        rdp=SimpleNamespace(RdpAccountant=lambda **named: accountant),
        pld=SimpleNamespace(PLDAccountant=lambda: accountant),
    )
    monkeypatch.setattr(dp_fedavg, "accounting", lambda: package)


DELTA = {"delta": 1e-3}
LOST = [{"dropout": 0.5}, {"seconds_per_step": [1.0, 1, 1, 9, 9, 9], "deadline": 20.0}]


@pytest.mark.usefixtures("seven")
@pytest.mark.parametrize("clock", LOST)
def test_lost_uploads_take_their_share_of_the_noise_away(clock: Any, play_toy: Play) -> None:
    """So the sum has no epsilon; a message of local-dp has all of its own noise."""
    run = {"clock": clock, "participation": 1.0, "rounds": 2}
    with pytest.raises(Undefined, match=mention("6 came", "uploads")):
        play_toy("dp-fedavg", settings=DELTA, **run)
    play_toy("dp-fedavg", settings={**DELTA, "noise": 0.0}, **run)
    assert epsilons(play_toy("local-dp", settings=DELTA, **run))[-1] == 7


@pytest.mark.usefixtures("seven")
@pytest.mark.parametrize("name", ["dp-fedavg", "local-dp"])
def test_what_is_sent_beside_the_model_has_no_epsilon(name: str, play_toy: Play) -> None:
    with pytest.raises(Undefined, match=mention("method", "prototypes")):
        play_toy(f"fedproto+{name}", settings=DELTA, rounds=1)
    play_toy(f"fedproto+{name}", rounds=1)


@pytest.mark.usefixtures("seven")
@pytest.mark.parametrize("name", ["dp-fedavg", "local-dp"])
@pytest.mark.parametrize(("method", "item"), [("q-fedavg", "loss"), ("kld-groups", "label counts")])
def test_what_hooks_count_has_no_epsilon(method: str, item: str, name: str, play_toy: Play) -> None:
    with pytest.raises(Undefined, match=mention(item, "method")):
        play_toy(f"{method}+{name}", settings=DELTA, rounds=1)
    play_toy(f"{method}+{name}", settings={**DELTA, "noise": 0.0}, rounds=1)
    play_toy(f"{method}+{name}", rounds=1)


@pytest.mark.usefixtures("seven")
@pytest.mark.parametrize(
    ("method", "has_one"),
    [
        ("fedavg", True), ("fedprox", True), ("fedrep", True), ("ditto", True), ("apfl", True),
        ("krum", False),  # sends one client's model, whose noise is a share
        ("ifca", False),  # sums of fewer
        ("fedamp", False),  # mixtures of single models
        ("fednova", False),  # by steps
        ("top-k", False),  # which scalars are sent is not private
        ("qsgd", False),
    ],
)  # fmt: skip
def test_only_the_uniform_mean_of_the_cohort_has_an_epsilon(
    method: str, has_one: bool, play_toy: Play
) -> None:
    """The noise of a client is a share of the sum's, and the sum is what epsilon is about."""
    settings: dict[str, Any] = {**DELTA, **({"k": 2} if method == "ifca" else {})}
    run: dict[str, Any] = {"rounds": 1, "dataset": toy_dataset(samples=105)}
    if has_one:
        assert epsilons(play_toy(f"{method}+dp-fedavg", settings=settings, **run)) == [7]
        return
    with pytest.raises(Undefined, match="delta > 0 needs"):
        play_toy(f"{method}+dp-fedavg", settings=settings, **run)


@pytest.mark.usefixtures("seven")
@pytest.mark.parametrize("coder", ["top-k", "qsgd", "ef-signsgd"])
def test_parts_of_the_noise_are_no_share_of_it(coder: str, play_toy: Play) -> None:
    with pytest.raises(Undefined, match=mention("uniform", "cohort")):
        play_toy(f"dp-fedavg+{coder}", settings=DELTA, rounds=1)


@pytest.mark.parametrize(
    ("rows", "bits", "refused"),
    [
        ([[2.0, 4.0]], 64, False),
        ([[2.0, 4.1]], 64, True),  # another mean
        ([[2.0, 4.0], [2.0, 0.0]], 64, True),  # not for everybody
        ([[2.0, 4.0], [2.0, 0.0]], 32, False),  # only the first scalar was sent
        ([[2.0, 4.0], [2.0, 0.0]], 32 + 5, True),  # which one says something
        ([[2.0, 4.0]], 32, True),  # one of two by each client
        ([[2.0, 4.0]], 2 * 9, True),  # in nine bits
    ],
)
def test_what_has_an_epsilon_by_hand(rows: Any, bits: int, refused: bool) -> None:
    """Models (1, 3) and (3, 5), mean (2, 4)."""
    upload = toy_upload([[1.0, 3.0], [3.0, 5.0]], [1.0, 1.0])
    upload = dataclasses.replace(upload, bits=torch.full((2, 1), bits))
    home = fl.Membership(torch.zeros(2, dtype=torch.int64))
    ctx: Any = SimpleNamespace(layout=fl.ParameterLayout((), 2, 0))
    state = fl.State(0, torch.zeros(len(rows), 2), home)
    rule = create("dp-fedavg", delta=1e-3)
    expected = pytest.raises(Undefined, match="uniform mean") if refused else nullcontext()
    with expected:
        rule.require_mean(state, upload, torch.tensor(rows), ctx)


@pytest.mark.usefixtures("seven")
def test_means_by_samples_have_no_epsilon(play_toy: Play) -> None:
    """Before a round, and whether or not clients of these cohorts happen to have as many."""
    run: dict[str, Any] = {"rounds": 1, "dataset": toy_dataset(samples=105)}
    for data in (run, {"rounds": 1}):
        with pytest.raises(Undefined, match="uniform mean, and by weights=samples"):
            play_toy("dp-fedavg", settings={**DELTA, "weights": "samples"}, **data)
    for weights in ({"weights": "uniform"}, {"weights": "capped", "cap": 9}):
        settings = {**DELTA, **weights}
        assert epsilons(play_toy("dp-fedavg", settings=settings, **run)) == [7]


@pytest.mark.parametrize("weights", ["uniform", "capped"])
def test_the_sensitivity_and_the_noise_of_the_model(weights: str) -> None:
    """Updates are long, so that each moves the model by S a_i / q W, whatever its samples.

    Samples 1, 2, 3, 4, 5, 6 and cap 12: W = 21 / 12; q = 1 / 2. Noise: z S / (q W) a scalar.
    """
    samples = torch.arange(1, 7)
    clip, z, size, n = 0.5, 2.0, 20_000, 3
    cap = {"cap": 12} if weights == "capped" else {}
    one = create("dp-fedavg", clip=clip, noise=z, weights=weights, **cap)
    total = float((samples / 12).sum()) if weights == "capped" else 6.0
    denominator = total * n / 6
    stage = fl.Stage("train", torch.tensor([0, 3, 5]), 1)
    ctx: Any = SimpleNamespace(round=1, clients=6, samples=samples, rng=rng)
    start = torch.zeros(size)
    mask = torch.ones(size, dtype=torch.bool)

    def model(first: float, noise: float) -> torch.Tensor:
        coder = dataclasses.replace(one, noise=noise).encode(stage, ctx)
        ends = [torch.full((size,), value) for value in (first, 5.0, 5.0)]
        sent = [
            coder(fl.Message(client, start, end, mask, samples=int(samples[client]))).update
            for client, end in zip(stage.clients.tolist(), ends, strict=True)
        ]
        return torch.stack(sent).mean(dim=0)

    share = 1.0 if weights == "uniform" else 1 / 12
    moved = (model(5.0, 0.0) - model(-5.0, 0.0)).norm().item()
    assert moved == pytest.approx(2 * clip * share / denominator, rel=1e-4)
    assert moved <= 2 * clip / denominator + 1e-6, "epsilon's sensitivity, for any client"
    noise = (model(5.0, z) - model(5.0, 0.0)).std().item()
    assert noise == pytest.approx(z * clip / denominator, rel=0.05)


@pytest.mark.usefixtures("seven")
def test_what_clients_send_each_other_has_no_epsilon(play_toy: Play) -> None:
    """Models of neighbours are messages with noise, partial models of the probe are not."""
    settings = {"warmup": 1, "probe_epochs": 1, "mode": "peer", "topology": "p2p"}
    assert epsilons(play_toy("dpsgd+local-dp", settings=DELTA, rounds=1)) == [7]
    with pytest.raises(Undefined, match=r"not .*partial models"):
        play_toy("pfedlia+local-dp", settings={**settings, **DELTA}, rounds=2)


@pytest.mark.usefixtures("seven")
def test_nobody_has_spent_anything_before_the_first_message(play_toy: Play) -> None:
    lost = play_toy("local-dp", settings=DELTA, rounds=1, clock={"dropout": 1 - 1e-9})
    assert not epsilons(lost)


def test_noise_that_is_rounded_away_is_noise_all_the_same() -> None:
    """Of a large scalar a small noise moves nothing: what was sent is the mean, and it stayed."""
    before = torch.tensor([[1e6, 0.0, 0.0]])
    sent = torch.tensor([[1e6, 1.0, 2.0], [1e6, 3.0, 4.0]])
    upload: Any = SimpleNamespace(bits=torch.full((2, 1), 3 * 32), selected=lambda: sent)
    state: Any = SimpleNamespace(models=before)
    ctx: Any = SimpleNamespace(layout=SimpleNamespace(parameters=3, buffers=0))
    method = dp_fedavg.DPFedAvg(noise=1.0, delta=1e-3)
    method.require_mean(state, upload, sent.mean(dim=0, keepdim=True), ctx)
    with pytest.raises(Undefined, match=mention("uniform", "cohort")):
        method.require_mean(state, upload, torch.tensor([[1e6, 9.0, 3.0]]), ctx)
