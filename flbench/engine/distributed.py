"""The distributed executor: the processes of a run share the clients of a stage.

Every process trains its part of the clients with the executor of a single process; then the uploads
are exchanged, so that all processes hold the complete upload in ascending client order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flbench.core.client import LocalWork
from flbench.core.state import Dispatched, Stage, Upload
from flbench.core.types import Extras
from flbench.engine.processes.process_group import ProcessGroup, assign
from flbench.engine.sequential import Sequential, ShapeAndType, common_extras, stack_kept

FIELDS = ("samples", "steps", "seen", "loss", "loss_start", "loss_end", "chosen")
"""Fields of an upload that are small: a few numbers per client."""


class DistributedExecutor(Sequential):
    """Trains the clients of a stage on all processes; `inner` trains those of this process."""

    def __init__(self, inner: Sequential, group: ProcessGroup) -> None:
        super().__init__(inner.workspace, inner.samples, inner.seed)
        self.inner = inner
        self.group = group

    @property
    def name(self) -> str:
        """How each process trains its clients."""
        return self.inner.name

    @property
    def evaluates_in_lanes(self) -> bool:
        """Whether each process may evaluate its models in one pass; see `Sequential`."""
        return self.inner.evaluates_in_lanes

    def fit(self, start: Dispatched, stage: Stage, work: LocalWork, round_: int) -> Upload:
        """Train every acting client from its start; see `Sequential.fit`."""
        self.inner.samples = self.samples
        weights = [
            samples * candidates
            for samples, candidates in zip(
                self.numbers_owned(stage), start.active.sum(dim=1).tolist(), strict=True
            )
        ]
        assigned = assign(weights, self.group.size)
        own = torch.tensor(assigned[self.group.rank], dtype=torch.int64)
        own_start = select_clients(start, own)
        own_stage = stage.select(own)
        device = self.workspace.device
        table = None
        if device.type == "cpu":
            overflow = self.inner.tables.overflow(start.params)
            table = self.group.shared_table(start.params, overflow)
        if table is None:
            part = self.inner.tables.take(own_start.params, device)
            rows = part.unbind()
        else:  # every process writes its models where all read them
            rows = tuple(table[position] for position in own.tolist())
        upload, everyone = self.group.attempt_and_share(
            lambda: self.inner.fit_into(rows, own_start, own_stage, work, round_), small_fields
        )
        order = torch.tensor([position for own in assigned for position in own]).argsort()
        params = self.group.stack(part, assigned) if table is None else table
        busy = [share for share, own in zip(everyone, assigned, strict=True) if own]
        known = [types for _, types, *_ in busy]
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
            kept=gathered([kept for _, _, kept, _ in busy], order, stage, round_),
            logged=in_order([logged for *_, logged in everyone], order),
            **{name: torch.cat([share[0][name] for share in everyone])[order] for name in FIELDS},
        )


def small_fields(
    upload: Upload,
) -> tuple[Extras, dict[str, ShapeAndType], Extras, Sequence[Mapping[str, float]]]:
    """A few numbers per client, the types of what they send, what they keep, and what they log."""
    fields = {name: getattr(upload, name) for name in FIELDS}
    types = {name: (tuple(t.shape[1:]), t.dtype) for name, t in upload.extras.items()}
    kept = {name: table.cpu() for name, table in upload.kept.items()}
    return fields, types, kept, upload.logged


def in_order(logged: Sequence[Sequence[Mapping[str, float]]], order: Tensor) -> list[Any]:
    """What the clients of all processes logged, in the clients' order."""
    each = [one for part in logged for one in part]
    return [each[i] for i in order.tolist()]


def gathered(tables: Sequence[Extras], order: Tensor, stage: Stage, round_: int) -> Extras:
    """What the clients of all processes keep, in the clients' order, shape (n,).

    Raises:
        PluginError: they keep different names or types; see `stack_kept`.
    """
    types: list[dict[str, ShapeAndType]] = [
        {name: ((), table.dtype) for name, table in kept.items()} for kept in tables
    ]
    common_extras(types, stage, round_, "keep")
    entries = [
        {name: table[i] for name, table in kept.items()}
        for kept in tables
        for i in range(len(next(iter(kept.values()), ())))
    ]
    return stack_kept([entries[i] for i in order.tolist()], stage, round_) if entries else {}


def select_clients(start: Dispatched, positions: Tensor) -> Dispatched:
    """The start of the acting clients at some positions, shape (k,)."""

    def select(table: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: rows_at(value, positions) for name, value in table.items()}

    per_client = ["params", "active", "sent_mask", "returned_mask"]
    per_client += [
        name for name in ("trained_mask", "server_mask") if getattr(start, name) is not None
    ]
    return Dispatched(
        **select({name: getattr(start, name) for name in per_client}),
        rows=start.rows,
        extras=select(start.extras),
        client_memory=select(start.client_memory),
    )


def rows_at(table: Tensor, positions: Tensor) -> Tensor:
    """Rows of a table, shape (k, ...); one row that is repeated is not copied."""
    if len(table) > 1 and table.stride(0) == 0:
        return table[:1].expand(len(positions), *table.shape[1:])
    return table[positions.to(table.device)]
