"""The data of a run that hooks receive and return: frozen dataclasses, with their shapes.

Letters in all shapes: N clients of the federation, n clients acting in a stage, K models in the
server's bank, c candidate models per client, P trainable scalars, B buffer scalars, W = P + B the
width of a row. Client ids are int64; model rows are float32; scores and losses are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from flbench.core.knowledge import SAMPLES, known_as
from flbench.core.model_bank import take
from flbench.core.per_client import FOR_ALL, MASKS, PER_CLIENT, OfClients, all_marked
from flbench.core.types import STAGE_KINDS, Extras, Kind, Scope

if TYPE_CHECKING:
    from flbench.core.client_module import ClientModule


@dataclass(frozen=True)
class Membership:
    """The model of each client, and the weights with which each model averages the uploads.

    Attributes:
        home: row of each client's model, shape (N,), int64; -1 = undecided.
        weights: share of client j in row k, shape (K, N), >= 0; rows may overlap. None = one-hot
            of `home`. The default `aggregate` multiplies it by the clients' weights (samples).
        parent: where `cluster` changes the rows: the old row each new row is copied from, shape
            (K,).
        memory: new values of the method's memory, "<method>.<name>" -> tensor.
        models: where `cluster` computes the rows itself: the new bank, shape (K, W); `parent` then
            only says whose memory of scope "model" each row continues.
    """

    home: Tensor
    weights: Tensor | None = None
    parent: Tensor | None = None
    memory: Extras = field(default_factory=dict)
    models: Tensor | None = None

    def shares(self, ids: Tensor, rows: int) -> Tensor:
        """Shares of clients `ids`, shape (n,), in rows 0..rows-1: shape (rows, n), float64."""
        if self.weights is not None:
            return self.weights[:, ids].double()
        return (self.home[ids] == torch.arange(rows)[:, None]).double()

    def labels(self) -> Tensor:
        """Group label of each client, shape (N,): clients with equal models have equal labels.

        With `weights`, two clients are in one group if their rows average the same clients with
        the same weights, so that a peer-to-peer selection can be compared with a partition.
        """
        if self.weights is None:
            return self.home
        labels: Tensor = torch.unique(self.weights[self.home], dim=0, return_inverse=True)[1]
        return torch.where(self.home < 0, self.home, labels)


@dataclass(frozen=True)
class State:
    """The complete state of a run between two rounds; a checkpoint saves it.

    Attributes:
        round: number of completed rounds.
        models: the server's bank, shape (K, W); where each client has a row of its own, a
            `flbench.core.model_bank.ModelBank`.
        membership: which client uses which row.
        memory: memory of the methods, "<method>.<name>" -> tensor.
        scopes: first dimension of each memory: "run" (none), "model" (K), "client" (N).
        seconds: simulated time; 0 where the suite has no clock.
    """

    round: int
    models: Tensor
    membership: Membership
    memory: Extras = field(default_factory=dict)
    scopes: Mapping[str, Scope] = field(default_factory=dict)
    seconds: float = 0.0

    def remember(self, memory: Extras) -> State:
        """Return the state with the memories that `memory` names replaced."""
        return replace(self, memory={**self.memory, **memory}) if memory else self

    def regroup(self, membership: Membership | None) -> State:
        """Return the state under a new membership.

        Where `membership.parent` is given, models and all memory of scope "model" are re-indexed
        by it, so that every new group continues with the state of its parent. Where
        `membership.models` is given, it becomes the bank.
        """
        if membership is None:
            return self
        models, memory = self.models, dict(self.memory)
        if membership.parent is not None:
            models = take(models, membership.parent)
            for name, scope in self.scopes.items():
                if scope == "model":
                    memory[name] = take(memory[name], membership.parent)
        if membership.models is not None:
            models = membership.models
        memory.update(membership.memory)
        settled = replace(membership, parent=None, memory={}, models=None)
        return replace(self, models=models, membership=settled, memory=memory)


@dataclass(frozen=True)
class Memory:
    """A value that a method keeps between rounds.

    Attributes:
        value: at first, of any shape; for the scope "model" shape (K, ...), or (1, ...) for all
            rows; for the scope "client" shape (N, ...).
        scope: "run", "model" (an entry per row of the bank) or "client" (an entry per client).
    """

    value: Tensor
    scope: Scope = "run"


@dataclass(frozen=True)
class Needs:
    """What a method needs that grows faster than the number of clients, at the least.

    Attributes:
        evaluations: of one model on one client's validation samples (`ctx.evaluate`), in the run.
        operations: multiplications with additions beside these, in the run.
        scalars: that are in memory at once, of 4 bytes.
    """

    evaluations: float = 0
    operations: float = 0
    scalars: float = 0


@dataclass(frozen=True)
class Setup:
    """What a method adds to the state before round 1; the results of all plugins are merged.

    Attributes:
        models: the first bank, shape (K, W); None = one row, the common initial weights.
        membership: the first membership; None = all clients use row 0.
        memory: "<method>.<name>" -> Memory.
    """

    models: Tensor | None = None
    membership: Membership | None = None
    memory: Mapping[str, Memory] = field(default_factory=dict)


@all_marked
@dataclass(frozen=True)
class Stage(OfClients):
    """One piece of work inside a round.

    Attributes:
        kind: "train" (uploads are aggregated), "probe" (they are not), "trial" (several candidates
            per client, aggregated), "join" (newcomers; the state is frozen); see `STAGE_KINDS`.
        clients: ids of the acting clients, ascending, shape (n,).
        epochs: local epochs, one number or one per client, shape (n,); 0 = nobody moves. Of a
            fraction of an epoch the first steps are made, rounded down, at least one in all.
        name: part of the batches' address; two stages of one round need two names,
            or no client in common.
        samples: train on a fixed random subset of this many samples; None = all.
        losses: also measure each candidate's loss on the client's training split, before and after.
        pooled: train on the union of all clients' training samples instead of the client's own;
            only for a method that declares `pools_data = True`.
        steps: most optimiser steps, one number or one per client, shape (n,); None = no limit.
        lr: learning rate in place of the suite's, one number or one per client, shape (n,).
        started: for asynchronous methods: the simulated time at which each client was called,
            seconds, shape (n,), float64; None = now, and the server waits for the uploads.
        edges: the edge server that each client talks to, 0 or more, shape (n,), int64: what it
            receives and sends in the stage is counted as "client-edge". None = the server itself.
    """

    kind: Kind = field(metadata=FOR_ALL)
    clients: Tensor = field(metadata=PER_CLIENT)
    epochs: float | Tensor = field(metadata=PER_CLIENT)
    name: str = field(default="", metadata=FOR_ALL)
    samples: int | None = field(default=None, metadata=FOR_ALL)
    losses: bool = field(default=False, metadata=FOR_ALL)
    pooled: bool = field(default=False, metadata=FOR_ALL)
    steps: int | Tensor | None = field(default=None, metadata=PER_CLIENT)
    lr: float | Tensor | None = field(default=None, metadata=PER_CLIENT)
    started: Tensor | None = field(default=None, metadata=PER_CLIENT)
    edges: Tensor | None = field(default=None, metadata=PER_CLIENT)

    def schedule(self, position: int) -> Schedule:
        """The schedule of the acting client at a position."""
        epochs, steps, lr = (_entry(it, position) for it in (self.epochs, self.steps, self.lr))
        return Schedule(
            epochs=float(epochs),
            limit=None if steps is None else int(steps),
            lr=None if lr is None else float(lr),
        )

    def schedules(self, count: int) -> list[Schedule]:
        """The schedules of the first acting clients."""
        if any(isinstance(value, Tensor) for value in (self.epochs, self.steps, self.lr)):
            return [self.schedule(position) for position in range(count)]
        return [self.schedule(0)] * count

    @property
    def label(self) -> str:
        """The stage's name, or its kind where it has none."""
        return self.name or self.kind

    @property
    def aggregates(self) -> bool:
        """Whether the bank is aggregated from the stage's uploads."""
        return STAGE_KINDS[self.kind].aggregates

    @property
    def uses_local_terms(self) -> bool:
        """Whether methods add terms to the local objective."""
        return STAGE_KINDS[self.kind].uses_local_terms


def _entry(value: Any, at: int) -> Any:  # noqa: ANN401 - a number, a tensor or None
    """One client's value; a number, a tensor without dimensions and None hold for all."""
    return value[at] if isinstance(value, Tensor) and value.ndim else value


@dataclass(frozen=True)
class Schedule:
    """How long one client trains in a stage, and how fast.

    Attributes:
        epochs: local epochs; the steps of a last, incomplete epoch are its first ones.
        limit: most optimiser steps; None = no limit.
        lr: learning rate; None = the suite's.
    """

    epochs: float
    limit: int | None = None
    lr: float | None = None

    @property
    def whole_epochs(self) -> int:
        """Epochs that are begun."""
        return math.ceil(self.epochs)

    def most_steps(self, steps: int) -> int:
        """Most optimiser steps, where `steps` are made in `whole_epochs`."""
        fraction = self.epochs / max(1, self.whole_epochs)
        made = math.floor(steps * fraction + 1e-9)  # .29 of 100 steps are 29
        if self.epochs > 0:
            made = max(made, min(steps, 1))
        return made if self.limit is None else min(made, self.limit)


@all_marked
@dataclass(frozen=True)
class Start(OfClients):
    """What each acting client starts from and receives; results are merged field by field.

    Attributes:
        params: models to train, shape (n, c, W).
        active: which candidates are trained, shape (n, c), bool; None = all.
        rows: the row of the bank that each candidate belongs to, shape (c,); None = the candidates
            are alternatives, of which each client keeps one.
        sent_mask: scalars sent to the clients, shape (W,) or (n, W), bool; None = all.
        returned_mask: scalars sent back after training, shape as `sent_mask`; None = the same.
        trained_mask: scalars that training changes, shape as `sent_mask`; None = all.
        extras: tensors sent by the server, name -> (n, ...); their bytes are counted, NaN = not
            sent.
        client_memory: tensors that the clients themselves store, name -> (n, ...); not counted.
        server_mask: scalars that live at the server, whole tensors, shape as `sent_mask`; None =
            none. They are neither sent nor returned, and the server knows what training makes of
            them; activations at the cut and their gradients cross at each step, and are counted.
    """

    params: Tensor | None = field(default=None, metadata=PER_CLIENT)
    active: Tensor | None = field(default=None, metadata=PER_CLIENT)
    rows: Tensor | None = field(default=None, metadata=FOR_ALL)
    sent_mask: Tensor | None = field(default=None, metadata=MASKS)
    returned_mask: Tensor | None = field(default=None, metadata=MASKS)
    trained_mask: Tensor | None = field(default=None, metadata=MASKS)
    extras: Extras = field(default_factory=dict, metadata=PER_CLIENT)
    client_memory: Extras = field(default_factory=dict, metadata=PER_CLIENT)
    server_mask: Tensor | None = field(default=None, metadata=MASKS)


@all_marked
@dataclass(frozen=True)
class Dispatched(OfClients):
    """A `Start` with all fields filled in, as executors receive it.

    Masks have shape (n, W); `rows`, `trained_mask` and `server_mask` may be None. What lives at the
    server is in neither `sent_mask` nor `returned_mask`.
    """

    params: Tensor = field(metadata=PER_CLIENT)
    active: Tensor = field(metadata=PER_CLIENT)
    rows: Tensor | None = field(metadata=FOR_ALL)
    sent_mask: Tensor = field(metadata=PER_CLIENT)
    returned_mask: Tensor = field(metadata=PER_CLIENT)
    trained_mask: Tensor | None = field(default=None, metadata=PER_CLIENT)
    extras: Extras = field(default_factory=dict, metadata=PER_CLIENT)
    client_memory: Extras = field(default_factory=dict, metadata=PER_CLIENT)
    server_mask: Tensor | None = field(default=None, metadata=PER_CLIENT)

    @property
    def at_server(self) -> Tensor:
        """What lives at the server, shape (n, W), bool; without a `server_mask` all False."""
        if self.server_mask is None:
            return torch.zeros(1, dtype=torch.bool).expand_as(self.sent_mask)
        return self.server_mask

    def within(self, own: Tensor) -> Dispatched:
        """Nothing outside of a mask, shape (n, W), is sent, returned or trained."""
        own = own.to(self.sent_mask.device)
        trained = own if self.trained_mask is None else self.trained_mask.to(own.device) & own
        at_server = None if self.server_mask is None else self.server_mask.to(own.device) & own
        return replace(
            self,
            sent_mask=self.sent_mask & own,
            returned_mask=self.returned_mask & own,
            trained_mask=trained,
            server_mask=at_server,
        )

    @classmethod
    def whole(cls, models: Tensor, client_memory: Extras | None = None) -> Dispatched:
        """One model per client, shape (n, W), of which every scalar is sent and returned."""
        mask = torch.ones(models.shape, dtype=torch.bool, device=models.device)
        return cls(
            models[:, None], mask[:, :1], None, mask, mask, client_memory=client_memory or {}
        )


def _choices(upload: Upload) -> str:
    """What reading the choice of candidates is called; who has one has no choice."""
    return "chosen candidates" if upload.params.shape[1] > 1 else ""


@known_as(
    samples=SAMPLES,
    steps="numbers of steps",
    seen="numbers of steps",
    loss="losses",
    loss_start="losses",
    loss_end="losses",
    chosen=_choices,
)
@all_marked
@dataclass(frozen=True)
class Upload(OfClients):
    """The result of local training.

    The ledger does not count numbers of samples and steps, losses and `chosen`; a result says which
    of them hooks have read (`flbench.core.knowledge`).

    Attributes:
        ids: client ids, ascending, shape (n,).
        params: trained models, shape (n, c, W).
        active: which candidates were trained, shape (n, c), bool.
        samples: number of training samples used, shape (n,), int64; or what `encode` made of it.
        steps: number of optimiser steps made, shape (n,), int64.
        loss: mean training loss over the batches of the stage, shape (n,), float64, nats.
        loss_start: loss on the training split before training, shape (n, c), nats; NaN = not
            measured.
        loss_end: the same after training, shape (n, c).
        chosen: the candidate that each client keeps, shape (n,), int64.
        rows: as in `Start`: the row that each candidate belongs to, shape (c,), or None.
        extras: what clients report, name -> (n, ...); NaN = not sent.
        kept: what stays with the clients, which the round loop puts into the state's memory.
        bits: size of each model as it was sent, shape (n, c), int64; None = 32 bits for each
            scalar of `Start.returned_mask`.
        arrivals: simulated time at which each upload arrives, seconds, shape (n,), float64; None
            where the suite has no clock.
        weights: how much each client counts in a mean, shape (n,), float64: what plugins answer to
            the hook `weights`, in `aggregate`; None = none answers (see `client_weights`).
        seen: training samples of all its steps together, shape (n,), int64.
        logged: what each client's module logged (`self.log`), which the round loop takes to the
            history; no hook gets it.
    """

    ids: Tensor = field(metadata=PER_CLIENT)
    params: Tensor = field(metadata=PER_CLIENT)
    active: Tensor = field(metadata=PER_CLIENT)
    samples: Tensor = field(metadata=PER_CLIENT)
    steps: Tensor = field(metadata=PER_CLIENT)
    loss: Tensor = field(metadata=PER_CLIENT)
    loss_start: Tensor = field(metadata=PER_CLIENT)
    loss_end: Tensor = field(metadata=PER_CLIENT)
    chosen: Tensor = field(metadata=PER_CLIENT)
    rows: Tensor | None = field(default=None, metadata=FOR_ALL)
    extras: Extras = field(default_factory=dict, metadata=PER_CLIENT)
    kept: Extras = field(default_factory=dict, metadata=PER_CLIENT)
    bits: Tensor | None = field(default=None, metadata=PER_CLIENT)
    arrivals: Tensor | None = field(default=None, metadata=PER_CLIENT)
    weights: Tensor | None = field(default=None, metadata=PER_CLIENT)
    seen: Tensor | None = field(default=None, metadata=PER_CLIENT)
    logged: Sequence[Mapping[str, float]] = field(default=(), metadata=PER_CLIENT)

    @property
    def client_weights(self) -> Tensor:
        """How much each client counts in a mean, shape (n,), float64: by samples if nobody says."""
        return self.samples.double() if self.weights is None else self.weights

    @property
    def model_steps(self) -> Tensor:
        """Optimiser steps of each client, those of each candidate for itself, shape (n,)."""
        return self.steps * self.active.sum(dim=1).cpu()

    def selected(self) -> Tensor:
        """The candidate that each client keeps, shape (n, W); read-only."""
        if self.params.shape[1] == 1:
            return self.params[:, 0]
        return self.params[torch.arange(len(self.ids)), self.chosen]


@dataclass(frozen=True)
class Message:
    """What one client sends of one trained model; `encode` turns a message into another.

    Attributes:
        client: its id.
        start: the model that it started from, which the server knows, shape (W,).
        params: the model that the server gets, shape (W,). Of scalars that are not sent it gets
            those of `start`.
        mask: scalars that are sent, shape (W,), bool; buffers are sent beside the message.
        bits: size of each scalar that is sent.
        overhead: size in bits of what is sent beside the scalars: their places, a norm, ...
        extras: tensors sent beside the model, name -> (...), of 32 bits a scalar; NaN = not sent.
        memory: the client's own entries of memories of scope "client", "<method>.<name>" -> (...).
        samples: the number of samples that the server is told, 1 or more: what the client counts
            for where a method weights by samples. 1 for all clients makes means uniform.
    """

    client: int
    start: Tensor
    params: Tensor
    mask: Tensor
    bits: int = 32
    overhead: int = 0
    extras: Extras = field(default_factory=dict)
    memory: Extras = field(default_factory=dict)
    samples: int = 1

    @property
    def update(self) -> Tensor:
        """How far the client moved each scalar that it sends, shape (W,); 0 for the others."""
        return torch.where(self.mask, self.params - self.start, 0.0)

    def sending(self, update: Tensor, **changes: Any) -> Message:  # noqa: ANN401 - any field
        """The message with another update, shape (W,), and other `changes` of its fields."""
        changes["memory"] = {**self.memory, **changes.get("memory", {})}
        return replace(self, params=self.start + update, **changes)


@all_marked
@dataclass(frozen=True)
class Scores(OfClients):
    """How useful each model or client is to each client: higher is better.

    Attributes:
        values: row i holds the scores that client `row_ids[i]` gives, shape (n, m), float64;
            NaN = not measured.
        row_ids: ids of the clients that give the scores, shape (n,).
        columns: whether the columns are models of the bank or clients.
        column_ids: rows of the bank, or client ids, shape (m,).
        memory: new values of the method's memory, "<method>.<name>" -> tensor.
    """

    values: Tensor = field(metadata=PER_CLIENT)
    row_ids: Tensor = field(metadata=PER_CLIENT)
    columns: Literal["models", "clients"] = field(metadata=FOR_ALL)
    column_ids: Tensor = field(metadata=FOR_ALL)
    memory: Extras = field(default_factory=dict, metadata=FOR_ALL)


@dataclass(frozen=True)
class Models:
    """The model bank after aggregation.

    Attributes:
        rows: the models, shape (K, W).
        memory: new values of the method's memory, "<method>.<name>" -> tensor.
    """

    rows: Tensor
    memory: Extras = field(default_factory=dict)


@all_marked
@dataclass(frozen=True)
class Personal(OfClients):
    """The model with which each client is evaluated; exactly one of `row` and `params` is given.

    Attributes:
        row: row of the bank per client, shape (n,).
        params: explicit models, shape (n, W).
        adaptation: local training of a copy before the evaluation; None = none.
        predictor: `(module, x) -> logits`, used in place of `module.predict`. It is called in
            evaluation mode and without gradients, which `torch.enable_grad()` turns on. What it
            writes to the module is undone after each call.
        transductive: whether predictions look at all samples of the client that are tested, without
            their labels (test-time adaptation): they are then made client by client, in one call.
        extras: tensors in `module.received` during prediction, name -> (n, ...).
        others: further models to evaluate, reported as `accuracy_<name>` (the generic model of
            FedRoD, the nearest-prototype rule of FedProto).
        labels: of one of `others`: what its predictions are compared with, a function of the
            labels, shape (b,), such as the target of a backdoor; where it gives -100, the sample
            does not count. None = the labels themselves.
    """

    row: Tensor | None = field(default=None, metadata=PER_CLIENT)
    params: Tensor | None = field(default=None, metadata=PER_CLIENT)
    adaptation: Stage | None = field(default=None, metadata=PER_CLIENT)
    predictor: Callable[[ClientModule, Tensor], Tensor] | None = field(
        default=None, metadata=FOR_ALL
    )
    transductive: bool = field(default=False, metadata=FOR_ALL)
    extras: Extras = field(default_factory=dict, metadata=PER_CLIENT)
    others: Mapping[str, Personal] = field(default_factory=dict, metadata=PER_CLIENT)
    labels: Callable[[Tensor], Tensor] | None = field(default=None, metadata=FOR_ALL)

    def models(self, state: State) -> Tensor:
        """The evaluated models, shape (n, W); rows of a bank are not copied."""
        if self.params is not None:
            return self.params
        assert self.row is not None
        return take(state.models, self.row)
