"""Models and modules for tests in which several models are evaluated in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from toy import bad

from flbench import ClientModule
from flbench.run.setup import Run


def different(run: Run, count: int) -> Tensor:
    """Models around the initial one."""
    generator = torch.Generator().manual_seed(0)
    initial = run.context.initial.cpu()
    rows = initial + 0.3 * torch.randn(count, len(initial), generator=generator)
    for slot in run.context.layout.slots:
        if slot.name.endswith("running_var"):
            rows[:, slot.start : slot.stop] = rows[:, slot.start : slot.stop].abs() + 0.5
        if slot.kind == "counter":
            rows[:, slot.start : slot.stop] = torch.arange(count)[:, None] % 2
    return rows.to(run.context.initial.device)


def module_of(kind: type[ClientModule]) -> Any:
    """A method whose clients have a module."""
    return bad(client_module=lambda self, net, ctx: kind(net, ctx.local))


class Looks(ClientModule):
    """Looks at a number, which many models at once do not have."""

    def predict(self, x: Tensor) -> Tensor:
        return self(x) * (2 if float(self.row()[0]) > 0 else 1)


class Other(ClientModule):
    """Gives other losses where it is called for many models."""

    def predict(self, x: Tensor) -> Tensor:
        many = torch._C._functorch.is_batchedtensor(self.row())
        return self(x) * (2 if many else 1)


class Fails(ClientModule):
    def predict(self, x: Tensor) -> Tensor:
        return self(x) + self.received["absent"]
