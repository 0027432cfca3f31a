"""Per-FedAvg: gradients by hand, then meta-steps in a run, then what clients are judged by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mentions import mention, mentioning
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call
from toy import CLIENTS, Play, Played, composition, plain_work, toy_dataset, watching

import flbench as fl
from flbench.engine.batches import orders
from flbench.run.evaluation import adapted_models
from flbench.run.rounds import round_context
from flbench_plugins.per_fedavg import MetaStep, PerFedAvg

VERSIONS = ["fo", "hf", "exact"]
EXECUTORS = ["sequential", "vectorised"]
SMALL = {"epochs": 2, "batch_size": 2, "lr": 0.1, "momentum": 0.5, "weight_decay": 1e-2}
RAGGED = {"partition": {"name": "iid"}, "participation": 1.0, "dataset": toy_dataset(samples=105)}


class Quadratic(MetaStep):
    """Loss 1/2 a u^2, where a is the mean of the batch's inputs."""

    def value(self, weights: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        return torch.stack([batch[0].mean() / 2 * u.square().sum() for u in weights.values()]).sum()


def stepping(
    net: nn.Module, version: str, alpha: float, kind: Any = MetaStep, local: Any = None, **more: Any
) -> Any:
    module = kind(net, local or fl.LocalTraining())
    module.method, module.alpha = PerFedAvg(version=version, **more), alpha
    return module.train()


def gradient(module: MetaStep, batches: Any) -> tuple[Tensor, float]:
    """Of one meta-step on as many of the batches as it takes: gradient and loss."""
    loss = module.training_step(tuple(batches[: module.batches_per_step]), 0)
    loss.backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters()]), float(loss.detach())


def curvatures(*values: float) -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple((torch.full((2, 1), a, dtype=torch.float64), torch.zeros(2)) for a in values)


def scalar(u: float) -> nn.Module:
    net = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(net.weight, u)
    return net


def smooth() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A network with curvature everywhere, and batches, in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        data = [(torch.randn(5, 3).double(), torch.randint(0, 3, (5,))) for _ in range(3)]
    return net, data


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


# --- one meta-step ------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-3, 0.1, 5.0])
@pytest.mark.parametrize(("version", "same", "own"), [("fo", 4.8, 3.6), ("hf", 3.84, 2.52),
                                                      ("exact", 3.84, 2.52)])  # fmt: skip
def test_meta_gradients_of_a_parabola(
    version: str, same: float, own: float, delta: float
) -> None:  # T07
    # a = 2, u = 3, alpha = .1: a (1 - .2) u and a (1 - .2)^2 u
    module = stepping(scalar(3.0), version, 0.1, Quadratic, delta=delta)
    found, loss = gradient(module, curvatures(2, 2, 2))
    assert found.tolist() == pytest.approx([same])
    assert loss == pytest.approx(2.4**2)  # the query's, at u' = 2.4
    # a = 1 in A, 2 in Q, 3 in H: u' = 2 - .1 * 2 = 1.8, g = 2 * 1.8, minus .1 * 3 g
    module = stepping(scalar(2.0), version, 0.1, Quadratic, delta=delta)
    found, loss = gradient(module, curvatures(1, 2, 3))
    assert found.tolist() == pytest.approx([own])
    assert loss == pytest.approx(1.8**2)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_an_adapting_step_it_is_the_gradient_of_the_query(version: str) -> None:  # T07
    found, loss = gradient(stepping(smooth()[0], version, 0.0), smooth()[1])
    plain = fl.ClientModule(smooth()[0], fl.LocalTraining())
    expected = plain.training_step(smooth()[1][1], 0)
    expected.backward()
    assert torch.equal(found, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]))
    assert loss == expected.item()


def by_definition(net: nn.Module, data: list[Any], alpha: float) -> tuple[Tensor, Tensor]:
    """First-order and exact meta-gradient, from `torch.autograd` alone."""
    layout, u = fl.ParameterLayout.of(net), nn.utils.parameters_to_vector(net.parameters()).detach()

    def loss(batch: tuple[Tensor, Tensor]) -> Any:
        x, y = batch
        return lambda row: F.cross_entropy(functional_call(net, layout.unflatten(row), (x,)), y)

    g = jacobian(loss(data[1]), u - alpha * jacobian(loss(data[0]), u))
    return g, g - alpha * hessian(loss(data[2]), u) @ g


def test_meta_gradients_of_a_network_are_those_of_the_definition() -> None:
    net, data = smooth()
    first_order, exact = by_definition(net, data, 0.7)
    found = {v: gradient(stepping(smooth()[0], v, 0.7), data)[0] for v in VERSIONS}
    torch.testing.assert_close(found["fo"], first_order)
    torch.testing.assert_close(found["exact"], exact)
    assert (exact - first_order).abs().max() > 1e-2, "curvature makes a difference"
    torch.testing.assert_close(found["hf"], exact, rtol=0, atol=1e-6)


def test_finite_differences_approach_the_hessian_quadratically() -> None:  # T07
    net, data = smooth()
    g, exact = by_definition(net, data, 0.7)

    def found(**more: Any) -> Tensor:
        return gradient(stepping(smooth()[0], "hf", 0.7, **more), data)[0]

    errors = [float((found(delta=delta) - exact).norm()) for delta in (0.4, 0.2, 0.1)]
    assert errors[0] > 1e-5
    assert errors[0] / errors[1] == pytest.approx(4, abs=0.4)
    assert errors[1] / errors[2] == pytest.approx(4, abs=0.4)
    scaled, same = found(delta=0.4, scale_delta=True), found(delta=0.4 / float(g.norm()))
    torch.testing.assert_close(scaled, same, rtol=1e-5, atol=1e-7)
    assert (scaled - found(delta=0.4)).abs().max() > 1e-6, "the gradient's norm is not 1"


@pytest.mark.parametrize("version", VERSIONS)
def test_passes_that_only_look_do_not_touch_batchnorm(version: str) -> None:
    net, (_, data) = batchnorm(), smooth()
    data = [(x.float(), y) for x, y in data]
    before = net[0](data[1][0]).detach()
    gradient(stepping(net, version, 0.5), data)
    torch.testing.assert_close(net[1].running_mean, 0.1 * before.mean(dim=0))
    torch.testing.assert_close(net[1].running_var, 0.9 + 0.1 * before.var(dim=0))
    assert net[1].num_batches_tracked == 1, "one update, by the query, at the model itself"


# --- meta-steps in a run ------------------------------------------------------------------------


class Parabola(Quadratic):
    """The same with a = 2 whatever the batch."""

    def value(self, weights: Any, batch: Any) -> Tensor:
        return super().value(weights, (torch.full_like(batch[0], 2.0), batch[1]))


@dataclass(frozen=True)
class OnParabola(PerFedAvg):
    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        module = super().client_module(net, ctx)
        return stepping(net, self.version, module.alpha, Parabola, module.local)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("version", "steps", "factor"), [("fo", 4, 2 * 0.4), ("hf", 2, 2 * 0.16), ("exact", 2, 0.32)]
)
def test_a_run_takes_the_meta_steps_of_a_parabola(
    play_toy: Play, version: str, steps: int, factor: float, executor: str
) -> None:  # T07
    # a = 2, alpha = .3, beta = .05: 7 samples are 4 batches of 2, so 2 or 1 steps an epoch
    uploads: list[Any] = []
    rule = OnParabola(version=version, alpha=0.3, beta=0.05)
    method = composition(("per-fedavg", rule), ("watch", watching(uploads)))
    local = {"epochs": 2, "batch_size": 2, "lr": 0.1}
    played = play_toy(method, rounds=1, local=local, executor=executor)
    assert uploads[0].steps.tolist() == [steps] * 3
    shrunk = played.run.context.initial * (1 - 0.05 * factor) ** steps
    torch.testing.assert_close(played.state.models[0], shrunk, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_without_an_adapting_step_a_run_is_sgd_at_rate_beta(
    play_toy: Play, version: str
) -> None:  # T07
    class Second(fl.ClientModule):
        batches_per_step = 2 if version == "fo" else 3

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch[1], batch_idx)

    @dataclass(frozen=True)
    class Plain:
        @fl.hookimpl
        def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
            return Second(net, replace(ctx.local, lr=0.05))

    settings = {"version": version, "alpha": 0, "beta": 0.05}
    meta = play_toy("per-fedavg", settings=settings, local=SMALL)
    plain = play_toy(composition(("plain", Plain())), local=SMALL)
    assert not torch.equal(plain.state.models[0], plain.run.context.initial)
    torch.testing.assert_close(meta.state.models, plain.state.models, rtol=0, atol=1e-6)
    curves = meta.run.history.curves
    assert curves["accuracy"] == curves["accuracy_meta"] == plain.run.history.curves["accuracy"]
    assert curves["loss"] == pytest.approx(plain.run.history.curves["loss"], abs=1e-5)


@pytest.mark.slow
def test_clients_count_alike_and_cost_what_fedavg_costs(play_toy: Play) -> None:
    uploads: list[Any] = []
    method = composition(("per-fedavg", PerFedAvg()), ("watch", watching(uploads)))
    played = play_toy(method, rounds=1, **RAGGED)
    assert len(set(uploads[0].samples.tolist())) > 1
    mean = uploads[0].selected().double().mean(dim=0).float()
    torch.testing.assert_close(played.state.models[0], mean, rtol=0, atol=1e-7)
    spent = [play_toy(n, local=SMALL).run.ledger.totals for n in ("per-fedavg", "fedavg")]
    assert spent[0] == spent[1]


@pytest.mark.slow
def test_rates_that_are_not_given_are_the_suites(play_toy: Play) -> None:
    rates = {}, {"alpha": 0.1, "beta": 0.1}, {"alpha": 0.1, "beta": 0.2}
    default, given, other = (play_toy("per-fedavg", settings=settings) for settings in rates)
    assert default.run.history.last == given.run.history.last
    assert not torch.equal(default.personal, other.personal)


@pytest.mark.slow
@pytest.mark.parametrize("net", [None, batchnorm])
@pytest.mark.parametrize(
    "settings", [{}, {"version": "hf", "delta": 0.1}, {"version": "exact"}, {"adapt": "epochs"}]
)
def test_executors_agree(play_toy: Play, settings: dict[str, Any], net: Any) -> None:
    more = {"settings": settings, "net": net, **RAGGED}
    local = {"epochs": 2, "batch_size": 3, "lr": 0.05, "momentum": 0.5}
    pair = [play_toy("per-fedavg", executor=e, local=local, rounds=2, **more) for e in EXECUTORS]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-5)
    torch.testing.assert_close(adapted(pair[0]), adapted(pair[1]), rtol=0, atol=1e-5)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
    assert pair[0].run.history.last.correct == pair[1].run.history.last.correct


# --- what a client is judged by -----------------------------------------------------------------


def asked(played: Played) -> fl.Personal:
    ctx = round_context(played.run, played.state.round)
    return played.run.hooks.personalise(played.state, ctx.everybody, ctx)


def adapted(played: Played) -> Tensor:
    """The copies that clients are judged by, shape (N, W)."""
    personal = asked(played)
    return adapted_models(
        played.run.executor, personal, played.state, personal.adaptation, plain_work
    ).params


def by_hand(played: Played, client: int, alpha: float, momentum: float) -> Tensor:
    """Epochs of SGD on the keyed samples; momentum begins anew with every epoch."""
    run, stage, w = played.run, asked(played).adaptation, played.personal[client]
    pool, rows = run.executor.samples, run.executor.owned(client, stage)

    def loss(row: Tensor, batch: Tensor) -> Tensor:
        weights = run.context.layout.unflatten(row)
        logits = functional_call(run.executor.workspace.module, weights, (pool.x[batch],))
        return F.cross_entropy(logits, pool.y[batch])

    for epoch in range(stage.epochs):
        velocity = torch.zeros_like(w)
        (order,) = orders(len(rows), 1, run.seed, played.state.round, client, "adapt", epoch)
        for batch in rows[order].split(4):
            velocity = momentum * velocity + torch.func.grad(loss)(w, batch)
            w = w - alpha * velocity
    return w


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("adapt", ["steps", "epochs"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_client_adapts_by_plain_steps_of_size_alpha(
    play_toy: Play, count: int, adapt: str, executor: str
) -> None:
    settings = {"alpha": 0.3, "beta": 0.02, "adapt": adapt, f"adapt_{adapt}": count}
    local = {"epochs": 1, "batch_size": 4, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    played = play_toy("per-fedavg", settings=settings, local=local, executor=executor)
    before, stage = played.state.models.clone(), asked(played).adaptation
    found = adapted(played)
    assert torch.equal(played.state.models, before), "it is a copy that adapts"
    keyed = [played.run.executor.owned(client, stage) for client in range(CLIENTS)]
    assert {len(rows) for rows in keyed} == {4 if adapt == "steps" else 7}
    for client in range(CLIENTS):
        by = by_hand(played, client, alpha=0.3, momentum=0.9)
        torch.testing.assert_close(found[client], by, rtol=0, atol=1e-6)
        assert torch.equal(found[client], played.personal[client]) is (count == 0)


@pytest.mark.slow
def test_judging_leaves_no_trace(play_toy: Play) -> None:
    often, once = (play_toy("per-fedavg", eval_every=every, net=batchnorm) for every in (1, 3))
    assert torch.equal(often.state.models, once.state.models)
    assert often.run.history.last == once.run.history.last
    assert not torch.equal(adapted(once), once.personal), "they did adapt"


@pytest.mark.slow
def test_the_model_itself_is_judged_beside_its_copies(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Judge:
        @fl.hookimpl
        def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
            return fl.Personal(row=state.membership.home[clients])

    meta = play_toy("per-fedavg", settings={"adapt_steps": 5}).run.history.curves
    itself = play_toy(composition(("per-fedavg", PerFedAvg()), ("judge", Judge())))
    assert meta["accuracy_meta"] == itself.run.history.curves["accuracy"]
    assert meta["accuracy"] != meta["accuracy_meta"]
    assert meta["loss"][-1] < itself.run.history.curves["loss"][-1], "adapting helps"


@pytest.mark.slow
def test_newcomers_adapt_too(play_toy: Play) -> None:
    more = {"unseen": 0.34, "partition": {"name": "iid"}, "unseen_epochs": 4}
    settings = {"adapt_steps": 0}, {"adapt_steps": 9, "alpha": 0.3}
    stiff, apt = (play_toy("per-fedavg", settings=s, **more).result.unseen for s in settings)
    assert len(stiff.correct) == len(apt.correct_tuned) == 2
    assert sum(apt.correct) > sum(stiff.correct)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "fits", "batches"), [("fo", 6, 2), ("hf", 3, 3)])
def test_data_without_batches_enough_and_adam_are_refused(
    play_toy: Play, version: str, fits: int, batches: int
) -> None:
    more = {"settings": {"version": version}, "rounds": 1}  # 7 samples a client
    assert not play_toy("per-fedavg", local={"batch_size": fits}, **more).said
    expected = f"takes {batches} batches and no client has more than 7 samples: lower local.batch"
    with pytest.raises(fl.Undefined, match=expected):
        play_toy("per-fedavg", local={"batch_size": fits + 1}, **more)
    with pytest.raises(fl.Undefined, match=mention("SGD", "defined")):
        play_toy("per-fedavg", local={"optimizer": "adam"}, **more)


def test_clients_with_too_few_batches_stand_still_and_the_run_says_so(play_toy: Play) -> None:
    uploads: list[Any] = []
    method = composition(("per-fedavg", PerFedAvg()), ("watch", watching(uploads)))
    played = play_toy(method, rounds=1, local={"batch_size": 10, "lr": 0.1}, **RAGGED)
    told = mentioning("per-fedavg", "3 clients", "2 batches")
    assert told in played.said
    moved = (uploads[0].selected() != played.run.context.initial).any(dim=1)
    assert moved.tolist() == [True] * 3 + [False] * 3
    assert (adapted(played) != played.personal).any(dim=1).all(), "one batch is enough to adapt"


def test_batches_that_are_left_out_are_not_counted() -> None:
    """Clients of 7 and 9 samples in batches of 4 have one and two without the last one."""
    said: list[str] = []
    ctx: Any = SimpleNamespace(clients=2, samples=torch.tensor([7, 9]), warn=said.append)
    for drop in (False, True):
        ctx.local = fl.LocalTraining(batch_size=4, drop_last=drop)
        PerFedAvg().setup(ctx)
        assert len(said) == drop
    assert said == [mentioning("per-fedavg", "1 clients", "2 batches")]
    ctx.samples = torch.tensor([7, 7])
    with pytest.raises(fl.Undefined, match=mention("7 samples", "client")):
        PerFedAvg().setup(ctx)
