"""A client's training calls what `Trainer.fit` calls, and ends at its weights."""

from __future__ import annotations

import copy
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from mentions import mention
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from toy import Play, composition, toy_dataset

from flbench import ClientModule, LocalPhase, LocalTraining, Stage, Start, hookimpl
from flbench.core.client_module import LocalWork
from flbench.core.lightning_hooks import HOOKS
from flbench.core.state import Dispatched
from flbench.engine import local_trainer
from flbench.engine.batches import orders, steps
from flbench.errors import PluginError, Undefined, UserError

EPOCHS = 3
LOCAL = LocalTraining(epochs=EPOCHS, batch_size=4, lr=0.3, momentum=0.9)


def plain(value: Any) -> Any:
    """An argument of a hook as something that can be compared."""
    if isinstance(value, (tuple, list)):
        return tuple(tuple(one.shape) for one in value)
    if isinstance(value, Tensor):
        return round(float(value.detach()), 5)
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (int, float, str, torch.device)) or value is None:
        return value
    return (
        "closure" if callable(value) and not hasattr(value, "state_dict") else type(value).__name__
    )


class Recorded(ClientModule):
    """Writes down every hook, with its arguments and what the trainer says."""

    def __init__(self, net: nn.Module, local: LocalTraining) -> None:
        super().__init__(net, local)
        vars(self)["calls"] = []

    def record(self, name: str, *given: Any, **named: Any) -> None:
        now = self.current_epoch, self.global_step
        self.calls.append((name, now, *map(plain, given), plain(named)))


def recording(name: str) -> Callable[..., Any]:
    def hook(self: Recorded, *given: Any, **named: Any) -> Any:
        self.record(name, *given, **named)
        return getattr(super(Recorded, self), name)(*given, **named)

    return hook


for each in ("training_step", *HOOKS):
    setattr(Recorded, each, recording(each))


def mine(play_toy: Play, kind: type[Recorded], local: LocalTraining) -> tuple[Any, Any, Tensor]:
    """The executor's module after one client's training, the run, and the trained row."""
    play = play_toy(composition(("method", telling(kind))), local=vars(local), rounds=1)
    run = play.run
    module = run.executor.workspace.module
    module.calls.clear()
    start = Dispatched.whole(run.context.initial[None])
    upload = run.executor.fit(start, Stage("train", torch.tensor([1]), EPOCHS), LocalWork(), 1)
    return module, run, upload


def telling(kind: type[ClientModule]) -> object:
    @dataclass(frozen=True)
    class Telling:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return kind(net, ctx.local)

    return Telling()


class Epochs:
    """The batches of each epoch, as the executor cuts them."""

    def __init__(self, samples: int, local: LocalTraining) -> None:
        self.orders = orders(samples, EPOCHS, 0, 1, 1, "train", 0)
        self.cuts = steps(samples, local.batch_size, 1, skip_single=False)

    def __iter__(self) -> Iterator[list[int]]:
        order = next(self.orders).tolist()
        return iter([order[cut] for (cut,) in self.cuts])

    def __len__(self) -> int:
        return len(self.cuts)


def trainers(
    kind: type[Recorded], run: Any, local: LocalTraining
) -> tuple[Recorded, Tensor, Trainer]:
    """Lightning's Trainer on the same module and batches."""
    net = copy.deepcopy(run.executor.workspace.module.net)
    nn.utils.vector_to_parameters(run.context.initial.clone(), net.parameters())
    module = kind(net, local)
    samples = run.executor.samples
    rows = samples.splits["train"][1]
    data = TensorDataset(samples.x[rows], samples.y[rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=local.clip_norm or None,
        )
        trainer.fit(module, DataLoader(data, batch_sampler=Epochs(len(rows), local)))  # type: ignore[arg-type]
    return module, nn.utils.parameters_to_vector(net.parameters()).detach(), trainer


def weights(module: Any) -> Tensor:
    return torch.cat([one.detach().reshape(-1) for one in module.net.parameters()])


class Plain(Recorded):
    """Nothing but the hooks."""


class ByNorm(Recorded):
    def configure_gradient_clipping(self, optimizer: Any, *given: Any, **named: Any) -> None:
        self.record("clip", optimizer, *given, **named)
        self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")


class ByValue(Recorded):
    def configure_gradient_clipping(self, optimizer: Any, *given: Any, **named: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="value")


class BySteps(Recorded):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class ByEpochs(Recorded):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


class SeveralSchedulers(Recorded):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        falls = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        every = {"scheduler": warm, "interval": "step", "frequency": 2}
        return [optimizer], [every, {"scheduler": falls, "frequency": 2}]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        super().lr_scheduler_step(scheduler, metric)
        self.record("rates", self.lr_schedulers()[0].get_last_lr()[0])


class OneCycle(Recorded):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        total = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=int(total))
        return [
            {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
        ]


class Plateau(Recorded):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=9)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "fit"}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("fit", loss, on_step=False, on_epoch=True)
        return loss


class ByHand(Recorded):
    def __init__(self, net: nn.Module, local: LocalTraining) -> None:
        super().__init__(net, local)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        head, body = self.net.head, self.net.body
        first = torch.optim.SGD(head.parameters(), lr=self.local.lr, momentum=0.5)
        second = torch.optim.Adam(body.parameters(), lr=self.local.lr / 10)
        return [first, second], [torch.optim.lr_scheduler.StepLR(first, 1, gamma=0.9)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.optimizers()
        with first.toggle_model():
            first.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            self.clip_gradients(first, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            first.step()
        self.toggle_optimizer(second)
        second.zero_grad()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        second.step()
        self.untoggle_optimizer(second)
        if batch_idx == 1:
            self.lr_schedulers().step()
        return loss


class ReadsGradients(Recorded):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        super().on_before_optimizer_step(optimizer)
        for one in self.net.parameters():
            self.record("norm", one.grad.norm())
            one.grad.mul_(0.5)

    def on_after_backward(self) -> None:
        super().on_after_backward()
        self.net.head.weight.grad.sign_()


class OwnSteps(Recorded):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.local.lr / (1 + self.trainer.global_step)
        super().optimizer_step(epoch, batch_idx, optimizer, closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)

    def backward(self, loss: Tensor) -> None:
        (2 * loss).backward()


class Skips(Recorded):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == 1 else {"loss": loss, "size": torch.tensor(7.0)}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        super().on_train_batch_start(batch, batch_idx)
        return -1 if self.current_epoch == 1 and batch_idx == 2 else None


class Stops(ByEpochs):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.trainer.should_stop = self.current_epoch == 1 and batch_idx == 0


class Augments(Recorded):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = super().on_after_batch_transfer(batch, dataloader_idx)
        return x * 1.5, y


class BatchAlone(Recorded):
    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return super().training_step(batch, 0)


class BatchAloneInShort(ClientModule):
    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return 2 * super().training_step(batch, 0)


class Lbfgs(Recorded):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


MODULES = (
    *(Plain, ByNorm, ByValue, BySteps, ByEpochs, SeveralSchedulers, OneCycle, Plateau, ByHand),
    *(ReadsGradients, OwnSteps, Skips, Stops, Augments, Lbfgs, BatchAlone),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODULES)
def test_calls_and_weights_are_those_of_the_trainer(play_toy: Play, kind: type[Recorded]) -> None:
    module, run, upload = mine(play_toy, kind, LOCAL)
    other, expected, _ = trainers(kind, run, LOCAL)
    assert len(module.calls) > 3 * EPOCHS
    for one, two in zip(module.calls, other.calls, strict=False):
        assert one == two
    assert len(module.calls) == len(other.calls)
    torch.testing.assert_close(upload.params[0, 0], expected, rtol=0, atol=1e-6)
    assert not torch.allclose(expected, run.context.initial)


def log_in_every_way(self: ClientModule, loss: Tensor, batch_idx: int) -> None:
    self.log("step", loss)
    self.log("mean", loss, on_step=False, on_epoch=True)
    self.log("both", loss, on_step=True, on_epoch=True)
    self.log("most", loss, on_epoch=True, on_step=False, reduce_fx="max")
    self.log("sum", batch_idx, on_epoch=True, on_step=False, reduce_fx="sum")
    self.log("sized", loss, on_epoch=True, on_step=False, batch_size=1 + batch_idx)
    if batch_idx == 1:
        self.log_dict({"once": loss, "twice": 2 * loss}, on_epoch=True)


class Logs(Recorded):
    """Logs in every way, on every kind of hook."""

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.log("started", float(self.current_epoch + 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        log_in_every_way(self, loss, batch_idx)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.log("seen", outputs["loss"], on_epoch=True)


class LogsOnly(ClientModule):
    """Takes the short way."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        log_in_every_way(self, loss, batch_idx)
        return loss


@pytest.mark.parametrize("kind", [Logs, LogsOnly])
def test_what_is_logged_is_what_the_trainer_ends_with(play_toy: Play, kind: Any) -> None:
    play = play_toy(composition(("method", telling(kind))), local=vars(LOCAL), rounds=1)
    run = play.run
    trainer = run.executor.workspace.trainer
    assert trainer.is_plain == (kind is LogsOnly)
    run.executor.fit(
        Dispatched.whole(run.context.initial[None]),
        Stage("train", torch.tensor([1]), EPOCHS),
        LocalWork(),
        1,
    )
    _, _, other = trainers(kind, run, LOCAL)
    expected = {name: float(value) for name, value in other.callback_metrics.items()}
    assert {"step", "mean", "both_epoch", "both_step", "most", "sum", "once", "twice"} <= set(
        expected
    )
    assert trainer.logged() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", [Plain, ClientModule, BatchAloneInShort])
def test_clip_norm_is_the_gradient_clip_val_of_a_trainer(play_toy: Play, kind: Any) -> None:
    local = LocalTraining(epochs=EPOCHS, batch_size=4, lr=0.3, clip_norm=0.1)
    play = play_toy(composition(("method", telling(kind))), local=vars(local), rounds=1)
    start = Dispatched.whole(play.run.context.initial[None])
    stage = Stage("train", torch.tensor([1]), EPOCHS)
    ours = play.run.executor.fit(start, stage, LocalWork(), 1).params[0, 0]
    _, expected, _ = trainers(kind, play.run, local)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
    other = trainers(kind, play.run, dataclasses.replace(local, clip_norm=0.0))[1]
    assert not torch.allclose(ours, other, atol=1e-3)


def test_the_norm_counts_what_is_trained_alone(play_toy: Play) -> None:
    """One step of one full batch, in which the head alone is trained, by hand."""
    head = torch.arange(28) >= 12

    class Head(ClientModule):
        def phases(self, epochs: int) -> Any:
            return (LocalPhase(epochs, head),)

    local = LocalTraining(epochs=1, batch_size=100, lr=0.5, clip_norm=0.01)
    play = play_toy(composition(("method", telling(Head))), local=vars(local), rounds=1)
    run, initial = play.run, play.run.context.initial
    space, rows = run.executor.workspace, run.executor.samples.splits["train"][1]
    upload = run.executor.fit(
        Dispatched.whole(initial[None]), Stage("train", torch.tensor([1]), 1), LocalWork(), 1
    )
    space.load(initial)
    space.clear_gradients()
    x, y = run.executor.samples.x[rows], run.executor.samples.y[rows]
    nn.functional.cross_entropy(space.module(x), y).backward()
    slope = torch.cat([one.grad.reshape(-1) for one in space.module.parameters()]) * head
    expected = initial - 0.5 * slope * 0.01 / slope.norm()
    torch.testing.assert_close(upload.params[0, 0], expected, rtol=0, atol=1e-6)


def test_what_is_never_called_is_refused_before_a_run(play_toy: Play) -> None:
    class Validates(ClientModule):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    with pytest.raises(PluginError, match=mention("method", "validation_step")):
        play_toy(composition(("method", telling(Validates))), rounds=1)


class Forgets(ClientModule):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
        optimizer.step()


class Nothing(ClientModule):
    def configure_optimizers(self) -> Any:
        return []


class Wrong(ClientModule):
    def configure_optimizers(self) -> Any:
        return {"optimizer": super().configure_optimizers(), "lr_scheduler": {"interval": "step"}}


class Unheard(Plateau):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return ClientModule.training_step(self, batch, batch_idx)


class AsksMuch(ClientModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) + len(self.trainer.datamodule)


class Iterates(ClientModule):
    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        return super().training_step(next(dataloader_iter), 0)


class TextLoss(ClientModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return "loss"


class LogsInPrediction(ClientModule):
    def predict(self, x: Tensor) -> Tensor:
        self.log("x", 1.0)
        return super().predict(x)


@pytest.mark.parametrize(
    ("kind", "local", "error", "reason"),
    [
        (Forgets, {}, PluginError, "does not call its closure"),
        (Nothing, {}, PluginError, "expected an optimiser"),
        (Wrong, {}, PluginError, "configure_optimizers: .*scheduler"),
        (Unheard, {}, PluginError, "monitors 'fit'"),
        (AsksMuch, {}, PluginError, "self.trainer.datamodule.*current_epoch"),
        (Iterates, {}, PluginError, "method: training_step gets a batch"),
        (TextLoss, {}, PluginError, "returned str"),
        (LogsInPrediction, {}, UserError, "in local training only"),
        (ByHand, {"clip_norm": 1.0}, Undefined, "self.clip_gradients"),
    ],
)
def test_what_cannot_be_done_is_said(
    play_toy: Play, kind: Any, local: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        play_toy(composition(("method", telling(kind))), local=local, rounds=1)


def test_a_term_of_another_method_needs_a_loss_to_be_added_to(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Term:
        @hookimpl
        def local_term(self) -> Any:
            return lambda module: module.flat().square().sum()

    method = composition(("method", telling(ByHand)), ("term", Term()))
    with pytest.raises(Undefined, match=mention("local_term", "optimises")):
        play_toy(method, rounds=1)


def test_a_term_is_added_whatever_hooks_there_are(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Term:
        @hookimpl
        def local_term(self) -> Any:
            return lambda module: module.flat().square().sum()

    ends = [
        play_toy(composition(("method", telling(kind)), ("term", Term())), rounds=1).state.models
        for kind in (Plain, ClientModule)
    ]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)
    alone = play_toy(composition(("method", telling(Plain))), rounds=1).state.models
    assert not torch.allclose(ends[0], alone, atol=1e-3)


class Rates(ClientModule):
    """Writes down the learning rate of every step."""

    def __init__(self, net: nn.Module, local: LocalTraining) -> None:
        super().__init__(net, local)
        vars(self)["rates"] = []

    def configure_optimizers(self) -> Any:
        rate = self.local.lr / 2 if self.follows else 0.5
        optimizer = torch.optim.SGD(self.parameters(), lr=rate)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)]

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("follows", [True, False])
def test_schedulers_begin_anew_and_lr_decay_goes_over_rounds(play_toy: Play, follows: bool) -> None:
    """Two epochs of one step: the scheduler falls within a stage, `lr_decay` between rounds."""
    kind = type("Module", (Rates,), {"follows": follows})
    local = {"epochs": 2, "batch_size": 100, "lr": 1.0, "lr_decay": 0.25, "momentum": 0.0}
    plugin = composition(("method", telling(kind)))
    play = play_toy(plugin, local=local, rounds=2, participation=1.0)
    rates = play.run.executor.workspace.module.rates
    clients = len(rates) // 4
    assert rates == pytest.approx([0.5, 0.05] * clients + [0.125, 0.0125] * clients)
    assert clients == play.run.context.clients


def test_what_clients_log_is_noted_by_round_and_weighted_by_samples(play_toy: Play) -> None:
    """Every client logs its own number of samples, and half of them another number."""

    class Tells(ClientModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            mine = float(self.received["samples"])
            self.log("samples", mine)
            self.log("nan", float("nan"))
            if mine > 9:
                self.log("large", mine, on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

    @dataclass(frozen=True)
    class Telling:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return Tells(net, ctx.local)

        @hookimpl
        def plan(self, ctx: Any) -> Any:
            return (Stage("probe", ctx.cohort, 1), Stage("train", ctx.cohort, 1))

        @hookimpl
        def dispatch(self, stage: Stage, ctx: Any) -> Start:
            return Start(client_memory={"samples": ctx.samples[stage.clients]})

        @hookimpl
        def aggregate(self, upload: Any) -> None:
            assert upload.logged == (), "the server does not get what clients log"

    records: list[Any] = []

    class Sink:
        @hookimpl
        def round_finished(self, record: Any) -> None:
            records.append(record)

    iid = {"dataset": toy_dataset(samples=105), "partition": {"name": "iid"}, "participation": 1.0}
    method = composition(("tells", Telling()))
    play = play_toy(method, rounds=2, sinks=(("sink", Sink()),), **iid)
    sizes = play.run.context.samples.double()
    assert len(set(sizes.tolist())) > 1
    large = sizes[sizes > 9]
    noted = {(n["round"], n["name"]): n["value"] for n in play.run.history.notes}
    for round_ in (1, 2):
        for stage in ("tells.", "tells.probe."):
            weighted = float((sizes * sizes).sum() / sizes.sum())
            assert noted[round_, f"{stage}samples"] == pytest.approx(weighted, abs=1e-5)
            if len(large):
                weighted = float((large * large).sum() / large.sum())
                assert noted[round_, f"{stage}large"] == pytest.approx(weighted, abs=1e-5)
            assert noted[round_, f"{stage}nan"] is None
    assert records[1].notes["tells.samples"] == noted[2, "tells.samples"]


def lanes_and_one_by_one(play_toy: Play, kind: Any, local: dict[str, Any]) -> list[Any]:
    """Both executors' runs from the same state."""
    iid = {"dataset": toy_dataset(samples=105), "partition": {"name": "iid"}, "participation": 1.0}
    return [
        play_toy(
            composition(("method", telling(kind))), executor=executor, rounds=2, local=local, **iid
        )
        for executor in ("sequential", "vectorised")
    ]


class FallsInLanes(ClientModule):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        falls = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.6)
        return [optimizer], [{"scheduler": falls, "interval": "step"}]

    def phases(self, epochs: int) -> Any:
        head = torch.arange(28) >= 12
        return (LocalPhase(epochs - 1, head), LocalPhase(1, ~head))


class WarmsInLanes(ClientModule):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        return {"optimizer": optimizer, "lr_scheduler": warm}


class NumberedInLanes(ClientModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * (1 + batch_idx)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    "kind",
    [ClientModule, FallsInLanes, WarmsInLanes, NumberedInLanes],
    ids=lambda kind: kind.__name__,
)
def test_lanes_clip_and_schedule_as_one_by_one(play_toy: Play, kind: Any, optimizer: str) -> None:
    local = {"epochs": 3, "batch_size": 4, "lr": 0.05, "momentum": 0.9 * (optimizer == "sgd")}
    local |= {"clip_norm": 0.2, "lr_decay": 0.5, "optimizer": optimizer}
    one, other = lanes_and_one_by_one(play_toy, kind, local)
    assert other.run.executor.reason is None
    assert len(set(one.run.context.samples.tolist())) > 1
    torch.testing.assert_close(one.state.models, other.state.models, rtol=0, atol=5e-6)
    unclipped, _ = lanes_and_one_by_one(play_toy, kind, local | {"clip_norm": 0.0})
    assert not torch.allclose(unclipped.state.models, one.state.models, atol=1e-3)


class Annealed(ClientModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) / (1 + self.current_epoch)


class LogsOne(ClientModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Annealed, "it uses self.trainer.current_epoch"),
        (LogsOne, "it uses self.log"),
        (ByHand, "it optimises by hand"),
        (ReadsGradients, "it overrides .*on_before_optimizer_step"),
        (ByNorm, "local.clip_norm clips in lanes too"),
        (Plateau, "it overrides"),
        (OneCycle, "it overrides"),
    ],
)
def test_lanes_fall_back_and_say_why(play_toy: Play, kind: Any, reason: str) -> None:
    one, other = lanes_and_one_by_one(play_toy, kind, {"epochs": 2, "batch_size": 8, "lr": 0.05})
    assert re.search(reason, other.run.executor.reason)
    assert torch.equal(one.state.models, other.state.models)


def test_hooks_are_looked_for_once_and_unused_ones_are_not_called(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any, **named: Any) -> None:
        raise AssertionError

    play = play_toy(composition(("method", telling(ClientModule))), rounds=1)
    run = play.run
    for name in ("hooks_of", "configured"):
        monkeypatch.setattr(local_trainer, name, never)
    for name in (*HOOKS, "log", "configure_optimizers"):
        monkeypatch.setattr(ClientModule, name, never)
    start = Dispatched.whole(run.context.initial[None])
    run.executor.fit(start, Stage("train", torch.tensor([1]), 1), LocalWork(), 1)
