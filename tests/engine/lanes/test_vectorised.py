"""The vectorised executor ends where the sequential one does (same State, one round at a time)."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from mentions import mentioning
from torch import Tensor, nn
from toy import Play, composition, toy_dataset, watching

from flbench import ClientModule, LocalPhase, LocalTraining, Stage, Start, hookimpl
from flbench.core.dataset import Dataset
from flbench.engine.dropout import LaneDropout, replace_dropout
from flbench.engine.lanes import optimizer as lane_optimizer
from flbench.engine.lanes import training as lane_training
from flbench.engine.lanes.lanes import Lanes, Place, StageJob
from flbench.engine.lanes.vectorised import Vectorised
from flbench.engine.options import EngineOptions
from flbench.errors import UserError

TOLERANCE = {"rtol": 0.0, "atol": 2e-6}


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


def both(play_toy: Play, make: Any, **changes: Any) -> list[Any]:
    """The first uploads of both executors, from the same State."""
    kept: list[list[Any]] = []
    for executor in ("sequential", "vectorised"):
        uploads: list[Any] = []

        method = composition(("method", make()), ("watch", watching(uploads)))
        played = play_toy(method, executor=executor, rounds=1, **changes)
        if executor == "vectorised":
            assert isinstance(played.run.executor, Vectorised)
            assert played.run.executor.reason is None
            assert not played.said
        kept.append(uploads)
    return [uploads[0] for uploads in kept]


def agree(one: Any, other: Any) -> None:
    torch.testing.assert_close(one.params, other.params, **TOLERANCE)
    for name in ("loss", "loss_start", "loss_end"):
        pair = getattr(one, name), getattr(other, name)
        torch.testing.assert_close(*pair, rtol=0, atol=1e-5, equal_nan=True)
    for name in ("ids", "samples", "steps", "chosen", "active"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert one.extras.keys() == other.extras.keys()
    for name, value in one.extras.items():
        torch.testing.assert_close(value, other.extras[name], **TOLERANCE)


@dataclass(frozen=True)
class Plain:
    pass


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_ragged_clients_agree(play_toy: Play, optimizer: str) -> None:
    local = {"epochs": 3, "batch_size": 4, "lr": 0.05, "weight_decay": 1e-3}
    local["momentum"] = 0.0 if optimizer == "adam" else 0.9
    dataset = toy_dataset(samples=105)
    iid = {"partition": {"name": "iid"}, "participation": 1.0}
    pair = both(play_toy, Plain, local={**local, "optimizer": optimizer}, dataset=dataset, **iid)
    assert len(set(pair[0].samples.tolist())) > 1, "clients differ in size"
    agree(*pair)


def test_batchnorm_statistics_agree(play_toy: Play) -> None:
    pair = both(play_toy, Plain, net=batchnorm)
    agree(*pair)
    assert pair[0].params[0, 0, -1] > 0, "the counter moved"


def test_phases_terms_extras_and_candidates_agree(play_toy: Play) -> None:
    class Module(ClientModule):
        def phases(self, epochs: int) -> Sequence[LocalPhase]:
            head = torch.arange(28) >= 12
            return (LocalPhase(epochs - 1, head), LocalPhase(1, ~head))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            scale = self.received["scale"] * (1 + batch_idx / 10)
            return super().training_step(batch, batch_idx) * scale

        def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            steps = torch.tensor(float(self.steps))
            return {"mean": self(x).mean(dim=0), "scale": self.received["scale"], "steps": steps}

    @dataclass(frozen=True)
    class Everything:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return Module(net, ctx.local)

        @hookimpl
        def plan(self, ctx: Any) -> tuple[Stage, ...]:
            return (Stage("trial", ctx.cohort, 3, losses=True),)

        @hookimpl
        def dispatch(self, state: Any, stage: Stage) -> Start:
            n = len(stage.clients)
            pair = torch.stack([state.models[0], state.models[0] * 0.5])
            active = torch.ones(n, 2, dtype=torch.bool)
            active[0, 1] = False
            scale = 1 + stage.clients.float() / 10
            return Start(params=pair.expand(n, -1, -1), active=active, extras={"scale": scale})

        @hookimpl
        def local_term(self) -> Any:
            def term(module: ClientModule) -> Tensor:
                return 0.1 * (module.flat() - module.start[:28]).square().sum()

            return term

    local = LocalTraining(epochs=3, batch_size=4, lr=0.1, momentum=0.9)
    agree(*both(play_toy, Everything, local=local))


def test_frozen_buffers_stay_frozen_in_both(play_toy: Play) -> None:
    class OnlyHead(ClientModule):
        def phases(self, epochs: int) -> Sequence[LocalPhase]:
            return (LocalPhase(epochs, torch.arange(53) >= 24),)  # all but the first layers

        def on_phase_start(self, number: int) -> None:
            assert self.training
            self.net[1].eval()

    @dataclass(frozen=True)
    class Heads:
        @hookimpl
        def client_module(self, ctx: Any) -> ClientModule:
            return OnlyHead(batchnorm(), ctx.local)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        pair = both(play_toy, Heads)
    agree(*pair)
    assert pair[0].params[:, 0, -9:].eq(pair[0].params[0, 0, -9:]).all(), "statistics stood still"


def test_a_mask_holds_statistics_that_would_move(play_toy: Play) -> None:
    class OnlyWeights(ClientModule):
        def phases(self, epochs: int) -> Sequence[LocalPhase]:
            return (LocalPhase(epochs, torch.arange(53) < 44),)  # all but the buffers

    @dataclass(frozen=True)
    class Weights:
        @hookimpl
        def client_module(self, ctx: Any) -> ClientModule:
            return OnlyWeights(batchnorm(), ctx.local)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        pair = both(play_toy, Weights)
    agree(*pair)
    for upload in pair:
        assert upload.params[:, 0, -9:].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1, 0]] * 3


@pytest.mark.slow
def test_whole_runs_agree_where_no_decision_flips(play_toy: Play) -> None:
    settings = {"warmup": 1, "probe_epochs": 3}
    one, other = (
        play_toy("pfedlia", settings=settings, executor=executor)
        for executor in ("sequential", "vectorised")
    )
    assert one.run.history.membership == other.run.history.membership
    torch.testing.assert_close(one.personal, other.personal, rtol=0, atol=1e-5)
    assert one.marks == other.marks, "the executor is no part of the fingerprint"
    assert other.result.environment["executor"] == "vectorised"


def agree_on(play_toy: Play, part: float = 1e-4, **changes: Any) -> None:
    """One round of fedavg with both: they differ by less than a part of the way moved."""
    everybody = {"participation": 1.0, "partition": {"name": "iid"}, "rounds": 1}
    pair = [
        play_toy("fedavg", executor=name, **{**everybody, **changes})
        for name in ("sequential", "vectorised")
    ]
    assert not pair[1].said, "nothing fell back"
    one, other = (played.state.models.double() for played in pair)
    moved = (one - pair[0].run.context.initial).norm()
    assert moved > 1e-3, "something was learned"
    assert (one - other).norm() < part * moved


@pytest.mark.slow
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout(1.0), nn.Dropout1d(0.3)])
def test_dropout_draws_the_same_in_company_as_alone(play_toy: Play, layer: nn.Module) -> None:
    def net() -> nn.Module:
        wide = nn.Sequential(nn.Linear(3, 12), nn.Unflatten(1, (4, 3)), layer, nn.Flatten())
        return nn.Sequential(wide, nn.Dropout(0.2), nn.Linear(12, 4))

    agree_on(play_toy, net=net, dataset=toy_dataset(samples=100))


def test_dropout_alone_draws_what_torch_draws(play_toy: Play) -> None:
    """So that numbers do not depend on whose layer it is."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5))
    x = torch.randn(2, 3, 4, 5)
    answers = []
    for replaced in (False, True):
        if replaced:
            replace_dropout(net)
            assert {type(layer) for layer in net} == {LaneDropout}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            answers.append(net(x))
    assert torch.equal(*answers)
    assert torch.equal(net.eval()(x), x)


@pytest.mark.parametrize(
    ("limit", "scalars"),
    [("SCALARS", 2 * 28), ("INPUTS", 2 * 4 * 3)],  # rows; batches of four samples of three numbers
)
def test_more_lanes_than_fit_take_turns(
    limit: str, scalars: int, play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    of = Lanes.of

    def counted(job: StageJob, places: list[Place]) -> Lanes:
        seen.append(len(places))
        return of(job, places)

    monkeypatch.setattr(Lanes, "of", counted)
    monkeypatch.setattr(lane_training, limit, scalars + 1)
    agree_on(play_toy, dataset=toy_dataset(samples=105))
    assert max(seen) == 2
    seen.clear()
    monkeypatch.setattr(lane_training, limit, 1)
    agree_on(play_toy, dataset=toy_dataset(samples=105))
    assert set(seen) == {1}


NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "lenet5": ((1, 16, 16), {}),
    "resnet18": ((3, 16, 16), {"stem": "cifar"}),
    "resnet9-gn": ((3, 32, 32), {}),
    "dcpfl-fm": ((1, 28, 28), {}),
    "fedc2i-lenet": ((3, 32, 32), {}),
    "fedopt-cnn": ((1, 8, 8), {}),
    "gpt2": ((6,), {"dropout": 0.1, "width": 8}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name.startswith("resnet") else [])
        for name in NETWORKS
    ],
)
def test_every_network_agrees(name: str, play_toy: Play) -> None:
    """Ragged clients, several steps, dropout and BatchNorm where there are any.

    ResNet-9 makes one step: of its millions of activations some are so near to zero that a rounding
    error changes their sign, and with it gradients by more than rounding; on some CPUs it does.
    """
    shape, params = NETWORKS[name]
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 4
    if name == "gpt2":
        tokens = torch.randint(4, (40, 7), generator=generator)
        dataset = Dataset("toy", tokens[:, :-1], tokens[:, 1:], 4, domains=y)
    else:
        dataset = Dataset("toy", torch.randn(40, *shape, generator=generator), y, 4)
    local = {"epochs": 2, "batch_size": 6, "lr": 0.01, "momentum": 0.9}
    part = 1e-4
    if name == "resnet9-gn":
        local |= {"epochs": 1, "batch_size": 40}
        part = 1e-2
    model = {"name": name, **params}
    agree_on(play_toy, part, dataset=dataset, model=model, local=local, clients=3)


class Stranger(ClientModule):
    """Looks at a number, which a batch of clients does not have."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * 2 if float(loss.detach()) > 1 else loss


class Draws(ClientModule):
    """Draws numbers by itself."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return super().training_step((x + torch.rand_like(x), y), batch_idx)


class Alpha(ClientModule):
    """Has a layer nobody knows how to share."""

    def __init__(self, net: nn.Module, local: LocalTraining) -> None:
        super().__init__(nn.Sequential(net, nn.AlphaDropout(0.5)), local)


class Slower(ClientModule):
    """Its optimiser's group has a learning rate of its own."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": self.parameters(), "lr": 0.01}], lr=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Stranger, r"round 1: clients are trained one by one: RuntimeError: .*item\(\)"),
        (Draws, r"round 1: clients are trained one by one: RuntimeError: .*random"),
        (Alpha, "clients are trained one by one: AlphaDropout draws other random numbers"),
        (Slower, f"clients are trained one by one: {lane_optimizer.CHANGED}"),
    ],
)
def test_a_strangers_module_falls_back_once_and_says_why(
    play_toy: Play, module: type[ClientModule], reason: str
) -> None:
    @dataclass(frozen=True)
    class Method:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return module(net, ctx.local)

    method = composition(("method", Method()))
    plain, fallen = (play_toy(method, executor=name) for name in ("sequential", "vectorised"))
    assert torch.equal(plain.state.models, fallen.state.models)
    assert len(fallen.said) == 1
    assert re.match(reason, fallen.said[0])


# --- what differs from client to client ----------------------------------------------------------


class OwnMask(ClientModule):
    """Moves what it was told to move."""

    def phases(self, epochs: int) -> Sequence[LocalPhase]:
        return (LocalPhase(epochs, torch.arange(53) >= 10 * self.received["odd"]),)


class OwnEpochs(ClientModule):
    """Trains for as long as it was told to."""

    def phases(self, epochs: int) -> Sequence[LocalPhase]:
        return (LocalPhase(1 + int(self.received["odd"])),)


class OwnPairs(ClientModule):
    """Some clients take two batches a step; the loss is that of the first."""

    @property
    def batches_per_step(self) -> int:  # type: ignore[override]
        return 1 + int(self.received["odd"])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch if isinstance(batch[0], Tensor) else batch[0], batch_idx)


class WritesFirst(ClientModule):
    """Does not start where it was sent."""

    @torch.no_grad()
    def on_phase_start(self, number: int) -> None:
        for parameter in self.parameters():
            parameter.mul_(0.5)


class WritesLast(ClientModule):
    """Does not upload what it learned."""

    @torch.no_grad()
    def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        self.net[3].bias.data += 1
        return {}


class BuffersFirst(ClientModule):
    """Does not start with the statistics it was sent."""

    def on_phase_start(self, number: int) -> None:
        self.net[1].running_mean += 1


class BuffersLast(ClientModule):
    """Looks at its samples in training mode, so its statistics move once more."""

    def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"mean": self(x).mean(dim=0)}


class DrawsFirst(ClientModule):
    """Draws a number before its first step."""

    def on_phase_start(self, number: int) -> None:
        torch.rand(())


class DrawsLast(ClientModule):
    """Uploads a number that it draws."""

    def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"noise": torch.randn(3)}


class OwnAttribute(ClientModule):
    """Keeps on itself what a step needs."""

    def on_phase_start(self, number: int) -> None:
        self.weight = 1 + self.received["odd"]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * self.weight


class OwnMode(ClientModule):
    """Some clients leave their statistics alone."""

    def on_phase_start(self, number: int) -> None:
        self.net[1].train(bool(self.received["odd"]))


class OwnWord(ClientModule):
    """Computes from what it was told what a step needs."""

    def on_phase_start(self, number: int) -> None:
        self.received["scale"] = 1 + self.received["odd"]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * self.received["scale"]


class Freezes(ClientModule):
    """Some of it takes no gradient."""

    def on_phase_start(self, number: int) -> None:
        self.net[0].requires_grad_(False)


class OwnRate(ClientModule):
    """Some clients take larger steps."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.rule = super().configure_optimizers()
        return self.rule

    def on_phase_start(self, number: int) -> None:
        self.rule.param_groups[0]["lr"] = self.local.lr * (1 + int(self.received["odd"]))


def telling(module: type[ClientModule]) -> object:
    """A plugin with BatchNorm whose clients are told whether their id is odd."""

    @dataclass(frozen=True)
    class Telling:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return module(net, ctx.local)

        @hookimpl
        def dispatch(self, stage: Stage) -> Start:
            odd = stage.clients % 2
            return Start(extras={"odd": odd, "scale": torch.ones(len(odd))})

    return Telling()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (OwnMask, "phases differ between clients"),
        (OwnEpochs, "phases differ between clients"),
        (OwnPairs, "phases differ between clients"),
        (WritesFirst, "on_phase_start writes parameters or buffers"),
        (WritesLast, "on_local_end writes parameters or buffers"),
        (BuffersFirst, "on_phase_start writes parameters or buffers"),
        (BuffersLast, "on_local_end writes parameters or buffers"),
        (DrawsFirst, "it draws random numbers outside of training_step"),
        (DrawsLast, "it draws random numbers outside of training_step"),
        (OwnAttribute, "on_phase_start sets another 'weight' for other clients"),
        (OwnMode, "on_phase_start sets another 'net.1.training' for other clients"),
        (OwnWord, "on_phase_start replaces `start` or an entry of `received`"),
        (Freezes, "some of its parameters take no gradient"),
        (OwnRate, lane_optimizer.CHANGED),
    ],
)
def test_what_clients_do_not_share_is_trained_one_by_one(
    play_toy: Play, module: type[ClientModule], reason: str
) -> None:
    ends = []
    for executor in ("sequential", "vectorised"):
        uploads: list[Any] = []
        method = composition(("method", telling(module)), ("watch", watching(uploads)))
        world = torch.get_rng_state()
        played = play_toy(method, executor=executor, net=batchnorm, participation=1.0)
        assert torch.equal(world, torch.get_rng_state())
        ends.append((played, uploads))
    (plain, one), (fallen, other) = ends
    assert fallen.said == [mentioning("round 1", reason)]
    assert torch.equal(plain.state.models, fallen.state.models)
    for before, after in zip(one, other, strict=True):
        assert torch.equal(before.params, after.params)
        assert before.extras.keys() == after.extras.keys()
        assert all(torch.equal(value, after.extras[name]) for name, value in before.extras.items())


@pytest.mark.slow
@pytest.mark.parametrize("net", [None, batchnorm], ids=["mlp", "batchnorm"])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedrep", {"final_head_epochs": 1}),
        ("per-fedavg", {}),
        ("fedproto", {}),
        ("scaffold", {}),
    ],
)
def test_methods_with_hooks_of_their_own_stay_in_lanes(
    play_toy: Play, method: str, settings: dict[str, object], net: Any
) -> None:
    local = LocalTraining(epochs=2, batch_size=3, lr=0.1)
    played = play_toy(method, settings=settings, executor="vectorised", net=net, local=local)
    assert played.run.executor.reason is None
    assert not [line for line in played.said if "one by one" in line]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler, of torch
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_network_learns_the_same(
    backend: str, play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where features are caught on their way into the head, which cannot be compiled.

    The last part of the compiler writes C++, and another compiler translates that: it takes long.
    """
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    one, other = (
        play_toy("fedproto", engine=EngineOptions("sequential", "cpu", compile=compiled), rounds=2)
        for compiled in (False, True)
    )
    torch.testing.assert_close(other.state.models, one.state.models, rtol=0, atol=1e-5)
    assert other.marks == one.marks, "compiling is no part of the fingerprint"
    assert other.result.environment["compile"] == "yes"
    assert "forward" in vars(other.run.executor.workspace.module), "it was compiled"


def test_lanes_cannot_be_compiled(play_toy: Play) -> None:
    with pytest.raises(UserError, match="--compile goes with --executor sequential"):
        play_toy("fedavg", engine=EngineOptions("vectorised", "cpu", compile=True))
