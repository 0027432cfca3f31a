"""Workspace: the one ClientModule of a run, its optimiser and its Fabric.

Parameters and float buffers of the module are views of one flat tensor, so loading or reading a
client's model is one copy. Fabric has a single module for all clients, because `Fabric.setup` keeps
every module that it gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from flbench.core.client_module import ClientModule
from flbench.core.file_memory import write
from flbench.core.layout import ParameterLayout
from flbench.engine.dropout import replace_dropout
from flbench.engine.local_trainer import LocalTrainer
from flbench.engine.optimizer_step import OptimizerStep
from flbench.engine.recording.program import ProgramsByShape
from flbench.errors import PluginError

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class Workspace:
    """A ClientModule on its device, read and written as a flat row.

    Attributes:
        row: the flat tensor of which the module's tensors are views, shape (W,).
        trainer: lets the module make its steps.
        optimizer: the one optimiser of a module that has no other, else the first.
        step: its step.
        compared: kinds of passes of many models that have given what a model gives alone; None =
            one has not, so models are evaluated one by one (`lanes/evaluation.py`).
        lane_passes: makes the passes of models with samples of their own.

    Raises:
        PluginError: the module overrides what is never called; see `LocalTrainer`.
        Undefined: likewise.
    """

    def __init__(self, fabric: Fabric, module: ClientModule, layout: ParameterLayout) -> None:
        self.fabric = fabric
        self.layout = layout
        self.lane_randomness = replace_dropout(module)
        self.module = module
        self.trainer = LocalTrainer(self, module)
        fabric.setup(module, *self.trainer.optimizers)
        vars(module)["_fabric"] = None  # with one, Lightning's methods ignore the trainer
        module.layout = layout
        self.optimizer = self.trainer.optimizers[0]
        self.step = OptimizerStep(self.optimizer)
        self.has_batchnorm = any(
            isinstance(child, nn.modules.batchnorm._BatchNorm) for child in module.modules()
        )
        self.compared: set[str] | None = set()
        self.lane_passes = ProgramsByShape()
        self.row = torch.empty(layout.width, device=fabric.device)
        self._parameters = list(module.parameters())
        self._parts = list(module.modules())
        self._counters: list[tuple[slice, Tensor]] = []
        self._bind()
        self._places = [
            (name, module.get_submodule(owner), leaf, self._tensor(owner, leaf).data_ptr())
            for name, owner, leaf in ((s.name, *s.name.rpartition(".")[::2]) for s in layout.slots)
        ]

    def _tensor(self, owner: str, leaf: str) -> Tensor:
        """A parameter or buffer of the module."""
        tensor: Tensor = getattr(self.module.get_submodule(owner), leaf)
        return tensor

    def _bind(self) -> None:
        """Make every parameter and float buffer a view of the flat tensor."""
        self.row.copy_(self.layout.flatten(self.module))
        parameters = dict(self.module.named_parameters())
        buffers = dict(self.module.named_buffers())
        for slot in self.layout.slots:
            view = self.row[slot.start : slot.stop].view(slot.shape)
            if slot.kind == "parameter":
                parameters[slot.name].data = view
            elif slot.kind == "buffer":
                owner, _, name = slot.name.rpartition(".")
                self.module.get_submodule(owner).register_buffer(name, view)
            else:
                self._counters.append((slice(slot.start, slot.stop), buffers[slot.name]))

    def compile(self) -> None:
        """Compile the forward and backward pass with torch.compile."""
        setattr(self.module, "forward", torch.compile(self.module.forward))  # noqa: B010 - mypy

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return self.fabric.device

    @torch.no_grad()
    def load(self, row: Tensor) -> None:
        """Copy a model, shape (W,), into the module."""
        self.row.copy_(row)
        for section, counter in self._counters:
            counter.copy_(row[section].view(counter.shape))

    def snapshot(self) -> Tensor:
        """A copy of the module's model, counters included, shape (W,)."""
        return self.copy_to(torch.empty_like(self.row))

    @torch.no_grad()
    def copy_to(self, row: Tensor) -> Tensor:
        """Write the module's model, counters included, to a row, shape (W,); return it."""
        for section, counter in self._counters:
            self.row[section] = counter.reshape(-1).to(self.row.dtype)
        write(row, self.row)
        return row

    def refuse_replaced(self) -> None:
        """Refuse a module that has put other tensors in the place of views of the row.

        Raises:
            PluginError: with the name of the first one.
        """
        for name, owner, leaf, place in self._places:
            if getattr(owner, leaf).data_ptr() != place:
                raise self.was_replaced(name)

    def was_replaced(self, name: str) -> PluginError:
        """What to say of a parameter or buffer in whose place another tensor was put."""
        return PluginError(
            f"{self.module.provided_by or 'the module'}: '{name}' was replaced in training,"
            " but it is a view of the client's row, so the new value would be lost: write"
            f" into it, as in `self.{name}.copy_(...)`"
        )

    def held(self) -> dict[str, Tensor]:
        """What the module has now in the place of each parameter and buffer of the row."""
        return {name: getattr(owner, leaf) for name, owner, leaf, _ in self._places}

    def restore_frozen(self, before: Tensor, trained: Tensor) -> None:
        """Restore the scalars outside the mask `trained` from the snapshot `before`, shape (W,)."""
        self.load(torch.where(trained, self.snapshot(), before))

    def by_parameter(self, mask: Tensor) -> dict[int, Tensor]:
        """The parts of a mask, shape (W,), by the number (`id`) of their parameter."""
        parameters = dict(self.module.named_parameters())
        return {
            id(parameters[slot.name]): mask[slot.start : slot.stop].view(slot.shape)
            for slot in self.layout.slots
            if slot.kind == "parameter"
        }

    def training_mode(self) -> None:
        """Set the module and its parts to training mode."""
        if not all(part.training for part in self._parts):
            self.module.train()

    def evaluation_mode(self) -> None:
        """Set the module and its parts to evaluation mode."""
        if any(part.training for part in self._parts):
            self.module.eval()

    def clear_gradients(self) -> None:
        """Clear the gradients; faster than `optimizer.zero_grad`, which runs profiling hooks."""
        for parameter in self._parameters:
            parameter.grad = None

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Undo what a method's prediction does to the module: its model, modes and gradients."""
        trained = [parameter.requires_grad for parameter in self._parameters]
        before = self.snapshot()
        try:
            yield
        finally:
            self.load(before)
            self.evaluation_mode()
            self.clear_gradients()
            for parameter, is_trained in zip(self._parameters, trained, strict=True):
                parameter.requires_grad_(is_trained)

    def seed(self, seed: int) -> None:
        """Seed torch's default generator on this device, for example for dropout.

        `torch.manual_seed` also queues a call with its stack trace for every accelerator that is
        not in use, once per client, and never frees them.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
