"""LocalTraining: the settings of a suite for local training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainSerializer

from flbench.core.effect import only_with
from flbench.results.hashed_fields import LATER


def in_fewest_digits(number: float) -> float:
    """A number as it is hashed and written: one without a fraction is whole.

    Example:
        >>> in_fewest_digits(5.0), in_fewest_digits(1.5)
        (5, 1.5)
    """
    return int(number) if number == int(number) else number


Epochs = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    AfterValidator(in_fewest_digits),
    PlainSerializer(in_fewest_digits, return_type=int | float),
]


@dataclass(frozen=True)
class LocalTraining:
    """The settings of local training, for all clients whose ClientModule does not change them.

    Attributes:
        epochs: passes over the client's training samples. Of a fraction of a pass the first steps
            are made, as many as its share rounded down; a client makes one step at least.
        batch_size: samples per batch; the last batch of an epoch may be smaller.
        lr: learning rate.
        momentum: momentum of SGD and RMSprop.
        weight_decay: L2 penalty, decoupled with "adamw".
        optimizer: name of the optimiser; its state is reset for every client and stage.
        lr_decay: factor of the learning rate from one round to the next.
        drop_last: leave a smaller last batch out, unless it is the only one.
        clip_norm: largest norm of the gradient of a step, over all scalars that are trained; 0 =
            not clipped.
    """

    epochs: Epochs = 5
    batch_size: Annotated[int, Field(ge=1)] = 32
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1), only_with("optimizer", "sgd", "rmsprop")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    optimizer: Literal["sgd", "adam", "adamw", "rmsprop"] = "sgd"
    lr_decay: Annotated[float, Field(gt=0, le=1), LATER] = 1.0
    drop_last: Annotated[bool, LATER] = False
    clip_norm: Annotated[float, Field(ge=0, allow_inf_nan=False), LATER] = 0.0

    def at(self, round_: int) -> LocalTraining:
        """The settings of a round, 1-based; 0 = before the first."""
        if self.lr_decay == 1:
            return self
        return replace(self, lr=self.lr * self.lr_decay ** max(0, round_ - 1))
