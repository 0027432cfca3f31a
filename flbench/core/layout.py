"""ParameterLayout: the position of each tensor of a network in its flat row.

A row holds first the P trainable scalars, then the B buffer scalars (BatchNorm statistics), in
module order. The server computes with rows; a layer is a slice of a row.

Parameters that take no gradient when the ClientModule is built (`requires_grad_(False)`) are frozen
and common: they are in no row, the module holds them once, and nothing of them is sent or averaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from flbench.core.networks import find_networks, heads_of
from flbench.errors import UserError

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Normalisation layers; `_NormBase` is the base of BatchNorm and InstanceNorm."""


@dataclass(frozen=True)
class Slot:
    """The position of one tensor of the network: `row[start:stop].view(shape)`.

    Attributes:
        name: as `named_parameters` or `named_buffers` gives it.
        shape: of the tensor.
        start: place of its first scalar in the row.
        stop: place after its last scalar.
        kind: "parameter", "buffer", or "counter": an integer buffer such as BatchNorm's
            `num_batches_tracked`, stored as floats (exact below 2**24) and never averaged.
        head: whether it belongs to the head.
        norm: whether it belongs to a normalisation layer.
        network: number of the network that it belongs to, where clients have different networks;
            None = all of them.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: Literal["parameter", "buffer", "counter"]
    head: bool
    norm: bool = False
    network: int | None = None

    @property
    def layer(self) -> str:
        """Name of the layer: the tensor's name without its last part."""
        return self.name.rpartition(".")[0]


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take a gradient, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@dataclass(frozen=True)
class ParameterLayout:
    """Names, slices and masks of one network's row.

    Attributes:
        slots: parameters first, then buffers.
        parameters: P, number of trainable scalars.
        buffers: B, number of buffer scalars, counters included.
        head_name: the submodule that is the head ("" = the whole module); None = there is none. Of
            several networks it is that of the first one.
        networks: M, how many networks a row holds.
        which: place of the number of the client's network, where there are several.
    """

    slots: tuple[Slot, ...]
    parameters: int
    buffers: int
    head_name: str | None = None
    networks: int = 1
    which: int | None = None

    @classmethod
    def of(cls, module: nn.Module, head: str | None = None) -> ParameterLayout:
        """Compute the layout of a module.

        Args:
            module: any module; a tensor that several submodules share has one position.
            head: name of the submodule that is the head; None = the last `nn.Linear`, of each of
                several networks.

        Raises:
            UserError: no parameter takes a gradient.
        """
        several, which = find_networks(module)[1], None
        heads = heads_of(module) if head is None or several is not None else (head,)
        slots: list[Slot] = []
        offset = 0
        trainable = trained_parameters(module)
        if not trainable:
            raise UserError(
                "no parameter of the network takes a gradient: there is nothing to train"
            )
        named: Iterable[tuple[str, Tensor]] = [*trainable.items(), *module.named_buffers()]
        norms = {name for name, child in module.named_modules() if isinstance(child, NORMS)}
        for name, tensor in named:
            kind: Literal["parameter", "buffer", "counter"] = (
                "parameter" if name in trainable
                else "buffer" if tensor.is_floating_point()
                else "counter"
            )  # fmt: skip
            in_head = any(not head or name.startswith(f"{head}.") for head in heads)
            stop = offset + tensor.numel()
            in_norm = name.rpartition(".")[0] in norms
            owners = [] if several is None else several.owners(tensor)
            network = owners[0] if len(owners) == 1 else None
            shape = tuple(tensor.shape)
            slots.append(Slot(name, shape, offset, stop, kind, in_head, in_norm, network))
            which = offset if several is not None and tensor is several.which else which
            offset = stop
        size = sum(prod(slot.shape) for slot in slots if slot.kind == "parameter")
        networks = 1 if several is None else len(several.networks)
        return cls(tuple(slots), size, offset - size, next(iter(heads), None), networks, which)

    @property
    def width(self) -> int:
        """W = P + B, the length of a row."""
        return self.parameters + self.buffers

    def _mask(self, chosen: Iterable[Slot]) -> Tensor:
        mask = torch.zeros(self.width, dtype=torch.bool)
        for slot in chosen:
            mask[slot.start : slot.stop] = True
        return mask.clone()  # never written in place, so that a plugin that does is found

    @cached_property
    def head(self) -> Tensor:
        """Mask of the head's scalars, shape (W,), bool."""
        return self._mask(slot for slot in self.slots if slot.head)

    @cached_property
    def body(self) -> Tensor:
        """Mask of everything but the head, buffers included, shape (W,), bool."""
        return ~self.head

    @cached_property
    def norm(self) -> Tensor:
        """Mask of the normalisation layers, their buffers included, shape (W,), bool (FedBN)."""
        return self._mask(slot for slot in self.slots if slot.norm)

    def submodule(self, name: str) -> Tensor:
        """Mask of the scalars of a submodule, buffers included, shape (W,), bool.

        Args:
            name: as `named_modules` gives it, for example "net" in a module of two networks.
        """
        return self._mask(slot for slot in self.slots if slot.name.startswith(f"{name}."))

    @cached_property
    def trainable(self) -> Tensor:
        """Mask of the P trainable scalars, shape (W,), bool; distances use only these."""
        return torch.arange(self.width) < self.parameters

    @cached_property
    def counters(self) -> Tensor:
        """Mask of the integer buffers, shape (W,), bool; aggregation takes their maximum."""
        return self._mask(slot for slot in self.slots if slot.kind == "counter")

    @cached_property
    def layers(self) -> Tensor:
        """Masks of the layers with parameters, buffers included, in order, shape (L, W), bool."""
        names = dict.fromkeys(slot.layer for slot in self.slots if slot.kind == "parameter")
        return torch.stack([self._mask(s for s in self.slots if s.layer == n) for n in names])

    @cached_property
    def of_networks(self) -> Tensor:
        """Masks of what each network has, common scalars included, shape (M, W), bool.

        The number of the client's network (`which`) is in none of them: nobody sends it.
        """
        masks = [
            self._mask(slot for slot in self.slots if slot.network in (None, number))
            for number in range(self.networks)
        ]
        if self.which is not None:
            for mask in masks:
                mask[self.which] = False
        return torch.stack(masks)

    @property
    def common(self) -> Tensor:
        """Mask of what all networks have, such as a common head, shape (W,), bool."""
        return self.of_networks.all(dim=0)

    def network_of(self, rows: Tensor) -> Tensor:
        """Number of the network of each row, shape (..., W) -> (...), int64."""
        if self.which is None:
            return torch.zeros(rows.shape[:-1], dtype=torch.int64)
        return rows[..., self.which].long().cpu()

    def with_network(self, row: Tensor, networks: Tensor) -> Tensor:
        """A row, shape (W,), once for each of some networks, shape (n,): shape (n, W)."""
        rows = row.repeat(len(networks), 1)
        if self.which is not None:
            rows[:, self.which] = networks.to(rows)
        return rows

    def cut_tensor(self, masks: Tensor) -> str | None:
        """Name of the first tensor that a mask, shape (..., W), has a part of; None = of none."""
        for slot in self.slots:
            part = masks[..., slot.start : slot.stop]
            if bool((part.any(dim=-1) != part.all(dim=-1)).any()):
                return slot.name
        return None

    def of_layers(self, flags: Tensor) -> Tensor:
        """Mask of the scalars of some layers: `flags`, shape (n, L), -> (n, W), bool."""
        return (flags.float() @ self.layers.float()) > 0

    @property
    def all_mask(self) -> Tensor:
        """The mask of all scalars: all True, shape (W,)."""
        return torch.ones(self.width, dtype=torch.bool)

    @property
    def none_mask(self) -> Tensor:
        """The mask of no scalar: all False, shape (W,)."""
        return torch.zeros(self.width, dtype=torch.bool)

    def flatten(self, module: nn.Module) -> Tensor:
        """Copy a module's parameters and buffers into a new row, shape (W,), float32."""
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        return torch.cat([tensors[slot.name].detach().reshape(-1).float() for slot in self.slots])

    def unflatten(self, row: Tensor) -> dict[str, Tensor]:
        """Return views of a `row`, shape (W,), by tensor name; counters are int64 copies.

        Gradients flow to parameters only.
        """
        views = {s.name: row[..., s.start : s.stop].view(s.shape) for s in self.slots}
        return {
            s.name: (
                views[s.name] if s.kind == "parameter"
                else views[s.name].detach() if s.kind == "buffer"
                else views[s.name].long()
            )
            for s in self.slots
        }  # fmt: skip

    def load(self, module: nn.Module, row: Tensor) -> None:
        """Copy a `row`, shape (W,), into a module, in place."""
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        with torch.no_grad():
            for name, value in self.unflatten(row).items():
                tensors[name].copy_(value)
