"""What a method may lean on while a run goes: layers, heads, phases, logits, further models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mentions import mention, mentions
from torch import Tensor, nn
from toy import CLIENTS, WIDTH, Play, bad, composition, refused, toy_dataset, watching

import flbench as fl
from flbench.core.networks import head_of
from flbench.engine import cross_evaluation, model_evaluation
from flbench.models import lenet5
from flbench.run.history import History
from flbench.run.rounds import Run

EXECUTORS = ("sequential", "vectorised")


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


# --- layers and heads -------------------------------------------------------------------------


def test_layers_take_their_buffers_along() -> None:
    layout = fl.ParameterLayout.of(normed())
    places = [mask.nonzero()[:, 0].tolist() for mask in layout.layers]
    assert places == [[*range(16)], [*range(16, 24), *range(44, 53)], [*range(24, 44)]]
    assert layout.layers.dtype == torch.bool
    assert torch.equal(layout.layers.sum(dim=0), torch.ones(53, dtype=torch.int64))


def test_layers_of_a_network_come_in_order() -> None:
    layout = fl.ParameterLayout.of(lenet5.build((1, 28, 28), 10))
    sizes = layout.layers.sum(dim=1).tolist()
    assert sizes == [156, 2_416, 30_840, 10_164, 850]
    bare = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 1))
    assert fl.ParameterLayout.of(bare).layers.tolist() == [[True] * 3 + [False] * 5]


def test_flags_of_layers_become_masks_of_scalars() -> None:
    layout = fl.ParameterLayout.of(normed())
    flags = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    masks = layout.of_layers(flags)
    assert masks.dtype == torch.bool
    assert torch.equal(masks[0], layout.layers[0] | layout.layers[2])
    assert torch.equal(masks[1], layout.none_mask)
    assert torch.equal(masks[2], layout.all_mask)


class Sub(nn.Linear):
    """Looks like a linear layer, and is none of the plain ones."""


@pytest.mark.parametrize(
    ("net", "head"),
    [
        (normed(), "3"),
        (lenet5.build((1, 28, 28), 10), "head"),
        (nn.Linear(2, 2), ""),
        (nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU())), "1.0"),
        (nn.Sequential(nn.Linear(2, 2), Sub(2, 2)), "0"),
        (nn.Conv2d(1, 1, 1), None),
    ],
    ids=["sequence", "lenet5", "itself", "nested", "subclass", "none"],
)
def test_the_head_is_the_last_plain_linear_layer(net: nn.Module, head: str | None) -> None:
    assert head_of(net) == head == fl.ParameterLayout.of(net).head_name


def test_features_are_what_enters_the_head() -> None:
    module = fl.ClientModule(normed(), fl.LocalTraining())
    module.psi = nn.Linear(4, 2)  # a further head of the method's own is not the network's
    x = torch.randn(5, 3)
    z, logits = module.features(x)
    body = module.net[:3]
    module.net[1].momentum = 0.0
    assert torch.equal(z, body(x))
    assert torch.equal(logits, module.net[3](z))
    z.sum().backward()
    assert module.net[0].weight.grad is not None, "a loss may use them"
    assert not module.net[3]._forward_pre_hooks


def test_features_leave_nothing_behind_when_the_network_fails() -> None:
    module = fl.ClientModule(normed(), fl.LocalTraining())
    with pytest.raises(RuntimeError):
        module.features(torch.zeros(5, 7))
    assert not module.net[3]._forward_pre_hooks
    headless = fl.ClientModule(nn.Conv2d(1, 1, 1), fl.LocalTraining())
    with pytest.raises(fl.Undefined, match=mention("nn.Linear", "network")):
        headless.features(torch.zeros(1, 1, 1, 1))


# --- phases -----------------------------------------------------------------------------------


class Paired(fl.ClientModule):
    """Two batches a step in phases that say so; the class says `usual`."""

    plan: tuple[int | None, ...] = (2, None)

    def phases(self, epochs: int) -> Sequence[fl.LocalPhase]:
        return [fl.LocalPhase(epochs, batches_per_step=count) for count in self.plan]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        pairs = batch if isinstance(batch[0], tuple) else (batch,)
        losses = [super(Paired, self).training_step(pair, batch_idx) for pair in pairs]
        return torch.stack(losses).sum() * len(pairs)

    def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"moved": (self.flat() - self.start[:WIDTH]).norm()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("usual", "plan", "steps"),
    [(1, (2, None), 6), (2, (None, 1), 6), (2, (None, None), 4), (1, (None, 3), 4), (3, (2, 2), 4)],
)
def test_a_phase_may_say_how_many_batches_a_step_takes(
    play_toy: Play, usual: int, plan: tuple[int | None, ...], steps: int
) -> None:
    """Seven samples in batches of four: two batches an epoch, two epochs a phase."""
    kind = type("Kind", (Paired,), {"plan": plan, "batches_per_step": usual})
    found = []
    for executor in EXECUTORS:
        uploads: list[Any] = []
        method = bad(client_module=lambda self, net, ctx: kind(net, ctx.local)).layers
        method = composition(*method, ("watch", watching(uploads)))
        played = play_toy(method, executor=executor, rounds=1)
        assert played.said == [], "nothing fell back to one by one"
        assert uploads[0].samples.tolist() == [7, 7, 7]
        assert uploads[0].steps.tolist() == [steps] * 3
        found.append(uploads[0])
    torch.testing.assert_close(found[0].params, found[1].params, rtol=0, atol=2e-6)
    torch.testing.assert_close(found[0].loss, found[1].loss, rtol=0, atol=1e-5)
    moved = [upload.extras["moved"] for upload in found]
    torch.testing.assert_close(*moved, rtol=0, atol=1e-5)
    assert moved[0].min() > 0


# --- logits and features of many models -------------------------------------------------------


def different(run: Run, count: int) -> Tensor:
    """Models around the initial one, with statistics of their own."""
    generator = torch.Generator().manual_seed(0)
    rows = run.context.initial + 0.3 * torch.randn(
        count, run.context.layout.width, generator=generator
    )
    for slot in run.context.layout.slots:
        if slot.name.endswith("running_var"):
            rows[:, slot.start : slot.stop] = rows[:, slot.start : slot.stop].abs() + 0.5
        if slot.kind == "counter":
            rows[:, slot.start : slot.stop] = torch.arange(count)[:, None].float()
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("net", [None, normed], ids=["mlp", "batchnorm"])
def test_models_answer_together_as_they_do_alone(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch, net: Any
) -> None:
    played = play_toy("fedavg", net=net, rounds=1)
    run, ctx = played.run, played.run.context
    rows, x = different(run, 7), torch.randn(11, 3)
    module = run.executor.workspace.module
    module.train()  # as it is left after training
    features = ctx.features(rows, x)
    module.train()
    whole = ctx.logits(rows, x)
    assert whole.shape == (7, 11, 4)
    monkeypatch.setattr(cross_evaluation, "MODELS", 3)
    monkeypatch.setattr(model_evaluation, "CHUNK", 4)
    cut = zip(ctx.logits(rows, x), ctx.features(rows, x), strict=True)
    for row, together, entered, in_parts in zip(rows, whole, features, cut, strict=True):
        ctx.layout.load(module, row)
        module.eval()
        with torch.no_grad():
            z, alone = module.features(x)
        for said in (together, in_parts[0], ctx.logits(row[None], x)[0]):
            torch.testing.assert_close(said, alone, rtol=0, atol=1e-6)
        for said in (entered, in_parts[1]):
            torch.testing.assert_close(said, z, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_asking_models_changes_none_and_uses_their_own_prediction(play_toy: Play) -> None:
    class Doubled(fl.ClientModule):
        def predict(self, x: Tensor) -> Tensor:
            return 2 * self(x)

    seen: dict[str, Any] = {}

    def score(self: Any, state: Any, ctx: Any) -> None:
        rows, x = different(SimpleNamespace(context=ctx), 3), ctx.client_data(0)[0]
        before = rows.clone()
        seen["said"], seen["features"] = ctx.logits(rows, x), ctx.features(rows, x)
        assert torch.equal(rows, before)
        head = torch.stack([ctx.layout.unflatten(row)["net.3.weight"] for row in rows])
        bias = torch.stack([ctx.layout.unflatten(row)["net.3.bias"] for row in rows])
        seen["again"] = 2 * (seen["features"] @ head.transpose(1, 2) + bias[:, None])

    def client_module(self: Any, net: Any, ctx: Any) -> Any:
        return Doubled(net, ctx.local)

    asked = play_toy(bad(score=score, client_module=client_module), net=normed, rounds=1)
    plain = play_toy(bad(client_module=client_module), net=normed, rounds=1)
    torch.testing.assert_close(seen["said"], seen["again"], rtol=0, atol=1e-5)
    assert torch.equal(asked.state.models, plain.state.models)


# --- one model per client ---------------------------------------------------------------------


def test_own_rows_give_every_client_a_row_and_keep_memories(play_toy: Play) -> None:
    def setup(self: Any, ctx: Any) -> fl.Setup:
        return fl.one_model_per_client(ctx, {"bad.kept": fl.Memory(torch.ones(CLIENTS), "client")})

    played = play_toy(bad(setup=setup), rounds=1)
    models, initial = played.state.models, played.run.context.initial.clone()
    assert models.shape == (CLIENTS, WIDTH)
    assert sum(not torch.equal(row, initial) for row in models) == 3, "the cohort alone moved"
    assert played.state.membership.home.tolist() == [*range(CLIENTS)]
    assert played.state.memory["bad.kept"].tolist() == [1.0] * CLIENTS
    first = fl.one_model_per_client(played.run.context)
    assert first.memory == {}
    first.models[0] += 1
    assert torch.equal(first.models[1], initial), "rows share no memory"
    assert torch.equal(played.run.context.initial, initial)


def test_same_group_by_hand() -> None:
    assert fl.same_group(torch.tensor([4, 0, 4])).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]


# --- further models that are judged -----------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """FedAvg, judged by the named model; the others beside it."""

    main: str = "home"
    others: tuple[str, ...] = ()

    def model(self, name: str, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        home = state.membership.home[clients]
        if name == "initial":
            return fl.Personal(params=ctx.initial.expand(len(clients), -1).clone())
        if name == "tuned":
            return fl.Personal(row=home, adaptation=fl.Stage("train", clients, 3, "tune"))
        if name == "told":
            label = clients % 4
            return fl.Personal(row=home, extras={"label": label}, predictor=says_what_it_is_told)
        return fl.Personal(row=home)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        found = {n: self.model(n, state, clients, ctx) for n in self.others}
        return replace(self.model(self.main, state, clients, ctx), others=found)


def says_what_it_is_told(module: fl.ClientModule, x: Tensor) -> Tensor:
    return nn.functional.one_hot(module.received["label"], 4).float().expand(len(x), -1)


def curves(play_toy: Play, main: str, *others: str, **changes: Any) -> dict[str, Any]:
    """On clients with five or four test samples: the mean over clients is not that over samples."""
    ragged = {"dataset": toy_dataset(samples=111), "partition": {"name": "iid"}, **changes}
    return play_toy(composition(("judged", Judged(main, others))), **ragged).run.history.curves


@pytest.mark.slow
def test_further_models_are_judged_as_if_they_were_the_model(play_toy: Play) -> None:
    names = ("initial", "tuned", "told")
    found, plain = curves(play_toy, "home", *names), curves(play_toy, "home")
    assert set(found) - set(plain) == {f"accuracy_{name}" for name in names}
    for name in names:
        assert found[f"accuracy_{name}"] == curves(play_toy, name)["accuracy"]
        assert found[f"accuracy_{name}"] != found["accuracy"]
    assert len(set(found["accuracy_initial"])) == 1
    assert {name: curve for name, curve in found.items() if name in plain} == plain


@pytest.mark.slow
def test_further_models_are_judged_when_the_model_is(play_toy: Play) -> None:
    found = curves(play_toy, "tuned", "home", rounds=4, eval_every=3)
    assert [value is None for value in found["accuracy_home"]] == [True, True, False, False]
    played = play_toy(composition(("judged", Judged("home", ("told",)))), rounds=2)
    assert played.result.curves["accuracy_told"] == played.run.history.curves["accuracy_told"]
    last = played.run.history.last
    assert last is not None
    assert last.others == {"told": played.result.curves["accuracy_told"][-1]}
    assert "accuracy_told" not in played.result.summary


def test_curves_of_late_names_are_padded() -> None:
    history = History()
    history.add_round({"a": 1.0}, None)
    history.add_round({"a": 2.0, "late": 7.0}, None)
    history.add_round({"late": None, "last": 0.0}, None)
    history.add_round({}, None)
    assert history.curves == {
        "a": [1.0, 2.0, None, None],
        "late": [None, 7.0, None, None],
        "last": [None, None, 0.0, None],
    }
    again = History.of(history.plain())
    again.add_round({"new": 5.0}, None)
    assert again.curves["new"] == [None] * 4 + [5.0]
    assert {len(curve) for curve in again.curves.values()} == {5}


def test_a_model_that_is_judged_late_has_a_curve_as_long_as_the_others(play_toy: Play) -> None:
    def personalise(self: Any, state: Any, clients: Any, ctx: Any) -> fl.Personal:
        late = {"late": fl.Personal(row=0 * clients)} if ctx.round == 3 else {}
        return fl.Personal(row=0 * clients, others=late)

    found = play_toy(bad(personalise=personalise), rounds=4).result.curves
    assert [value is None for value in found["accuracy_late"]] == [True, True, False, True]
    assert {len(curve) for curve in found.values()} == {4}
    assert found["accuracy_late"][2] == found["accuracy"][2]


def test_samples_are_there_before_the_client_module(play_toy: Play) -> None:
    seen: list[Any] = []

    def client_module(self: Any, net: Any, ctx: Any) -> Any:
        seen.extend([ctx.server_data(), ctx.client_data(2, "validation")])
        return fl.ClientModule(net, ctx.local)

    def plan(self: Any, ctx: Any) -> None:
        seen.extend([ctx.server_data(), ctx.client_data(2, "validation")])

    play_toy(bad(client_module=client_module, plan=plan), rounds=1, server_samples=8)
    assert len(seen[0][1]) > 0
    for early, late in zip(seen[:2], seen[2:], strict=True):
        assert all(map(torch.equal, early, late))
    said = refused(play_toy, bad(client_module=lambda self, net, ctx: ctx.server_data()))
    assert mentions(said, "server_samples", "samples")


def test_models_cannot_be_evaluated_before_they_are_known(play_toy: Play) -> None:
    early = bad(client_module=lambda self, net, ctx: ctx.fresh_initial(1))
    assert mentions(refused(play_toy, early), "setup", "client_module")
    row = torch.zeros(1, WIDTH)
    early = bad(client_module=lambda self, net, ctx: ctx.logits(row, torch.zeros(1, 3)))
    assert mentions(refused(play_toy, early), "setup", "client_module")


def test_a_network_without_a_head_has_no_features(play_toy: Play) -> None:
    def plan(self: Any, ctx: Any) -> None:
        ctx.features(ctx.initial[None], torch.zeros(1, 3))

    with pytest.raises(fl.Undefined, match=mention("nn.Linear", "network")):
        play_toy(bad(plan=plan), net=Headless)


class Headless(nn.Module):
    """Logits without a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_network_of_frozen_weights_has_no_other_initial_ones(play_toy: Play) -> None:
    def client_module(self: Any, net: nn.Module, ctx: Any) -> Any:
        module = fl.ClientModule(net.requires_grad_(False), ctx.local)
        module.own = nn.Linear(1, 1)
        return module

    def setup(self: Any, ctx: Any) -> None:
        ctx.fresh_initial(1)

    said = refused(play_toy, bad(client_module=client_module, setup=setup))
    assert mentions(said, "weights", "network")
