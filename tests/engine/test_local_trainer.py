"""A client's training calls what `Trainer.fit` calls, and ends at its weights."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from toy import Play, composition

from flbench import ClientModule, LocalTraining, Stage, hookimpl
from flbench.core.client import LocalWork
from flbench.core.lightning_hooks import HOOKS
from flbench.core.state import Dispatched
from flbench.engine.batches import orders, steps

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
        return [optimizer], [every, falls]

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


class Lbfgs(Recorded):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


MODULES = (
    *(Plain, ByNorm, ByValue, BySteps, ByEpochs, SeveralSchedulers, OneCycle, Plateau, ByHand),
    *(ReadsGradients, OwnSteps, Skips, Stops, Augments, Lbfgs),
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
