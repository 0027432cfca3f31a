"""ClientModule: local training and prediction of a client.

One ClientModule serves all clients of a run: the executor copies a client's row in, sets what the
client received from the server, trains, and copies the row out. A method that changes the local
objective returns a subclass from the hook `client_module`, or adds a term to the loss with the hook
`local_term`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.layout import head_of
from flbench.core.local_training import LocalTraining
from flbench.core.types import Extras
from flbench.errors import Undefined

# isort: split
from lightning.pytorch import LightningModule  # after torchvision_compat, which it needs


@dataclass(frozen=True)
class LocalPhase:
    """Consecutive epochs in which the same scalars are trained (FedRep: the head, then the body).

    Attributes:
        epochs: epochs of this phase.
        mask: scalars of the row that are trained, shape (W,), bool; None = all. The mask is applied
            to the update, not to the gradient, so momentum and weight decay do not change the
            other scalars.
        batches_per_step: batches per optimiser step in this phase; None = the module's value.
    """

    epochs: int
    mask: Tensor | None = None
    batches_per_step: int | None = None


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy in nats, a scalar; the mean is over samples, for text over tokens.

    Args:
        logits: shape (b, C), or (b, T, C).
        y: labels, shape (b,), or next tokens, shape (b, T).
    """
    return F.cross_entropy(logits.movedim(-1, 1), y)


class ClientModule(LightningModule):
    """Cross-entropy classification with SGD or Adam; the base of every local objective.

    Attributes:
        net: the network, shared by all clients.
        local: the suite's settings of local training: epochs, batch size, learning rate, ...
        received: tensors of this client: those that the server sent (`Start.extras`) and those of
            its own memory (`Start.client_memory`).
        start: the row this client started from, shape (W,).
        steps: optimiser steps made since then, for `on_local_end`.
        provided_by: the plugin that returned this module from `client_module`.
    """

    batches_per_step: ClassVar[int] = 1
    """Batches per optimiser step; above 1, `batch` is a tuple of batches (Per-FedAvg)."""

    def __init__(self, net: nn.Module, local: LocalTraining) -> None:
        super().__init__()
        self.net = net
        self.local = local
        self.received: dict[str, Tensor] = {}
        self.start = torch.empty(0)
        self.steps = 0
        self.provided_by = ""

    def forward(self, x: Tensor) -> Any:  # noqa: ANN401 - Lightning leaves the output open
        """Return the logits of samples `x`, shape (b, classes); for text (b, T, classes)."""
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401 - see above
        """Return the loss of one `batch`, (x, y), a scalar in nats.

        Args:
            batch: samples and labels; a tuple of such pairs where a step takes several batches.
            batch_idx: number of the step within its phase, from 0.
        """
        x, y = batch
        return cross_entropy(self(x), y)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the head, shape (b, d), and the logits, shape (b, classes).

        The head is the network's last `nn.Linear`.

        Args:
            x: samples, shape (b, ...).

        Raises:
            Undefined: the network has no head.
        """
        head_inputs: list[Tensor] = []
        name = head_of(self.net)
        if name is None:
            raise Undefined("the network has no head: no part of it is an nn.Linear")
        hook = self.net.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs: head_inputs.append(inputs[0])
        )
        try:
            # Not the compiled forward, which would not call the hook.
            logits: Tensor = type(self).forward(self, x)
        finally:
            hook.remove()
        return head_inputs[0], logits

    def predict(self, x: Tensor) -> Tensor:
        """Return the logits that are evaluated for samples `x`, shape (b, classes)."""
        logits: Tensor = self(x)
        return logits

    def measure(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return loss sum, number correct and number of predictions per sample, shape (b, 3).

        A sample has one prediction; a text sample has one per token.

        Args:
            logits: shape (b, classes); for text (b, T, classes).
            y: labels, shape (b,); for text the next tokens, shape (b, T).
        """
        loss = F.cross_entropy(logits.movedim(-1, 1), y, reduction="none")
        correct = (logits.argmax(dim=-1) == y).to(loss.dtype)
        table = torch.stack([loss, correct, torch.ones_like(loss)], dim=1)
        return table.unsqueeze(-1).flatten(2).sum(dim=2)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser; the executor clears its state before every client."""
        rule = self.local
        weights = list(self.parameters())
        if rule.optimizer == "adam":
            return torch.optim.Adam(weights, lr=rule.lr, weight_decay=rule.weight_decay, fused=True)
        if rule.optimizer == "adamw":
            return torch.optim.AdamW(
                weights, lr=rule.lr, weight_decay=rule.weight_decay, fused=True
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

    def flat(self) -> Tensor:
        """Return the trainable parameters as one differentiable vector, shape (P,)."""
        return torch.cat([parameter.reshape(-1) for parameter in self.parameters()])
