"""Steps of lanes are recorded, and recorded again when they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from mentions import mentioning
from torch import Tensor, nn
from toy import Play, composition, toy_dataset

from flbench import ClientModule, Stage, Start, hookimpl
from flbench.engine.lanes import step as lane_step
from flbench.engine.lanes import vectorised
from flbench.engine.lanes.vectorised import Vectorised
from flbench.engine.recording import program as lane_program


@pytest.fixture(autouse=True)
def recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorised, "USES", 1)


class Counting(ClientModule):
    """Counts how often its Python is run."""

    calls = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        Counting.calls += 1
        return super().training_step(batch, batch_idx)


class Scaled(ClientModule):
    """Its loss has a factor, which a hook of the method may change from round to round."""

    factor = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * Scaled.factor


class Numbered(ClientModule):
    """Uses the number of the step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) / (1 + batch_idx)


class Remembering(ClientModule):
    """Adds to an attribute in every step, and uses it."""

    made = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.made += 1
        return super().training_step(batch, batch_idx)


def method(module: type[ClientModule], before: Callable[[int], None] = lambda _: None) -> Any:
    """A method whose clients train a module; `before` is called before every round."""

    @dataclass(frozen=True)
    class Method:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return module(net, ctx.local)

        @hookimpl
        def dispatch(self, stage: Stage, ctx: Any) -> Start:
            before(ctx.round)
            return Start()

    return composition(("method", Method()))


RAGGED = {
    "dataset": toy_dataset(samples=105),
    "partition": {"name": "iid"},
    "participation": 1.0,
    "local": {"epochs": 2, "batch_size": 4, "lr": 0.1},
}


def ends(play_toy: Play, plugin: Any, **changes: Any) -> list[Any]:
    """A run with each executor; their last models agree."""
    pair = [
        play_toy(plugin, executor=name, **{**RAGGED, "rounds": 3, **changes})
        for name in ("sequential", "vectorised")
    ]
    torch.testing.assert_close(pair[0].state.models, pair[1].state.models, rtol=0, atol=5e-6)
    assert not pair[1].said
    return pair


def programs_of(played: Any) -> list[Any]:
    return list(played.run.executor.programs.values())


def programs(played: Any) -> list[Any]:
    executor = played.run.executor
    assert isinstance(executor, Vectorised)
    return [one for memory in executor.programs.values() for one in memory.known.values()]


def test_python_runs_once_per_shape_and_once_per_phase(play_toy: Play) -> None:
    Counting.calls = 0
    played = play_toy(method(Counting), executor="vectorised", rounds=5, **RAGGED)
    known = programs(played)
    assert all(known)
    # Each shape: by Python, in two recordings, and for the answer; four later phases ask again.
    assert Counting.calls <= 5 * len(known) + 4


def test_a_changed_factor_is_noticed(play_toy: Play) -> None:
    """The factor of round 2 is another; without the question, the old program went on."""

    def change(round_: int) -> None:
        Scaled.factor = {1: 1.0, 2: 3.0, 3: 0.5}[round_]

    _, played = ends(play_toy, method(Scaled, change))
    assert all(memory.changes == 2 for memory in played.run.executor.programs.values())


def test_a_hook_of_torch_is_noticed(play_toy: Play) -> None:
    """A step that is otherwise that of its network is not asked what it computes."""
    nets: list[nn.Module] = []

    class Known(ClientModule):
        def __init__(self, net: nn.Module, local: Any) -> None:
            super().__init__(net, local)
            nets.append(net)

    def register(round_: int) -> None:
        if round_ == 2:
            layer = list(nets[-1].modules())[-1]
            layer.register_forward_hook(lambda module, inputs, output: 3 * output)

    ends(play_toy, method(Known, register))


def test_a_step_that_changes_every_round_is_not_recorded_for_ever(play_toy: Play) -> None:
    def change(round_: int) -> None:
        Scaled.factor = 1 / round_

    _, played = ends(play_toy, method(Scaled, change), rounds=5)
    assert all(
        memory.changes == lane_step.CHANGES for memory in played.run.executor.programs.values()
    )
    assert not programs(played)


def test_a_term_that_is_zero_at_the_start_is_noticed(play_toy: Play) -> None:
    """The proximal term is zero where training starts: the question asks elsewhere."""

    @dataclass(frozen=True)
    class Proximal:
        @hookimpl
        def local_term(self, ctx: Any) -> Any:
            factor = 0.0 if ctx.round == 1 else 2.0
            return lambda module: factor * (module.flat() - module.start[:28]).square().sum()

    _, played = ends(play_toy, composition(("method", Proximal())), rounds=2)
    assert all(programs(played))


class Weighted(ClientModule):
    """Samples have weights by their labels, which it keeps when a phase starts."""

    def on_phase_start(self, number: int) -> None:
        self.weights = self.received["weights"].clone()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        losses = nn.functional.cross_entropy(self(x), y, reduction="none")
        return (self.weights[y] * losses).mean()


def of_weights(heavy: int) -> Any:
    """A method whose samples of a label count three times from round 2 on."""

    @dataclass(frozen=True)
    class Method:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return Weighted(net, ctx.local)

        @hookimpl
        def dispatch(self, stage: Stage, ctx: Any) -> Start:
            weights = torch.ones(4)
            weights[heavy] = 3.0 if ctx.round >= 2 else 1.0
            return Start(extras={"weights": weights.expand(len(stage.clients), -1)})

    return composition(("method", Method()))


def test_what_a_step_reads_of_the_module_is_noticed_where_the_answer_is_the_same(
    play_toy: Play,
) -> None:
    """The question has one batch, which does not have all labels."""
    for heavy in range(2):
        local = {"epochs": 1, "batch_size": 1, "lr": 0.1}
        _, played = ends(play_toy, of_weights(heavy), rounds=2, local=local)
        assert [memory.changes for memory in programs_of(played)] == [1]


@pytest.mark.parametrize("module", [Numbered, Remembering])
def test_a_step_with_state_is_made_by_python(play_toy: Play, module: type[ClientModule]) -> None:
    _, played = ends(play_toy, method(module))
    assert programs(played)
    assert not any(programs(played))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop"])
def test_recorded_steps_end_where_clients_end_alone(play_toy: Play, optimizer: str) -> None:
    momentum = 0.9 if optimizer in ("sgd", "rmsprop") else 0.0
    local = {"epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": momentum, "optimizer": optimizer}
    _, played = ends(play_toy, "fedavg", local=local)
    assert any(programs(played))


@pytest.mark.slow
def test_recorded_convolutions_and_batchnorm_end_where_clients_end_alone(play_toy: Play) -> None:
    def net() -> nn.Module:
        first = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.BatchNorm1d(4))
        return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))

    _, played = ends(play_toy, "fedavg", net=net)
    assert any(programs(played))


class Partly(nn.Module):
    """Its loss does not reach all parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).relu())
        return logits


class Alternating(ClientModule):
    """Its loss reaches another layer in every second step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        weight: Any = self.get_submodule("net.unused").weight
        return loss if batch_idx % 2 else loss + weight.square().sum()


DECAY = {"epochs": 1, "batch_size": 6, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.5}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
def test_what_the_loss_does_not_reach_stays_as_it_is(play_toy: Play, optimizer: str) -> None:
    momentum = 0.0 if optimizer == "adamw" else 0.9
    local = {**DECAY, "optimizer": optimizer, "momentum": momentum}
    _, played = ends(play_toy, "fedavg", net=Partly, local=local, rounds=2)
    assert all(programs(played))
    unused = slice(16, 32)
    assert torch.equal(played.state.models[0, unused], played.run.context.initial[unused])


def test_momentum_rests_where_the_loss_does_not_reach(play_toy: Play) -> None:
    ends(play_toy, method(Alternating), net=Partly, local=DECAY, rounds=2)


def test_counts_of_steps_are_not_shared_where_the_loss_does_not_reach(play_toy: Play) -> None:
    local = {**DECAY, "optimizer": "adam", "momentum": 0.0}
    played = play_toy(method(Alternating), executor="vectorised", net=Partly, local=local, rounds=1)
    reason = "its loss reaches other parameters from step to step"
    assert played.said == [mentioning("round 1", reason)]


class Receiving(ClientModule):
    """Scales its loss by a tensor that its client received."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * self.received["scale"]


@dataclass(frozen=True)
class WithTerm:
    """Clients receive a tensor each, and have a proximal term."""

    @hookimpl
    def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
        return Receiving(net, ctx.local)

    @hookimpl
    def dispatch(self, stage: Stage) -> Start:
        return Start(extras={"scale": 1 + stage.clients.float() / 10})

    @hookimpl
    def local_term(self) -> Any:
        def term(module: ClientModule) -> Tensor:
            return 0.1 * (module.flat() - module.start[: len(module.flat())]).square().sum()

        return term


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("net", [None, normed], ids=["linear", "batchnorm"])
def test_simplified_steps_end_with_the_bytes_of_plain_ones(
    play_toy: Play, optimizer: str, net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With momentum, received tensors and a term, for three rounds."""
    momentum = 0.9 if optimizer in ("sgd", "rmsprop") else 0.0
    local = {"epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": momentum, "optimizer": optimizer}
    changes: dict[str, Any] = {**RAGGED, "local": local, **({"net": net} if net else {})}

    def last() -> Tensor:
        plugin = composition(("method", WithTerm()))
        played = play_toy(plugin, executor="vectorised", rounds=3, **changes)
        assert all(programs(played))
        models: Tensor = played.state.models
        return models

    simplified = last()
    monkeypatch.setattr(lane_program, "simplify", lambda *_: None)
    monkeypatch.setattr(lane_program, "use_functions", lambda *_: None)
    assert simplified.numpy().tobytes() == last().numpy().tobytes()


class Centred(nn.Module):
    """Has no weights, and lets the samples of a batch influence one another."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


def filled(play_toy: Play, plugin: Any = "fedavg", **changes: Any) -> bool:
    """Whether last batches were filled up; the run ends where clients end alone."""
    _, played = ends(play_toy, plugin, **changes)
    answers = [memory.fills for memory in programs_of(played)]
    sizes = {s for memory in played.run.executor.programs.values() for s in memory.known}
    answer = set(answers) == {True}
    assert (sizes == {(4,)}) == answer, "each batch has four samples, or its own number"
    return answer


def test_last_batches_of_linear_layers_are_filled_up(play_toy: Play) -> None:
    """Of 17 or 18 samples in batches of four the last ones have one or two."""
    assert filled(play_toy)
    assert filled(play_toy, "fedprox")


def convolution() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 3), nn.Flatten())


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "centred": lambda: nn.Sequential(nn.Linear(3, 4), Centred()),
    "batchnorm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
    "convolution": convolution,
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=list(OTHERS))
def test_last_batches_of_other_networks_are_not(
    play_toy: Play, body: Callable[[], nn.Module]
) -> None:
    assert not filled(play_toy, net=lambda: nn.Sequential(body(), nn.Linear(4, 4)))


def test_last_batches_are_not_filled_up_for_other_losses(play_toy: Play) -> None:
    """A step or a loss of a method's own may look at all samples of a batch."""
    Scaled.factor = 1.0
    assert not filled(play_toy, method(Scaled))
    assert not filled(play_toy, "fedlc")


def test_a_loss_that_comes_later_is_not_that_of_filled_batches(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round's batches are filled up, and its steps are too few to be recorded."""
    monkeypatch.setattr(vectorised, "USES", 99)

    @dataclass(frozen=True)
    class Later:
        @hookimpl
        def batch_loss(self, ctx: Any) -> Any:
            return None if ctx.round == 1 else lambda batch: batch.logits.square().mean()

    local = {"epochs": 1, "batch_size": 15, "lr": 0.1}
    _, played = ends(play_toy, composition(("method", Later())), rounds=2, local=local)
    assert [memory.fills for memory in programs_of(played)] == [True]


class Switched(nn.Module):
    """Lets the samples of a batch influence one another once it is on."""

    on = False

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0) if self.on else x


def test_a_network_that_changes_is_asked_again(play_toy: Play) -> None:
    made: list[Switched] = []

    def change(round_: int) -> None:
        made[-1].on = round_ > 2

    def net() -> nn.Module:
        made.append(Switched())
        return nn.Sequential(nn.Linear(3, 4), made[-1], nn.Linear(4, 4))

    _, played = ends(play_toy, method(ClientModule, change), net=net, rounds=4)
    assert [memory.fills for memory in programs_of(played)] == [False]


def test_large_batches_are_not_filled_up(play_toy: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_step, "LARGEST_FILLED", 3)
    assert not filled(play_toy)
