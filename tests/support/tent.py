"""Test-time adaptation on top of any method, as in docs/hooks.md."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import flbench as fl


def less_entropy(
    module: fl.ClientModule, x: Tensor, weights: Sequence[nn.Parameter], lr: float
) -> Tensor:
    """Logits of `x`, shape (b, classes), after one step of some weights to less entropy."""
    with torch.enable_grad():
        p = module.forward(x).softmax(dim=-1)
        entropy = -(p * p.log()).sum(dim=-1).mean()
        slopes = torch.autograd.grad(entropy, weights)
    torch._foreach_sub_(list(weights), [lr * slope for slope in slopes])
    logits: Tensor = module.forward(x)
    return logits


def biases(module: fl.ClientModule) -> list[nn.Parameter]:
    """The biases of a network, which the kit's has."""
    return [weight for name, weight in module.named_parameters() if name.endswith("bias")]


@dataclass(frozen=True)
class Tent:
    """Tent (Wang et al., ICLR 2021): one step of the affine parameters of BatchNorm.

    Statistics are those of the client's test samples.
    """

    lr: float = 0.5

    @fl.hookimpl(wrapper=True)
    def personalise(self) -> Generator[None, fl.Personal, fl.Personal]:
        personal = yield

        def predict(module: fl.ClientModule, x: Tensor) -> Tensor:
            norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm1d)]
            for norm in norms:
                norm.train()
            weights = [weight for norm in norms for weight in norm.parameters()]
            return less_entropy(module, x, weights, self.lr)

        return replace(personal, predictor=predict, transductive=True)


class Adapts(fl.ClientModule):
    """A module whose own `predict` takes gradients."""

    def predict(self, x: Tensor) -> Tensor:
        return less_entropy(self, x, biases(self), 0.5)
