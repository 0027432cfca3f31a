"""Context: everything a method may know about the run, and what it may ask of it.

A hook gets the context of its round. It holds no test sample and no true group; `true_groups`
answers only to a method that declares `uses_true_groups = True`, and the result then says so.
A run implements it in `flbench.run.context`; a test of a plugin can implement it with numbers of
its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flbench.core import seeding
from flbench.core.knowledge import SAMPLES, known_as
from flbench.core.layout import ParameterLayout
from flbench.core.local_training import LocalTraining
from flbench.core.state import Stage
from flbench.core.types import Direction, Plain
from flbench.errors import Undefined
from flbench.tasks import TaskName

Split = Literal["train", "validation"]


def needs_classes(ctx: Context, what: str) -> None:
    """Refuse to say of classes what samples without classes do not have.

    Raises:
        Undefined: the task of the data set is another one.
    """
    if ctx.task != "classes":
        raise Undefined(f"it needs classes ({what}), and the task of the data set is '{ctx.task}'")


@known_as(needs_classes, label_counts="label counts", classes="")
@known_as(samples=SAMPLES)
@dataclass(frozen=True)
class Context(ABC):
    """The run as a method sees it in one round.

    `samples` and `label_counts` are known to the server at no cost; the result says whether hooks
    have read them (`flbench.core.knowledge`).

    Attributes:
        seed: the run's seed.
        round: the current round, 1-based; 0 during `setup`.
        rounds: R, rounds of the run.
        clients: N.
        cohort: ids sampled this round, ascending, shape (n,).
        samples: training samples per client, shape (N,), int64.
        label_counts: training samples per client and label, shape (N, C), int32. Where the task
            is not `classes`, who reads it or `classes` is undefined.
        classes: C.
        layout: places and masks of the row.
        initial: the common initial weights, shape (W,).
        local: the suite's local training.
        newcomers: M, clients that will join after the last round; their ids will be N..N+M-1. In
            the hook `join`, `samples`, `label_counts`, `evaluate`, `client_data` and `true_groups`
            know them too; memories do not.
        row_per_client: whether the method says that every client has a model of its own.
        pools_data: whether the method may train on the union of all clients' samples.
        names: what each client is called in random addresses; None = its id.
        networks: number of each client's network, shape (N,), int64, or (N + M,) while newcomers
            join; None = the suite has one network.
        task: what is predicted: one class of several, numbers, or any number of labels.
    """

    seed: int
    round: int
    rounds: int
    clients: int
    cohort: Tensor
    samples: Tensor
    label_counts: Tensor
    classes: int
    layout: ParameterLayout
    initial: Tensor
    local: LocalTraining
    newcomers: int = 0
    row_per_client: bool = False
    pools_data: bool = False
    names: tuple[int, ...] | None = None
    networks: Tensor | None = None
    task: TaskName = "classes"

    @property
    def outputs(self) -> int:
        """Outputs of a network: C classes, or so many numbers or labels."""
        found: int = vars(self)["classes"]
        return found

    @property
    def everybody(self) -> Tensor:
        """Ids of all clients, shape (N,), int64."""
        return torch.arange(self.clients)

    def initial_rows(self, clients: Tensor) -> Tensor:
        """The initial weights of some clients' own networks, ids of shape (n,): shape (n, W).

        With one network, all of them are `initial`.
        """
        if self.networks is None:
            return self.initial.expand(len(clients), -1)
        return self.layout.with_network(self.initial, self.networks[clients])

    def own_label_counts(self, clients: Tensor) -> Tensor:
        """What each of some clients, ids of shape (n,), knows of its own labels: shape (n, C).

        For what a client itself makes of them (`Start.client_memory`, a margin of its loss), or
        sends of them (`send`): nobody else reads them at no byte. In the kit nothing but the
        client's own part may depend on them unless it sends something beside its model.
        """
        needs_classes(self, "own_label_counts")
        counts: Tensor = vars(self)["label_counts"]
        return counts[clients]

    def rng(
        self, purpose: str, *address: int | str, client: int | tuple[int, int] | None = None
    ) -> np.random.Generator:
        """A generator of the method's own: `ctx.rng("kmeans", ctx.round)` (see seeding).

        Args:
            purpose: what the numbers are for.
            *address: where they are drawn: round, stage, ...
            client: whose they are, if they are a client's; they follow it when ids change. Of a
                pair of clients, both: a key that the two share, whichever is named first.
        """
        if client is not None:
            owners = client if isinstance(client, tuple) else (client,)
            known = dict(enumerate(self.names or ()))
            address = (*address, *sorted(known.get(owner, owner) for owner in owners))
        return seeding.rng(self.seed, "method", purpose, *address)

    @abstractmethod
    def evaluate(
        self,
        models: Tensor,
        clients: Tensor,
        split: Split = "validation",
    ) -> Tensor:
        """Cross-evaluation: the mean loss of every model on every client's split.

        It moves no bytes by itself; say what crosses with `send`.

        Args:
            models: rows, shape (m, W).
            clients: ids, shape (n,).
            split: whose samples.

        Returns:
            Losses in nats, shape (n, m), float64; row i = client `clients[i]`.

        Raises:
            UserError: another split; test samples are out of reach.
        """

    @abstractmethod
    def train(self, models: Tensor, clients: Tensor, epochs: int | None = None) -> Tensor:
        """Let newcomers train locally, so that a rule that looks at trained models can see one.

        It is the stage "join": the methods' loss and phases, without terms or extras. Nothing that
        it does changes the state. What joining costs is not part of the training's bytes.

        Args:
            models: what each starts from, shape (W,) or (n, W).
            clients: ids of newcomers, shape (n,).
            epochs: local epochs; None = the suite's.

        Returns:
            The trained models, shape (n, W).

        Raises:
            UserError: it is not called in `join`.
        """

    @abstractmethod
    def durations(
        self, stage: Stage, bits_down: int | None = None, bits_up: int | None = None
    ) -> Tensor:
        """How long the clients of a stage take from a call to the arrival of their uploads.

        It is known in advance, so without what phases of a method or `encode` change.

        Args:
            stage: who trains how much; `started` does not matter.
            bits_down: what each of them receives; None = a whole model, 32 bits a scalar.
            bits_up: what each of them sends; None = a whole model.

        Returns:
            Seconds of simulated time, shape (n,), float64.

        Raises:
            Undefined: the suite has no clock.
        """

    @abstractmethod
    def client_data(self, client: int, split: Split = "train") -> tuple[Tensor, Tensor]:
        """Samples and labels of one client, for what a method computes at the client (FedC2I).

        Args:
            client: its id.
            split: which of its samples, m of them.

        Returns:
            Samples, shape (m, ...), and labels, shape (m,); of text both have shape (m, T). Of
            other tasks numbers in deviations, float32, or whether a sample has each label, int8,
            shape (m, C).

        Raises:
            UserError: another split; test samples are out of reach.
        """

    @abstractmethod
    def server_data(self) -> tuple[Tensor, Tensor]:
        """Samples and labels that the server owns, shapes as in `client_data` (FLIS).

        Raises:
            Undefined: the suite's `server_samples` is 0.
        """

    @abstractmethod
    def logits(self, models: Tensor, x: Tensor) -> Tensor:
        """Logits of `models`, shape (m, W), on samples `x`, shape (b, ...): shape (m, b, C).

        BatchNorm uses the statistics in these rows, here as in `forward` and `features`; those of a
        client, where they stay with it, are used by `evaluate` only.

        Raises:
            Undefined: samples have no classes; what models say of them, `forward` gives.
        """

    @abstractmethod
    def forward(self, models: Tensor, x: Tensor) -> Tensor:
        """Logits as `logits` gives them, of which gradients can be taken: (m, W) -> (m, b, C).

        Of other tasks, the numbers that are predicted, or a logit for each label.

        Gradients flow to the trainable scalars of `models` and to `x`, so that the server can
        learn (`fl.minimise`) on samples that are labelled, unlabelled or generated.
        """

    @abstractmethod
    def features(self, models: Tensor, x: Tensor) -> Tensor:
        """What enters the head of `models`, shape (m, W), on samples `x`, (b, ...): (m, b, d).

        Raises:
            Undefined: the network has no head, or features of each token and not of a sample.
        """

    @abstractmethod
    def fresh_initial(self, index: int) -> Tensor:
        """Initial weights other than `initial`, one set per `index` >= 1, shape (W,) (IFCA)."""

    @abstractmethod
    def repeated(self, row: Tensor, times: int | None = None) -> Tensor:
        """A table of equal rows for `setup`, such as one model per client.

        It is a tensor of shape (times, W), but a row takes memory only when it is written, and past
        the run's budget it lies in a file (`flbench.core.model_bank.ModelBank`).

        Args:
            row: shape (W,).
            times: None = one for each client.
        """

    @abstractmethod
    def send(
        self,
        direction: Direction,
        clients: Tensor,
        item: str,
        scalars: Tensor | int,
        bits: int = 32,
    ) -> None:
        """Count something that crosses beside `Start` and `Upload`.

        Args:
            direction: "down" (server to client), "up", or "peer" (client to client); with edge
                servers, both ways, "client-edge" or "edge-cloud".
            clients: ids at the client end (the receivers of "peer"; the edges, numbered from 0, of
                "edge-cloud"), shape (n,).
            item: name in the ledger.
            scalars: how many scalars each of them moves, shape (n,), or one number for all.
            bits: size of a scalar.
        """

    @abstractmethod
    def send_models(self, clients: Tensor, models: Tensor) -> None:
        """Send whole `models`, shape (m, W), to each of some `clients`, ids of shape (n,) (IFCA).

        A model that a client holds already is not counted again when it starts from it in the
        same round.
        """

    @abstractmethod
    def sent(self, direction: Direction) -> frozenset[str]:
        """Names of what crossed in a `direction` since the run began: "model", extras, items."""

    @abstractmethod
    def note(self, name: str, value: Plain) -> None:
        """Keep a plain `value` in this round's record under "<method>.`name`"."""

    @abstractmethod
    def warn(self, message: str) -> None:
        """Tell the person a `message`, one line they should know; it is kept in the result."""

    @property
    @abstractmethod
    def true_groups(self) -> Tensor:
        """True group of each client, shape (N,), for methods that openly use the truth.

        Raises:
            UserError: the method does not declare `uses_true_groups`.
            Undefined: there are no groups.
        """
