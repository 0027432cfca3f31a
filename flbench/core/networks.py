"""Several networks in one run: each client has one of them.

One module holds all networks, so a row holds the scalars of all of them, and the number of the
client's network beside them (`which`). Training, evaluation, checkpoints and other processes get a
row, and need not know more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flbench.errors import UserError


class SeveralNetworks(nn.Module):
    """Networks with the same inputs and labels, one of which computes.

    Attributes:
        networks: all of them.
        which: number of the one that computes; an integer buffer, so it is part of a row.
        chosen: the number where it is known without reading `which`, as lanes must; else None.
    """

    which: Tensor

    def __init__(self, networks: Sequence[nn.Module], *, common_head: bool = False) -> None:
        """Take the networks; with `common_head` they have the head of the first one in common.

        Raises:
            UserError: the shapes of their heads differ.
        """
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.register_buffer("which", torch.tensor(0))
        self.chosen: int | None = None
        if common_head:
            share_head(networks)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the network that computes."""
        output: Tensor = self.networks[self.number()](x)
        return output

    def number(self) -> int:
        """Number of the network that computes.

        Raises:
            RuntimeError: it is asked for many models at once.
        """
        if self.chosen is not None:
            return self.chosen
        try:
            return int(self.which)
        except RuntimeError as error:
            text = "which of several networks a model has cannot be read for many models at once"
            raise RuntimeError(text) from error

    def owners(self, tensor: Tensor) -> list[int]:
        """Numbers of the networks that a parameter or buffer belongs to."""
        return [
            number
            for number, net in enumerate(self.networks)
            if any(one is tensor for one in (*net.parameters(), *net.buffers()))
        ]


def head_of(module: nn.Module) -> str | None:
    """Name of the submodule that is the head: the last `nn.Linear`, or None."""
    linears = [name for name, child in module.named_modules() if type(child) is nn.Linear]
    return linears[-1] if linears else None


def heads_of(module: nn.Module) -> tuple[str, ...]:
    """Names of the heads of a module's networks; a network without a head has none."""
    name, several = find_networks(module)
    if several is None:
        return () if (head := head_of(module)) is None else (head,)
    inside = [f"{name}." if name else "", "networks."]
    heads = enumerate(map(head_of, several.networks))
    return tuple("".join([*inside, f"{k}.", head]) for k, head in heads if head is not None)


def find_networks(module: nn.Module) -> tuple[str, SeveralNetworks | None]:
    """The `SeveralNetworks` in a module, with its name; None = the module has one network."""
    found = ((name, part) for name, part in module.named_modules())
    return next((it for it in found if isinstance(it[1], SeveralNetworks)), ("", None))


@contextmanager
def choosing(module: nn.Module, number: int | None) -> Iterator[None]:
    """Let one of several networks compute, whatever the row says; None = as the row says.

    Lanes cannot read the number of their network, so all of them must have the same one.
    """
    several = find_networks(module)[1]
    if several is None:
        yield
        return
    before, several.chosen = several.chosen, number
    try:
        yield
    finally:
        several.chosen = before


def share_head(networks: Sequence[nn.Module]) -> None:
    """Give all networks the weights of the first one's head.

    Raises:
        UserError: the shapes of their heads differ.
    """
    heads = [net.get_submodule(name) for net in networks if (name := head_of(net)) is not None]
    shapes = [[tuple(p.shape) for p in head.parameters()] for head in heads]
    if len(heads) < len(networks) or any(shape != shapes[0] for shape in shapes):
        raise UserError(
            "common_head: expected networks that end in an nn.Linear of the same shape, got"
            f" {', '.join(str(shape[0]) for shape in shapes)}"
            f"{'' if len(heads) == len(networks) else ' and a network without a head'}"
        )
    for head in heads[1:]:
        for name, parameter in heads[0].named_parameters():
            setattr(head, name, parameter)


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a part has hooks of torch, which change what it computes and no attribute of it."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def is_linear(module: nn.Module) -> bool:
    """Whether all parts that have parameters are linear layers.

    On a CPU a call of such a network takes longer than its arithmetic, if its batch is small.
    """
    return all(type(layer) is nn.Linear for layer in layers_of(module))


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of a module that have parameters of their own."""
    for part in module.modules():
        if next(part.parameters(recurse=False), None) is not None:
            yield part
