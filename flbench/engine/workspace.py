"""Workspace: the one ClientModule of a run, its optimiser and its Fabric.

Parameters and float buffers of the module are views of one flat tensor, so putting a client's
model in or taking it out is one copy, and Fabric sees a single module however many clients there
are (`Fabric.setup` keeps every module it was ever given).
"""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from flbench.core.client import ClientModule
from flbench.core.layout import ParameterLayout
from flbench.engine.dropout import by_lane
from flbench.errors import PluginError


class Workspace:
    """A ClientModule on its device, addressed as a flat row.

    Args:
        fabric: the run's Fabric, launched.
        module: the run's one ClientModule.
        layout: its row.
    """

    def __init__(self, fabric: Fabric, module: ClientModule, layout: ParameterLayout) -> None:
        self.fabric = fabric
        self.layout = layout
        self.dice = by_lane(module)
        optimizer = module.configure_optimizers()
        if not isinstance(optimizer, torch.optim.Optimizer):
            name = type(optimizer).__name__
            raise PluginError(f"configure_optimizers returned {name}, expected one Optimizer")
        fabric.setup(module, optimizer)
        self.module = module
        self.optimizer = optimizer
        self.has_batchnorm = any(
            isinstance(child, nn.modules.batchnorm._BatchNorm) for child in module.modules()
        )
        self._flat = torch.empty(layout.width, device=fabric.device)
        self._parameters = list(module.parameters())
        self._counters: list[tuple[slice, Tensor]] = []
        self._bind()

    def _bind(self) -> None:
        """Make every parameter and float buffer a view of the flat tensor."""
        self._flat.copy_(self.layout.flatten(self.module))
        parameters = dict(self.module.named_parameters())
        buffers = dict(self.module.named_buffers())
        for slot in self.layout.slots:
            view = self._flat[slot.start : slot.stop].view(slot.shape)
            if slot.kind == "parameter":
                parameters[slot.name].data = view
            elif slot.kind == "buffer":
                owner, _, name = slot.name.rpartition(".")
                self.module.get_submodule(owner).register_buffer(name, view)
            else:
                self._counters.append((slice(slot.start, slot.stop), buffers[slot.name]))

    def compile(self) -> None:
        """Let torch.compile translate the network's forward and backward pass."""
        setattr(self.module, "forward", torch.compile(self.module.forward))  # noqa: B010 - mypy

    @property
    def device(self) -> torch.device:
        """Where everything runs."""
        return self.fabric.device

    @property
    def row(self) -> Tensor:
        """The flat tensor the module's tensors are views of, shape (W,)."""
        return self._flat

    @torch.no_grad()
    def load(self, row: Tensor) -> None:
        """Put a model in: row of shape (W,)."""
        self._flat.copy_(row)
        for place, counter in self._counters:
            counter.copy_(row[place].view(counter.shape))

    @torch.no_grad()
    def read(self, out: Tensor) -> None:
        """Take the model out into `out`, shape (W,)."""
        for place, counter in self._counters:
            self._flat[place] = counter.reshape(-1).to(self._flat.dtype)
        out.copy_(self._flat)

    def snapshot(self) -> Tensor:
        """A copy of the model as it is, counters included, shape (W,)."""
        out = torch.empty_like(self._flat)
        self.read(out)
        return out

    def hold(self, before: Tensor, moves: Tensor) -> None:
        """Put back what may not move: `moves` is a mask, `before` a snapshot, shape (W,)."""
        self.load(torch.where(moves, self.snapshot(), before))

    def forget(self) -> None:
        """Clear the optimiser's state: every client starts with a fresh one."""
        self.optimizer.state.clear()

    def drop_gradients(self) -> None:
        """What `optimizer.zero_grad` does, without its profiling hooks."""
        for parameter in self._parameters:
            parameter.grad = None

    def seed(self, seed: int) -> None:
        """Seed torch's generator for dropout and the like, on this device.

        `torch.manual_seed` would also queue a call with its stack trace for every accelerator
        that is not in use, once per client, for ever.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
