"""The distributed executor: the processes of a run share the clients of a stage.

Every process trains its part of the clients with the executor of a single process; then the uploads
are exchanged, so that all processes hold the complete upload in ascending client order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.process_group import ProcessGroup, assign
from flbench.engine.sequential import Sequential, Term, common_extras

FIELDS = ("samples", "steps", "loss", "loss_start", "loss_end", "chosen")
"""Fields of an upload that are small: a few numbers per client."""


class DistributedExecutor(Sequential):
    """Trains the clients of a stage on all processes; `inner` trains those of this process."""

    def __init__(self, inner: Sequential, group: ProcessGroup) -> None:
        super().__init__(inner.workspace, inner.samples, inner.seed)
        self.inner = inner
        self.group = group

    def fit(self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int) -> Upload:
        """Train every acting client from its start; see `Sequential.fit`."""
        self.inner.samples = self.samples
        weights = [
            len(self.owned(client, stage)) * int(start.active[i].sum())
            for i, client in enumerate(stage.clients.tolist())
        ]
        assigned = assign(weights, self.group.size)
        own = torch.tensor(assigned[self.group.rank], dtype=torch.int64)
        own_start = select_clients(start, own)
        own_stage = replace(stage, clients=stage.clients[own])
        upload = self.group.attempt(lambda: self.inner.fit(own_start, own_stage, terms, round_))
        fields = {name: getattr(upload, name) for name in FIELDS}
        kinds = {name: (tuple(t.shape[1:]), t.dtype) for name, t in upload.extras.items()}
        everyone = self.group.all_gather_object((fields, kinds))
        order = torch.tensor([position for own in assigned for position in own]).argsort()
        params, device = self.group.stack(upload.params, assigned), self.workspace.device
        known = [kinds for (_, kinds), own in zip(everyone, assigned, strict=True) if own]
        extras = {}
        for name, (shape, dtype) in common_extras(known, stage, round_).items():
            own_extra = upload.extras.get(name, torch.empty(0, *shape, dtype=dtype))
            extras[name] = self.group.stack(own_extra, assigned).to(device)
        return Upload(
            ids=stage.clients,
            active=start.active,
            rows=start.rows,
            params=params.to(device),
            extras=extras,
            **{name: torch.cat([fields[name] for fields, _ in everyone])[order] for name in FIELDS},
        )


def select_clients(start: Dispatched, positions: Tensor) -> Dispatched:
    """The start of the acting clients at some positions, shape (k,)."""

    def select(table: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value[positions.to(value.device)] for name, value in table.items()}

    per_client = ("params", "active", "sent_mask", "returned_mask")
    return Dispatched(
        **select({name: getattr(start, name) for name in per_client}),
        rows=start.rows,
        extras=select(start.extras),
        client_memory=select(start.client_memory),
    )
