"""The data that flow through a run: frozen, with their shapes.

Letters used everywhere: N clients of the federation, n acting in a stage, K models in the server's
bank, c candidate models per client, P trainable scalars, B buffer scalars, W = P + B the width of a
row. Client ids are int64; model rows are float32; scores and losses are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from flbench.core.model_bank import take
from flbench.core.types import STAGE_KINDS, Extras, Kind, Scope

if TYPE_CHECKING:
    from flbench.core.client import ClientModule


@dataclass(frozen=True)
class Membership:
    """Who is served by which model, and whose uploads that model averages.

    Attributes:
        home: row of the model that serves each client, shape (N,), int64; -1 = undecided.
        weights: share of client j in row k, shape (K, N), >= 0; rows may overlap. None = one-hot
            of `home`. The default `aggregate` multiplies it by the clients' sample counts.
        parent: where `cluster` changes the rows: the old row each new row starts from, shape (K,).
        memory: what the method wants remembered; keys are "<method>.<name>".
    """

    home: Tensor
    weights: Tensor | None = None
    parent: Tensor | None = None
    memory: Extras = field(default_factory=dict)

    def shares(self, ids: Tensor, rows: int) -> Tensor:
        """Shares of clients `ids`, shape (n,), in each of so many `rows`: (rows, n), float64."""
        if self.weights is not None:
            return self.weights[:, ids].double()
        mine: Tensor = (self.home[ids] == torch.arange(rows)[:, None]).double()
        return mine

    def labels(self) -> Tensor:
        """Group label of each client, shape (N,): equal where the models they use are equal.

        With `weights`, two clients share a group if the rows that serve them average the same
        clients, which makes a peer-to-peer selection comparable with a partition.
        """
        if self.weights is None:
            return self.home
        labels: Tensor = torch.unique(self.weights[self.home], dim=0, return_inverse=True)[1]
        return torch.where(self.home < 0, self.home, labels)


@dataclass(frozen=True)
class State:
    """All there is between two rounds; saving it is the checkpoint.

    Attributes:
        round: rounds completed.
        models: the server's bank, shape (K, W); where clients have rows of their own, a
            `flbench.core.model_bank.Bank`.
        membership: who uses which row.
        memory: what methods remember, "<method>.<name>" -> tensor.
        scopes: for each memory its first dimension: "run" (none), "model" (K), "client" (N).
    """

    round: int
    models: Tensor
    membership: Membership
    memory: Extras = field(default_factory=dict)
    scopes: Mapping[str, Scope] = field(default_factory=dict)

    def remember(self, memory: Extras) -> State:
        """Return the state with some memories replaced, those that `memory` names."""
        return replace(self, memory={**self.memory, **memory}) if memory else self

    def regroup(self, membership: Membership | None) -> State:
        """Return the state under a new membership.

        Where `membership.parent` is given, models and all memory of scope "model" are re-indexed
        by it, so that state kept per group follows the groups.
        """
        if membership is None:
            return self
        models, memory = self.models, dict(self.memory)
        if membership.parent is not None:
            models = take(models, membership.parent)
            for name, scope in self.scopes.items():
                if scope == "model":
                    memory[name] = take(memory[name], membership.parent)
        memory.update(membership.memory)
        settled = replace(membership, parent=None, memory={})
        return replace(self, models=models, membership=settled, memory=memory)


@dataclass(frozen=True)
class Memory:
    """Something a method wants kept between rounds: its first value and its `scope`.

    Of `value` the shape begins with K where the scope is "model", with N where it is "client".
    """

    value: Tensor
    scope: Scope = "run"


@dataclass(frozen=True)
class Setup:
    """What a method adds to State(0); the answers of all plugins are merged.

    Attributes:
        models: the first bank, shape (K, W); None = one row, the common initial weights.
        membership: the first membership; None = everybody on row 0.
        memory: "<method>.<name>" -> Memory.
    """

    models: Tensor | None = None
    membership: Membership | None = None
    memory: Mapping[str, Memory] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """One piece of work inside a round.

    Attributes:
        kind: "train" (uploads are aggregated), "probe" (they are not), "trial" (several candidates
            per client, aggregated), "join" (newcomers; the state is frozen); see `STAGE_KINDS`.
        clients: ids of the acting clients, ascending, shape (n,).
        epochs: local epochs; 0 = nobody moves.
        name: part of the batches' address; two stages of one round need two names.
        samples: train on a fixed random subset of this many samples; None = all.
        losses: also measure each candidate's loss on the client's training split, before and after.
        pooled: train on the union of all clients' training samples instead of the client's own;
            only for a method that declares `pools_data = True`.
    """

    kind: Kind
    clients: Tensor
    epochs: int
    name: str = ""
    samples: int | None = None
    losses: bool = False
    pooled: bool = False

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


@dataclass(frozen=True)
class Start:
    """What each acting client starts from and is told. Plugins' answers are merged field by field.

    Attributes:
        params: models to train, shape (n, c, W).
        active: which candidates exist, shape (n, c) bool; None = all.
        rows: the row of the bank that each candidate is trained for, shape (c,); None = the
            candidates compete and one is kept.
        crosses: scalars sent down, shape (W,) or (n, W) bool; None = everything.
        returns: scalars sent up after training, shape as `crosses`; None = the same.
        extras: told by the server, name -> (n, ...); counted in the ledger, NaN = not sent.
        own: what the clients remember themselves, name -> (n, ...); free.
    """

    params: Tensor | None = None
    active: Tensor | None = None
    rows: Tensor | None = None
    sent_mask: Tensor | None = None
    returned_mask: Tensor | None = None
    extras: Extras = field(default_factory=dict)
    client_memory: Extras = field(default_factory=dict)


@dataclass(frozen=True)
class Dispatched:
    """A `Start` with every field filled in: what the engine trains from (fields as there).

    `crosses` and `returns` have shape (n, W); `rows` may still be None.
    """

    params: Tensor
    active: Tensor
    rows: Tensor | None
    sent_mask: Tensor
    returned_mask: Tensor
    extras: Extras = field(default_factory=dict)
    client_memory: Extras = field(default_factory=dict)


@dataclass(frozen=True)
class Upload:
    """What came out of local training.

    Attributes:
        ids: client ids, ascending, shape (n,).
        params: trained models, shape (n, c, W).
        active: which candidates were trained, shape (n, c) bool.
        samples: training samples used, shape (n,), int64.
        steps: optimiser steps made, shape (n,), int64.
        loss: mean training loss over the batches of the stage, shape (n,), float64, nats.
        loss_start: loss on the training split before training, shape (n, c); NaN = not asked.
        loss_end: the same after training, shape (n, c).
        chosen: which candidate each client keeps, shape (n,), int64.
        rows: as in `Start`: the row each candidate is for, shape (c,), or None.
        extras: what the ClientModules reported, name -> (n, ...); NaN = not sent.
    """

    ids: Tensor
    params: Tensor
    active: Tensor
    samples: Tensor
    steps: Tensor
    loss: Tensor
    loss_start: Tensor
    loss_end: Tensor
    chosen: Tensor
    rows: Tensor | None = None
    extras: Extras = field(default_factory=dict)

    def selected(self) -> Tensor:
        """The candidate each client keeps, shape (n, W); only to be read."""
        if self.params.shape[1] == 1:
            return self.params[:, 0]
        return self.params[torch.arange(len(self.ids)), self.chosen]


@dataclass(frozen=True)
class Scores:
    """Who benefits from what: higher is better, row i is judged by client `row_ids[i]`.

    Attributes:
        values: shape (n, m), float64; NaN = not asked.
        row_ids: judging clients, shape (n,).
        columns: whether columns are models of the bank or other clients.
        column_ids: their rows or ids, shape (m,).
        memory: what the method wants remembered.
    """

    values: Tensor
    row_ids: Tensor
    columns: Literal["models", "clients"]
    column_ids: Tensor
    memory: Extras = field(default_factory=dict)


@dataclass(frozen=True)
class Models:
    """The bank after aggregation: `rows`, shape (K, W); `memory` as in `Membership`."""

    rows: Tensor
    memory: Extras = field(default_factory=dict)


@dataclass(frozen=True)
class Personal:
    """The model each asked client is judged by: exactly one of `row` and `params` is given.

    Attributes:
        row: row of the bank per client, shape (n,).
        params: explicit models, shape (n, W).
        adaptation: local training made before judging, on a copy; None = none.
        predictor: `(module, x) -> logits`, where the module's own prediction is not meant.
        extras: per-client context that `module.received` holds while predicting, name -> (n, ...).
        others: further models to judge beside this one, reported as `accuracy_<name>` (the generic
            model of FedRoD, the nearest-prototype rule of FedProto).
    """

    row: Tensor | None = None
    params: Tensor | None = None
    adaptation: Stage | None = None
    predictor: Callable[[ClientModule, Tensor], Tensor] | None = None
    extras: Extras = field(default_factory=dict)
    others: Mapping[str, Personal] = field(default_factory=dict)

    def models(self, state: State) -> Tensor:
        """The models themselves, shape (n, W); rows of a bank are not copied."""
        if self.params is not None:
            return self.params
        assert self.row is not None
        return take(state.models, self.row)
