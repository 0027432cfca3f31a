"""ClientModule, the LightningModule of a run: local training and prediction of a client.

One ClientModule serves all clients of a run: the executor copies a client's row in, sets what the
client received from the server, trains, and copies the row out. A method changes local training
with the hooks `batch_loss`, `local_term`, `phases` and `report`, which several methods can answer
in one run, or returns a subclass from the hook `client_module`, of which a run has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.layout import ParameterLayout, trained_parameters
from flbench.core.local_training import LocalTraining
from flbench.core.networks import choosing, head_of, heads_of
from flbench.core.targets import NO_CLASS, cross_entropy, losses, task_of
from flbench.core.types import Extras
from flbench.errors import Undefined

# isort: split
from lightning.pytorch import LightningModule  # after torchvision_compat, which it needs here

T = TypeVar("T")


@dataclass(frozen=True)
class LocalPhase:
    """Consecutive epochs in which the same scalars are trained (FedRep: the head, then the body).

    Attributes:
        epochs: epochs of this phase.
        mask: scalars of the row that are trained, shape (W,), bool; None = all. The mask is applied
            to the update, not to the gradient, so momentum and weight decay do not change the
            other scalars.
        batches_per_step: batches per optimiser step in this phase; None = the module's value.
        start: is called with the module when the phase starts, in training mode; for example to
            freeze BatchNorm. None = the module's `on_phase_start`.
    """

    epochs: int
    mask: Tensor | None = None
    batches_per_step: int | None = None
    start: Callable[[ClientModule], None] | None = None


@dataclass(frozen=True)
class Report:
    """What the end of a client's training gives beside the model.

    Attributes:
        sent: what is uploaded: name -> tensor of any shape; NaN = not sent.
        kept: what stays with the client: name of a memory of scope "client" -> the client's entry.
            Entries may differ in length: see `flbench.core.client_memory`.
    """

    sent: Extras = field(default_factory=dict)
    kept: Extras = field(default_factory=dict)


def of_samples(features: Tensor) -> Tensor:
    """Inputs of a head, if they are of samples, shape (b, d), and not of tokens, (b, T, d).

    Raises:
        Undefined: they are of tokens.
    """
    if features.ndim != 2:
        raise Undefined("the network has features of each token, not of each sample")
    return features


class Batch:
    """Samples of one step, and what the client's model makes of them in one forward pass.

    A loss that a method computes at other weights gives `logits` (and `features`) itself.

    Attributes:
        module: the client's module.
        x: samples, shape (b, ...).
        y: labels, shape (b,); for text shape (b, T); of other tasks (`core.targets`) (b, C).
    """

    def __init__(
        self,
        module: ClientModule,
        x: Tensor,
        y: Tensor,
        logits: Tensor | None = None,
        features: Tensor | None = None,
    ) -> None:
        self.module, self.x, self.y = module, x, y
        self._logits, self._features = logits, features

    @property
    def logits(self) -> Tensor:
        """Shape (b, classes); for text (b, T, classes)."""
        if self._logits is None:
            has_head = head_of(self.module.net) is not None
            if self.module.loss_function is not mean_cross_entropy and has_head:
                self._features, self._logits = self.module.head_inputs(self.x)
            else:
                self._logits = self.module(self.x)
        return self._logits

    @property
    def index(self) -> Tensor:
        """Position of each sample among all training samples of the client, shape (b,), int64.

        They are positions in `ctx.client_data(client, "train")`, the same in every round, so what
        is kept per sample can be looked up with them; in a stage that is `pooled`, positions among
        the training samples of all clients, one client after the other.

        Raises:
            Undefined: neither `x` nor `y` is a tensor that the step was given.
        """
        return self.module.numbering.of(self.x, self.y)

    @property
    def features(self) -> Tensor:
        """What enters the head, shape (b, d).

        Raises:
            Undefined: the network has no head, or features of each token and not of a sample, or
                the logits are those of other weights.
        """
        if self._features is None and self._logits is not None:
            raise Undefined("the features of these logits are not known")
        if self._features is None:
            self._features, self._logits = self.module.features(self.x)
        return of_samples(self._features)


@dataclass
class Numbering:
    """Which samples the batches of a step are; executors say it before every step.

    Attributes:
        batches: samples and labels of each batch of the step.
        index: gives the positions of the samples of a batch, by the number of the batch.
    """

    batches: Sequence[tuple[Tensor, Tensor]] = ()
    index: Callable[[int], Tensor] | None = None

    def of(self, x: Tensor, y: Tensor) -> Tensor:
        """Positions of the samples of a batch; see `Batch.index`."""
        for number, (samples, labels) in enumerate(self.batches):
            if (x is samples or y is labels) and self.index is not None:
                return self.index(number)
        raise Undefined(
            "the samples of this batch have no index: expected the x or the y that `training_step`"
            " was given, in a step of local training"
        )


BatchLoss = Callable[[Batch], Tensor]
"""The loss of a batch, a scalar in nats."""
Term = Callable[["ClientModule"], Tensor]
"""A scalar that is added to the loss of a batch."""
PhaseRule = Callable[["ClientModule", int], Sequence[LocalPhase]]
"""Divides a number of epochs into phases."""
Reporter = Callable[["ClientModule", Tensor, Tensor], Report]
"""What a client reports after training on samples and labels."""


def mean_cross_entropy(batch: Batch) -> Tensor:
    """The default loss, that of the task (`cross_entropy`), of the model's logits."""
    return cross_entropy(batch.logits, batch.y)


def module_phases(module: ClientModule, epochs: int) -> Sequence[LocalPhase]:
    """The default phases: those of the module."""
    return module.phases(epochs)


@dataclass(frozen=True)
class LocalWork:
    """What the hooks of a run's methods add to the local training of one stage.

    Attributes:
        loss: the loss of a batch, for modules whose `training_step` takes it (`batch_loss`).
        provided_by: the plugin whose loss it is.
        phases: the phases of a number of epochs.
        terms: are added to every batch's loss.
        reports: what clients report beside `ClientModule.on_local_end`.
    """

    loss: BatchLoss = mean_cross_entropy
    provided_by: str = ""
    phases: PhaseRule = module_phases
    terms: Sequence[Term] = ()
    reports: Sequence[Reporter] = ()


class NotReceived(KeyError):
    """A client's module asked for a tensor that it does not have."""

    def __str__(self) -> str:
        """The message without the quotation marks of a KeyError."""
        return str(self.args[0])


class Received(dict[str, Tensor]):
    """Tensors of one client by name; asking for another name is an error that says why.

    Args:
        tensors: by name.
        where: what the module is used for.
    """

    def __init__(self, tensors: Mapping[str, Tensor] | None = None, where: str = "yet") -> None:
        super().__init__(tensors or {})
        self.where = where

    def __missing__(self, name: str) -> Tensor:
        held = ", ".join(sorted(self)) or "nothing"
        raise NotReceived(f"`received` has no '{name}' {self.where}; it holds {held}")


TRAINING = "in this stage's training (`Start.extras` and `Start.client_memory` fill it)"
EVALUATION = "in evaluation (`Personal.extras` fills it)"
SERVER = "at the server, where a model is used without a client"


class ClientModule(LightningModule):
    """The loss of the task with the suite's optimiser; the base of every local objective.

    Attributes:
        net: the network, shared by all clients.
        local: the suite's settings of local training: epochs, batch size, learning rate, ...
        received: tensors of this client: those that the server sent (`Start.extras`) and those of
            its own memory (`Start.client_memory`).
        start: the row this client started from, shape (W,).
        steps: optimiser steps made since then, for `on_local_end`.
        provided_by: the plugin that returned this module from `client_module`.
        layout: places of its tensors in a row.
        loss_function: the loss of a batch in this stage, set by the executor.
        loss_was_used: whether a step took it.
        numbering: the numbers of the samples of a step, set by the executor.
    """

    batches_per_step: ClassVar[int] = 1
    """Batches per optimiser step; above 1, `batch` is a tuple of batches (Per-FedAvg)."""

    def __init__(self, net: nn.Module, local: LocalTraining) -> None:
        super().__init__()
        self.net = net
        self.local = local
        self.received = Received()
        self.start = torch.empty(0)
        self.steps = 0
        self.provided_by = ""
        self.layout: ParameterLayout | None = None
        self.loss_function: BatchLoss = mean_cross_entropy
        self.loss_was_used = False
        self.numbering = Numbering()

    def forward(self, x: Tensor) -> Any:  # noqa: ANN401 - Lightning leaves the output open
        """Return the logits of samples `x`, shape (b, classes); for text (b, T, classes)."""
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401 - see above
        """Return the loss of one `batch`, (x, y), a scalar in nats.

        Args:
            batch: samples and labels; a tuple of such pairs where a step takes several batches.
            batch_idx: number of the step within its epoch, from 0.
        """
        x, y = batch
        return self.batch_loss(Batch(self, x, y))

    def batch_loss(self, batch: Batch) -> Tensor:
        """The loss of a batch, a scalar: cross-entropy, or what the hook `batch_loss` says.

        A module with a `training_step` of its own takes the part of its loss that is learnt from
        labels from here, so that another method's loss can replace it.
        """
        if not self.loss_was_used:
            self.loss_was_used = True
        return self.loss_function(batch)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the head, shape (b, d), and the logits, shape (b, classes).

        The head is the network's last `nn.Linear`; of several networks, that of the client's.

        Args:
            x: samples, shape (b, ...).

        Raises:
            Undefined: the network has no head, or features of each token and not of a sample.
        """
        features, logits = self.head_inputs(x)
        return of_samples(features), logits

    def head_inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `features`, and of text the input of the head for each token, shape (b, T, d).

        Raises:
            Undefined: the network has no head.
        """
        head_inputs: list[Tensor] = []
        hooks = [
            self.net.get_submodule(name).register_forward_pre_hook(
                lambda _, inputs: head_inputs.append(inputs[0])
            )
            for name in heads_of(self.net)
        ]
        try:
            # Not the compiled forward, which would not call the hooks.
            logits: Tensor = type(self).forward(self, x)
        finally:
            for hook in hooks:
                hook.remove()
        if not head_inputs:
            raise Undefined("the network has no head: no part of it is an nn.Linear")
        return head_inputs[0], logits

    def predict(self, x: Tensor) -> Tensor:
        """Return the logits that are evaluated for samples `x`, shape (b, classes)."""
        logits: Tensor = self(x)
        return logits

    def measure(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return loss sum, number correct and number of predictions per sample, shape (b, 3).

        A sample has one prediction; a text sample has one per token. A label of -100 is none.
        Numbers and labels are not right or wrong: of these, none is correct.

        Args:
            logits: shape (b, classes); for text (b, T, classes).
            y: labels, shape (b,); for text the next tokens, shape (b, T); of other tasks (b, C).
        """
        loss = losses(logits, y)
        if task_of(y) != "classes":
            return torch.stack([loss, torch.zeros_like(loss), torch.ones_like(loss)], dim=1)
        correct = (logits.argmax(dim=-1) == y).to(loss.dtype)
        table = torch.stack([loss, correct, (y != NO_CLASS).to(loss.dtype)], dim=1)
        return table.unsqueeze(-1).flatten(2).sum(dim=2)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser; the executor clears its state before every client."""
        rule = self.local
        weights = list(trained_parameters(self).values())
        if rule.optimizer == "adam":
            return torch.optim.Adam(weights, lr=rule.lr, weight_decay=rule.weight_decay, fused=True)
        if rule.optimizer == "adamw":
            return torch.optim.AdamW(
                weights, lr=rule.lr, weight_decay=rule.weight_decay, fused=True
            )
        if rule.optimizer == "rmsprop":
            return torch.optim.RMSprop(
                weights, lr=rule.lr, momentum=rule.momentum, weight_decay=rule.weight_decay
            )
        return torch.optim.SGD(
            weights,
            lr=rule.lr,
            momentum=rule.momentum,
            weight_decay=rule.weight_decay,
            fused=True,
        )

    def phases(self, epochs: int) -> Sequence[LocalPhase]:
        """Divide the stage's epochs into phases; the phases' epochs sum to `epochs`."""
        return (LocalPhase(epochs),)

    def on_phase_start(self, number: int) -> None:
        """Prepare phase `number`, from 0, in training mode; for example freeze BatchNorm here."""

    def on_local_end(self, x: Tensor, y: Tensor) -> Extras:
        """Return what to upload beside the parameters: name -> tensor of any shape, NaN = not sent.

        Args:
            x: the client's training samples, shape (m, ...).
            y: their labels, shape (m,); for text shape (m, T).
        """
        return {}

    def with_row(self, row: Tensor, function: Callable[..., Tensor], *arguments: object) -> Tensor:
        """Call a function of this module while it has another model.

        Gradients flow to `row`; the module's own model and its buffers stay as they are.

        Args:
            row: the other model, shape (W,).
            function: such as `self.features`, or any that uses this module.
            *arguments: of the function.
        """
        if self.layout is None:
            raise Undefined("the module's layout is known from the first stage on")
        tensors = self.layout.unflatten(row.clone())
        with choosing(self.net, None):  # the other model may have another network
            return ModuleCall(self, function).with_tensors(tensors, *arguments)

    def row(self) -> Tensor:
        """A copy of the module's model, buffers included, shape (W,)."""
        if self.layout is None:
            raise Undefined("the module's layout is known from the first stage on")
        return self.layout.flatten(self)

    def flat(self) -> Tensor:
        """Return the trainable parameters as one differentiable vector, shape (P,)."""
        return torch.cat([p.reshape(-1) for p in trained_parameters(self).values()])


class ModuleCall(nn.Module, Generic[T]):
    """A function of a ClientModule as a module of its own, as `functional_call` needs."""

    function: Callable[..., T]

    def __init__(self, module: ClientModule, function: Callable[..., T]) -> None:
        super().__init__()
        self.module = module
        vars(self)["function"] = function  # not a second submodule, if it is the module itself

    def forward(self, *arguments: object) -> T:
        """Call the function."""
        return self.function(*arguments)

    def with_tensors(self, tensors: Mapping[str, Tensor], *arguments: object) -> T:
        """Call the function with other parameters and buffers of the ClientModule."""
        named = {f"module.{name}": tensor for name, tensor in tensors.items()}
        result: T = functional_call(self, named, arguments)
        return result
