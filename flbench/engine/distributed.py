"""The distributed executor: the processes of a run share the clients of a stage.

Every process trains its part of the clients with the executor of a single process; then the uploads
are exchanged, so that all processes hold the complete upload in ascending client order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.process_group import ProcessGroup, assign
from flbench.engine.sequential import Sequential, Term
from flbench.errors import PluginError

FIELDS = ("samples", "steps", "loss", "loss_start", "loss_end", "chosen")
"""Fields of an upload that are exchanged as bytes together with the extras."""


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
        tensors = {name: getattr(upload, name) for name in FIELDS}
        tensors |= {f"+{name}": tensor for name, tensor in upload.extras.items()}
        params = self.group.stack(upload.params, assigned)
        columns_of_ranks = self.group.all_gather_object(
            {name: Column.of(tensor) for name, tensor in tensors.items()}
        )
        where = f"round {round_}: stage '{stage.label}'"
        columns = common_columns(columns_of_ranks, assigned, where)
        rows = self.group.stack(pack(tensors, columns), assigned)
        complete = unpack(rows, columns)
        device = self.workspace.device
        return Upload(
            ids=stage.clients,
            active=start.active,
            rows=start.rows,
            params=params.to(device),
            extras={name[1:]: complete[name].to(device) for name in columns if name[0] == "+"},
            **{name: complete[name].to(tensors[name].device) for name in FIELDS},
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


@dataclass(frozen=True)
class Column:
    """Shape and type of a client's entry in one tensor of an upload."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Column:
        """The column of a tensor of shape (n, ...)."""
        return cls(tuple(tensor.shape[1:]), tensor.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of an entry."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def common_columns(
    columns_of_ranks: Sequence[Mapping[str, Column]], assigned: Sequence[Sequence[int]], where: str
) -> dict[str, Column]:
    """The columns of the complete upload; a process without clients does not know the extras.

    Raises:
        PluginError: the columns of clients differ.
    """
    known = [dict(columns) for columns, own in zip(columns_of_ranks, assigned, strict=True) if own]
    for columns in known[1:]:
        if columns != known[0]:
            odd = sorted(n for n in known[0] | columns if known[0].get(n) != columns.get(n))
            raise PluginError(f"{where}: clients differ in what they upload: {', '.join(odd)}")
    return known[0] if known else dict(columns_of_ranks[0])


def pack(tensors: Mapping[str, Tensor], columns: Mapping[str, Column]) -> Tensor:
    """The clients' entries as bytes, one row per client, shape (k, bytes), uint8."""
    count = len(tensors["samples"])
    if not count:
        return torch.zeros(0, sum(column.bytes for column in columns.values()), dtype=torch.uint8)
    rows = [tensors[name].detach().cpu().contiguous() for name in columns]
    return torch.cat([part.view(count, -1).view(torch.uint8) for part in rows], dim=1)


def unpack(rows: Tensor, columns: Mapping[str, Column]) -> dict[str, Tensor]:
    """The tensors that were packed, of all clients."""
    parts = rows.split([column.bytes for column in columns.values()], dim=1)
    return {
        name: part.flatten().clone().view(column.dtype).view(len(rows), *column.shape)
        for (name, column), part in zip(columns.items(), parts, strict=True)
    }
