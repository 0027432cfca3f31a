"""A small recurrent network for text whose gates depend on its input alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from flbench.errors import UserError


class OneHotEmbedding(nn.Module):
    """An embedding of tokens, as a product of their one-hot codes with a matrix.

    It is a linear layer, so executors take it for one; with a small vocabulary it is as fast.
    """

    codes: Tensor

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Linear(vocabulary, width, bias=False)
        nn.init.normal_(self.table.weight)  # as torch's nn.Embedding
        self.register_buffer("codes", torch.arange(vocabulary), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Embed tokens, (b, T) int64 -> (b, T, width)."""
        found: Tensor = self.table((x[..., None] == self.codes).to(self.table.weight.dtype))
        return found


class GatedLayer(nn.Module):
    """A layer of the minimal gated unit without recurrent gates, added to its input.

        z_t, c_t = of the inputs t and t - 1;   h_t = (1 - z_t) h_{t-1} + z_t tanh(c_t)

    Feng, Tung, Ahmed, Bengio, Hajimirsadeghi, "Were RNNs all we needed?", arXiv 2410.01201: minGRU,
    here with the input before beside each input, and tanh. The gates are known in advance, so a
    step is one product and one sum. Such steps move less memory than log2(T) operations on whole
    sequences (Hillis, Steele 1986).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Map sequences to sequences, both of shape (b, T, width)."""
        before = F.pad(x[:, :-1], (0, 0, 1, 0))
        gate, candidate = self.gates(torch.cat([x, before], dim=-1)).chunk(2, dim=-1)
        gate = gate.sigmoid()
        new = (gate * candidate.tanh()).unbind(1)
        states = [new[0]]
        for keep, one in zip((1 - gate).unbind(1)[1:], new[1:], strict=True):
            states.append(torch.addcmul(one, keep, states[-1]))
        found: Tensor = x + torch.stack(states, dim=1)
        return found


def build(
    shape: tuple[int, ...],
    classes: int,
    layers: Annotated[int, Field(ge=1), "number of gated layers"] = 2,
    hidden: Annotated[int, Field(ge=1), "features of a token"] = 64,
) -> nn.Module:
    """Recurrent network of gated layers, tokens to next-token logits.

    Raises:
        UserError: samples are no tokens.
    """
    if len(shape) != 1:
        raise UserError(
            f"recurrent expects samples of tokens, (length,), got samples of shape {shape}"
        )
    stack = [GatedLayer(hidden) for _ in range(layers)]
    body = nn.Sequential(OneHotEmbedding(classes, hidden), *stack)
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(hidden, classes)))
