"""FedAvgM, FedProx, SCAFFOLD and FedNova: hand-computed numbers, then laws, then compositions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mentions import mention
from toy import CLIENTS, Play, Played, composition, toy_dataset, watching

import flbench as fl
from flbench.errors import UserError
from flbench.run.composition import compose
from flbench_plugins.fedavgm import FedAvgM
from flbench_plugins.fednova import FedNova
from flbench_plugins.fedprox import FedProx
from flbench_plugins.scaffold import Scaffold

PLAIN = {"epochs": 2, "batch_size": 4, "lr": 0.1}
RAGGED = {"partition": {"name": "iid"}, "participation": 0.5}


def ragged() -> Any:
    return toy_dataset(samples=105)


def close(one: Played, other: Played, atol: float = 1e-6) -> None:
    torch.testing.assert_close(one.personal, other.personal, rtol=0, atol=atol)


@dataclass(frozen=True)
class Uniform:
    """FedAvg that counts every client alike."""

    @fl.hookimpl
    def aggregate(self, state: Any, upload: Any, membership: Any) -> fl.Models:
        return fl.Models(fl.member_mean(state.models, upload, membership, weighting="uniform"))


# --- a server of three parameters, computed by hand ---------------------------------------------


def server(
    rows: list[list[float]], uploads: list[list[float]], samples: list[int], **more: Any
) -> tuple[fl.State, fl.Upload, fl.Membership, Any]:
    """What `aggregate` is given: one bank, some uploads, everybody at home in row 0."""
    n, width = len(uploads), len(rows[0])
    nothing = torch.full((n, 1), torch.nan, dtype=torch.float64)
    upload = fl.Upload(
        ids=torch.arange(n),
        params=torch.tensor(uploads)[:, None],
        active=torch.ones(n, 1, dtype=torch.bool),
        samples=torch.tensor(samples),
        steps=torch.tensor(more.get("steps", [1] * n)),
        loss=nothing[:, 0],
        loss_start=nothing,
        loss_end=nothing,
        chosen=torch.zeros(n, dtype=torch.int64),
    )
    membership = fl.Membership(home=torch.zeros(n, dtype=torch.int64))
    state = fl.State(0, torch.tensor(rows), membership, more.get("memory", {}))

    class Context:
        layout = fl.ParameterLayout((), width, 0)
        local = fl.LocalTraining(lr=more.get("lr", 0.1), momentum=more.get("momentum", 0.0))

        def send(self, *_: Any) -> None:
            """Count nothing."""

    return state, upload, membership, Context()


@pytest.mark.parametrize(
    ("nesterov", "expected"), [(False, [-1.0, -2.9, -5.61]), (True, [-1.9, -4.61])]
)
def test_server_momentum_of_a_constant_gradient(
    nesterov: bool, expected: list[float]
) -> None:  # T05
    rule, w, v = FedAvgM(beta=0.9, nesterov=nesterov), 0.0, torch.zeros(1, 3)
    for value in expected:
        memory = {"fedavgm.momentum": v}
        arguments = server([[w] * 3], [[w - 1] * 3, [w - 1] * 3], [1, 3], memory=memory)
        models = rule.aggregate(*arguments)
        torch.testing.assert_close(models.rows, torch.full((1, 3), value))
        w, v = float(models.rows[0, 0]), models.memory["fedavgm.momentum"]


def test_normalised_averaging_by_hand() -> None:  # T02
    arguments = server([[6.0]], [[5.0], [0.0]], [1, 1], steps=[1, 3])
    assert FedNova().aggregate(*arguments).rows.tolist() == [[3.0]]  # fedavg would give 2.5
    # mu = 1, eta = .1: a = (1, 2.71), d = (1, 6 / 2.71), tau = the mean of the steps, 2
    pulled = FedNova(mu=1.0).aggregate(*arguments).rows
    torch.testing.assert_close(pulled, torch.tensor([[6 - 2 * (1 + 6 / 2.71) / 2]]))


@pytest.mark.parametrize(
    ("steps", "momentum", "shrink", "expected"),
    [(3, 0.5, 0.0, 4.25), (2, 0.0, 0.1, 1.9), (7, 0.0, 0.0, 7.0), (1, 0.9, 0.0, 1.0)],
)
def test_normalisers_by_hand(
    steps: int, momentum: float, shrink: float, expected: float
) -> None:  # T03
    found = fl.effective_steps(torch.tensor([steps]), momentum, shrink)
    assert found.tolist() == pytest.approx([expected])
    if not shrink:
        counter = total = 0.0
        for _ in range(steps):
            counter = momentum * counter + 1
            total += counter
        assert total == pytest.approx(expected), "the running counter of the authors' optimiser"


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fedprox_without_pull_is_fedavg(play_toy: Play) -> None:  # T01
    fedavg, prox = play_toy("fedavg"), play_toy("fedprox", settings={"mu": 0})
    assert torch.equal(fedavg.state.models, prox.state.models)
    assert fedavg.run.ledger.totals == prox.run.ledger.totals
    assert not torch.equal(play_toy("fedprox", settings={"mu": 1}).state.models, prox.state.models)


@pytest.mark.slow
def test_a_stronger_pull_ends_nearer_to_the_start(play_toy: Play) -> None:
    uploads: list[Any] = []
    for mu in (0.0, 0.1, 1.0, 4.0):
        method = composition(("fedprox", FedProx(mu)), ("watch", watching(uploads)))
        played = play_toy(method, rounds=1, local=PLAIN)
    away = [(u.selected() - played.run.context.initial).norm(dim=1) for u in uploads]
    for nearer, farther in zip(away[1:], away[:-1], strict=True):
        assert (nearer < farther).all()


def test_the_pull_is_nothing_at_the_first_step(play_toy: Play) -> None:
    once = {"epochs": 1, "batch_size": 1000, "lr": 0.1}
    one, other = (play_toy("fedprox", settings={"mu": mu}, local=once) for mu in (0, 9))
    close(one, other)


@pytest.mark.slow
def test_fedavgm_without_momentum_is_fedavg(play_toy: Play) -> None:  # T01
    plain = play_toy("fedavgm", settings={"beta": 0})
    close(plain, play_toy("fedavg"))
    assert plain.run.ledger.totals == play_toy("fedavg").run.ledger.totals
    assert (play_toy("fedavgm").personal - plain.personal).abs().max() > 1e-3


@pytest.mark.slow
def test_scaffold_starts_as_uniform_fedavg(play_toy: Play) -> None:  # T01
    for local in (PLAIN, {**PLAIN, "momentum": 0.9}):
        more = {"local": local, "rounds": 1, "dataset": ragged(), **RAGGED, "participation": 1.0}
        close(play_toy("scaffold", **more), play_toy(composition(("u", Uniform())), **more))
        by_samples = play_toy("fedavg", **more).personal
        assert (play_toy("scaffold", **more).personal - by_samples).abs().max() > 1e-5
        two = {**more, "rounds": 2}
        late = play_toy("scaffold", **two), play_toy(composition(("u", Uniform())), **two)
        assert (late[0].personal - late[1].personal).abs().max() > 1e-4


def test_a_client_without_a_step_keeps_its_variate() -> None:
    local = SimpleNamespace(momentum=0.5, lr=0.1)
    module: Any = SimpleNamespace(received={"c": torch.ones(2)}, steps=0, local=local)
    assert Scaffold().change(module, None, None).sent["c_change"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_servers_variate_is_the_mean_of_the_clients(play_toy: Play, momentum: float) -> None:
    """T04: c <- c + 1/N sum of reported changes stays the mean; the unsampled keep theirs."""
    uploads: list[Any] = []
    method = composition(("scaffold", Scaffold()), ("watch", watching(uploads)))
    played = play_toy(method, local={**PLAIN, "momentum": momentum})
    c, seen = torch.zeros(1), set()
    for upload in uploads:
        c = c + upload.extras["c_change"].sum(dim=0) / CLIENTS
        seen |= set(upload.ids.tolist())
    own = played.state.memory["scaffold.c_i"]
    torch.testing.assert_close(own.mean(dim=0), c, rtol=0, atol=1e-5)
    assert len(seen) < CLIENTS or len(uploads) > 1
    for client in range(CLIENTS):
        assert bool(own[client].any()) is (client in seen)
    width = played.run.context.layout.width
    assert played.run.ledger.totals["down"] == {"model": 36 * width, "c": 36 * width}
    assert played.run.ledger.totals["up"] == {"model": 36 * width, "c_change": 36 * width}


def gradients(played: Played, row: torch.Tensor) -> torch.Tensor:
    """Full-batch gradient of every client at a row, shape (N, P)."""
    space, samples = played.run.executor.workspace, played.run.executor.samples
    found = []
    for rows in samples.splits["train"]:
        space.load(row)
        space.module.zero_grad()
        space.module.training_step((samples.x[rows], samples.y[rows]), 0).backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in space.module.parameters()]))
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_one_full_batch_step_makes_the_variate_the_gradient(play_toy: Play, rounds: int) -> None:
    """(w - u) / eta = g + c - c_i, hence c_i' = c_i - c + g + c - c_i = g at the round's start."""
    once = {"epochs": 1, "batch_size": 1000, "lr": 0.1}
    more = {"local": once, "participation": 1.0}
    played = play_toy("scaffold", rounds=rounds, **more)
    start = played.run.context.initial
    if rounds > 1:
        start = play_toy("scaffold", rounds=rounds - 1, **more).state.models[0]
    expected = gradients(played, start)
    torch.testing.assert_close(played.state.memory["scaffold.c_i"], expected, rtol=0, atol=1e-5)


def test_momentum_is_divided_out_of_the_variate(play_toy: Play) -> None:
    """At a tiny rate the gradient hardly changes, and three steps of momentum weigh 4.25."""
    slow = {"epochs": 3, "batch_size": 1000, "lr": 1e-4, "momentum": 0.5}
    more = {"local": slow, "participation": 1.0, "rounds": 1}
    fixed = play_toy("scaffold", **more)
    expected = gradients(fixed, fixed.run.context.initial)
    own = fixed.state.memory["scaffold.c_i"]
    torch.testing.assert_close(own, expected, rtol=0.01, atol=2e-3)
    plain = play_toy("scaffold", settings={"momentum_fix": False}, **more)
    torch.testing.assert_close(plain.state.memory["scaffold.c_i"], own * 4.25 / 3)


@pytest.mark.slow
def test_fednova_of_equal_steps_is_fedavg(play_toy: Play) -> None:  # T02
    for momentum in (0.0, 0.5):
        local = {**PLAIN, "momentum": momentum}
        nova, fedavg = play_toy("fednova", local=local), play_toy("fedavg", local=local)
        close(nova, fedavg)
        assert nova.run.ledger.total("up") - fedavg.run.ledger.total("up") == 4 * 3 * 3
        assert nova.run.ledger.total("down") == fedavg.run.ledger.total("down")
    unequal = {"local": {**PLAIN, "batch_size": 10}, "dataset": ragged(), **RAGGED}
    pair = play_toy("fednova", **unequal), play_toy("fedavg", **unequal)
    assert (pair[0].personal - pair[1].personal).abs().max() > 1e-4


def test_fednova_with_a_proximal_term_trains_as_fedprox(play_toy: Play) -> None:
    more = {"local": PLAIN, "rounds": 1}
    uploads: list[Any] = []
    for name, rule in (("fednova", FedNova(mu=0.5)), ("fedprox", FedProx(mu=0.5))):
        play_toy(composition((name, rule), ("watch", watching(uploads))), **more)
    torch.testing.assert_close(uploads[0].params, uploads[1].params)


def test_buffers_take_no_part_in_server_steps(play_toy: Play) -> None:
    def net() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 4)
        )

    plain = play_toy("fedavg", net=net, rounds=1, local=PLAIN)
    size = plain.run.context.layout.parameters
    for name in ("fedavgm", "fednova"):
        played = play_toy(name, net=net, rounds=1, local=PLAIN)
        assert torch.equal(played.state.models[:, size:], plain.state.models[:, size:])


# --- compositions -------------------------------------------------------------------------------

LIA = {"warmup": 1, "probe_epochs": 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavgm", "fedprox", "scaffold", "fednova"])
def test_with_one_group_oracle_and_a_method_is_the_method(play_toy: Play, name: str) -> None:
    one = {"partition": {"name": "label-groups", "groups": 1}, "local": PLAIN}
    both = play_toy(f"oracle+{name}", settings={"warmup": 1}, **one)
    close(both, play_toy(name, **one), atol=1e-5)
    assert not both.said


@pytest.mark.slow
def test_pfedlia_with_fedprox_of_no_pull_is_pfedlia(play_toy: Play) -> None:
    both = play_toy("pfedlia+fedprox", settings={**LIA, "mu": 0})
    alone = play_toy("pfedlia", settings=LIA)
    assert bool(both.state.memory["pfedlia.influence"].any()), "the probe took place"
    assert torch.equal(both.personal, alone.personal)
    assert both.run.history.last == alone.run.history.last


@pytest.mark.slow
def test_a_probe_trains_the_plain_loss(play_toy: Play) -> None:
    strong = play_toy("pfedlia+fedprox", settings={**LIA, "mu": 50})
    again = play_toy("pfedlia+fedprox", settings={**LIA, "mu": 50, "probe_epochs": 0})
    influence = strong.state.memory["pfedlia.influence"]
    assert influence.abs().max() > 0.01, "a pull of 50 would hold the partial models at the start"
    assert not again.state.memory["pfedlia.influence"].any()


@pytest.mark.slow
def test_every_group_keeps_a_momentum_of_its_own(play_toy: Play) -> None:
    played = play_toy("oracle+fedavgm", settings={"warmup": 1}, participation=1.0)
    momentum = played.state.memory["fedavgm.momentum"]
    assert momentum.shape == (2, played.run.context.layout.parameters)
    assert not torch.equal(momentum[0], momentum[1])
    alone = play_toy("local-only+fedavgm")
    assert len(alone.state.memory["fedavgm.momentum"]) == CLIENTS, "one per row from the start"
    lia = play_toy("pfedlia+fedavgm", settings=LIA)
    assert len(lia.state.memory["fedavgm.momentum"]) == len(lia.state.models)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pfedlia+scaffold", "oracle+scaffold"])
def test_every_group_has_a_variate_of_its_own(play_toy: Play, name: str) -> None:
    starts: list[Any] = []

    @dataclass(frozen=True)
    class Watch:
        @fl.hookimpl
        def local_term(self) -> Any:
            def term(module: fl.ClientModule) -> torch.Tensor:
                starts.append(module.received["c"].clone())
                return torch.zeros(())

            return term

    settings = {"warmup": 1} if name.startswith("oracle") else LIA
    method = compose(name, settings)
    method = replace(method, layers=(*method.layers, ("watch", Watch())))
    played = play_toy(method, local=PLAIN, participation=1.0)
    assert bool(played.state.memory["scaffold.c_i"].any())
    p = played.run.context.layout.parameters
    stages = 3 if name.startswith("oracle") else 4  # a probe is trained with its variate, too
    assert played.run.ledger.totals["down"]["c"] == 4 * stages * CLIENTS * p
    assert played.run.ledger.totals["up"]["c_change"] == 4 * 3 * CLIENTS * p
    if name.startswith("oracle"):
        last = torch.stack(starts[-CLIENTS * 4 :]).unique(dim=0)
        assert len(last) == 2, "two groups, two variates"


@pytest.mark.slow
def test_what_is_not_defined_is_refused_with_a_reason(play_toy: Play) -> None:
    adam = {**PLAIN, "optimizer": "adam"}
    for name in ("scaffold", "fednova"):
        with pytest.raises(UserError, match=mention(name, "SGD")):
            play_toy(name, local=adam)
        peer = {**LIA, "mode": "peer"}
        with pytest.raises(UserError, match="needs disjoint groups"):
            play_toy(f"pfedlia+{name}", settings=peer, local=PLAIN)
    with pytest.raises(UserError, match=r"mu > 0 needs local\.momentum=0"):
        play_toy("fednova", settings={"mu": 0.1})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavgm", "fedprox", "scaffold", "fednova"])
def test_executors_agree(play_toy: Play, name: str) -> None:
    pair = [play_toy(name, executor=e, local=PLAIN) for e in ("sequential", "vectorised")]
    close(*pair, atol=1e-5)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
