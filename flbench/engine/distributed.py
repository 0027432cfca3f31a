"""The sharded executor: the clients of a stage are dealt to the processes of a run.

Every process trains its own clients with the executor it would use alone; then all of them hold the
whole upload, in ascending client order, as if one process had trained everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.process_group import ProcessGroup
from flbench.engine.sequential import Sequential, Term
from flbench.errors import PluginError

KNOWN = ("ids", "active", "rows")
"""Fields of an upload that every process knows before anybody has trained."""


FIELDS = tuple(f.name for f in fields(Upload) if f.name not in (*KNOWN, "params", "extras"))


class DistributedExecutor(Sequential):
    """Trains with the help of the other processes.

    Args:
        inner: trains this process's clients.
        ranks: the processes.
    """

    def __init__(self, inner: Sequential, ranks: ProcessGroup) -> None:
        super().__init__(inner.workspace, inner.samples, inner.seed)
        self.inner = inner
        self.ranks = ranks

    def fit(self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int) -> Upload:
        """Train every acting client from its start; see `Sequential.fit`."""
        self.inner.samples = self.samples
        weights = [
            len(self.owned(client, stage)) * int(start.active[place].sum())
            for place, client in enumerate(stage.clients.tolist())
        ]
        dealt = self.ranks.assign(weights)
        mine = torch.tensor(dealt[self.ranks.rank], dtype=torch.int64)
        part, few = of_some(start, mine), replace(stage, clients=stage.clients[mine])
        upload = self.ranks.attempt(lambda: self.inner.fit(part, few, terms, round_))
        tensors = named(upload)
        params = self.ranks.stack(upload.params, dealt)
        shapes = self.ranks.all_gather_object(
            {name: Column.of(tensor) for name, tensor in tensors.items()}
        )
        columns = common(shapes, dealt, f"round {round_}: stage '{stage.label}'")
        rows = self.ranks.stack(packed(tensors, columns), dealt)
        whole = unpacked(rows, columns)
        device = self.workspace.device
        return Upload(
            ids=stage.clients,
            active=start.active,
            rows=start.rows,
            params=params.to(device),
            extras={name[1:]: whole[name].to(device) for name in columns if name[0] == "+"},
            **{name: whole[name].to(tensors[name].device) for name in FIELDS},
        )


def of_some(start: Dispatched, places: Tensor) -> Dispatched:
    """The start of some of the acting clients.

    Args:
        places: which of them, shape (k,).
    """

    def taken(table: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value[places.to(value.device)] for name, value in table.items()}

    return Dispatched(
        **taken({n: getattr(start, n) for n in ("params", "active", "sent_mask", "returned_mask")}),
        rows=start.rows,
        extras=taken(start.extras),
        client_memory=taken(start.client_memory),
    )


@dataclass(frozen=True)
class Column:
    """What a client's entry in one of an upload's tensors looks like."""

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


def named(upload: Upload) -> dict[str, Tensor]:
    """The tensors of an upload that others have to be told; names of extras begin with a plus."""
    extras = {f"+{name}": tensor for name, tensor in upload.extras.items()}
    return {name: getattr(upload, name) for name in FIELDS} | extras


def common(
    shapes: Sequence[Mapping[str, Column]], dealt: Sequence[Sequence[int]], where: str
) -> dict[str, Column]:
    """The columns of the whole upload: those of whoever trained somebody.

    Args:
        shapes: of every process; one without clients does not know the extras.
        dealt: the places of every process.
        where: round and stage, for the message.

    Raises:
        PluginError: clients report different things.
    """
    known = [dict(table) for table, places in zip(shapes, dealt, strict=True) if places]
    for table in known[1:]:
        if table != known[0]:
            odd = sorted(n for n in known[0] | table if known[0].get(n) != table.get(n))
            raise PluginError(f"{where}: clients differ in what they upload: {', '.join(odd)}")
    return known[0] if known else dict(shapes[0])


def packed(tensors: Mapping[str, Tensor], columns: Mapping[str, Column]) -> Tensor:
    """The clients' entries as bytes, one row a client, shape (k, bytes), uint8."""
    count = len(tensors["samples"])
    if not count:
        return torch.zeros(0, sum(column.bytes for column in columns.values()), dtype=torch.uint8)
    rows = [tensors[name].detach().cpu().contiguous() for name in columns]
    return torch.cat([part.view(count, -1).view(torch.uint8) for part in rows], dim=1)


def unpacked(rows: Tensor, columns: Mapping[str, Column]) -> dict[str, Tensor]:
    """The tensors that `packed` was given, of all clients."""
    parts = rows.split([column.bytes for column in columns.values()], dim=1)
    return {
        name: part.flatten().clone().view(column.dtype).view(len(rows), *column.shape)
        for (name, column), part in zip(columns.items(), parts, strict=True)
    }
