"""LoRA: clients train low-rank changes of frozen weights, and only these are sent and averaged.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, "LoRA: low-rank adaptation of large language
models", ICLR 2022, equation 3; averaged by FedAvg.

    W = W_0 + (alpha / r) B A,  A ~ N(0, 1/r),  B = 0 at first

Every matrix of a linear layer is adapted, but for the head, which is trained with `head=true`; all
other parameters are frozen, so a row of the bank holds adapters only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.utils import parametrize

import flbench as fl

LINEAR = ("Linear", "Conv1D")
"""Names of layers whose `weight` is a matrix; GPT-2 calls them Conv1D."""


class LowRank(nn.Module):
    """Adds a product of two narrow matrices to a frozen one."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.a = nn.Parameter(torch.randn(rank, columns) / rank**0.5)
        self.b = nn.Parameter(torch.zeros(rows, rank))
        self.scale = alpha / rank

    def forward(self, weight: Tensor) -> Tensor:
        """W_0 + (alpha / r) B A."""
        return weight + self.scale * self.b @ self.a


@dataclass(frozen=True)
class LoRA:
    """Clients train low-rank changes of frozen weights."""

    paper: ClassVar[str] = "Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, ICLR 2022"
    year: ClassVar[int] = 2022
    kind: ClassVar[str] = "client"

    rank: Annotated[int, Ge(1), "r, rank of a change"] = 4
    alpha: Annotated[float, Gt(0), "size of a change"] = 4.0
    head: Annotated[bool, "train the head as well"] = False

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module with adapters; everything else is frozen."""
        module, head = fl.ClientModule(net, ctx.local), ctx.layout.head_name
        module.requires_grad_(False)
        for name, layer in list(module.named_modules()):
            if type(layer).__name__ in LINEAR and name != head:
                change = LowRank(layer.weight, self.rank, self.alpha)
                parametrize.register_parametrization(layer, "weight", change)
        if self.head and head is not None:
            module.get_submodule(head).requires_grad_(True)
        if not any(weight.requires_grad for weight in module.parameters()):
            raise fl.Undefined("LoRA adapts linear layers; the network has none beside its head")
        return module
