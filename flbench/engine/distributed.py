"""The distributed executor: the processes of a run share the clients of a stage.

Every process trains its part of the clients with the executor of a single process; then the uploads
are exchanged, so that all processes hold the complete upload in ascending client order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flbench.core.client_module import LocalWork
from flbench.core.per_client import joined
from flbench.core.state import Dispatched, Stage, Upload
from flbench.core.types import Extras
from flbench.engine.options import FELL_BACK
from flbench.engine.processes.process_group import ProcessGroup, assign
from flbench.engine.sequential import Sequential, ShapeAndType, common_extras, stack_kept


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

    def leave_lanes(self, reason: str) -> None:
        """Train one by one from now on; see `Sequential`."""
        self.inner.leave_lanes(reason)

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
        own_start = start.select(own)
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
        upload, heard = self.group.attempt_and_share(
            lambda: self.inner.fit_into(rows, own_start, own_stage, work, round_),
            lambda upload: (self.inner.name, small_fields(upload)),
        )
        if any(name == FELL_BACK for name, _ in heard):
            self.leave_lanes("they failed in another process")
        everyone = [fields for _, fields in heard]
        order = torch.tensor([position for own in assigned for position in own]).argsort()
        params = self.group.stack(part, assigned) if table is None else table
        busy = [share for share, own in zip(everyone, assigned, strict=True) if own]
        extras = {}
        for name, (shape, dtype) in common_extras([it for _, it, _ in busy], stage, round_).items():
            own_extra = upload.extras.get(name, torch.empty(0, *shape, dtype=dtype))
            extras[name] = self.group.stack(own_extra, assigned).to(device)
        return replace(
            joined([small for small, *_ in busy or everyone]).select(order),
            active=start.active,
            params=params.to(device),
            extras=extras,
            kept=gathered([kept for *_, kept in busy], order, stage, round_),
        )


def small_fields(upload: Upload) -> tuple[Upload, dict[str, ShapeAndType], Extras]:
    """What is small of an upload without its models, the types of its extras, and what is kept."""
    types = {name: (tuple(t.shape[1:]), t.dtype) for name, t in upload.extras.items()}
    kept = {name: table.cpu() for name, table in upload.kept.items()}
    return replace(upload, active=upload.active.cpu(), extras={}, kept={}), types, kept


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
