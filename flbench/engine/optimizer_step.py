"""The optimiser's step; that of SGD without what surrounds its kernel.

`Optimizer.step` records a profile, groups tensors by device and calls hooks: for a network of some
thousand parameters this takes longer than the update itself (`flbench speed w0`).
"""

from __future__ import annotations

import torch
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as hooks

OF_ALL = "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"
OF_ONE = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
"""Where torch keeps the functions that are called before and after a step."""


class OptimizerStep:
    """One step of an optimiser, which does what `optimizer.step()` does, bit for bit.

    The kernel is called directly if the optimiser is torch's fused SGD with one parameter group,
    nothing listens to its steps, and every parameter has a gradient and, with momentum, a buffer.
    The first step of a client is therefore always `optimizer.step()`, which makes the buffers.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._first = True
        self._plain = (
            type(optimizer) is SGD
            and optimizer.param_groups[0]["fused"]
            and hasattr(torch, "_fused_sgd_")
            and all(hasattr(hooks, name) for name in OF_ALL)
            and all(hasattr(optimizer, name) for name in OF_ONE)
        )

    def forget(self) -> None:
        """Forget what the optimiser knows of earlier steps, as momentum."""
        self.optimizer.state.clear()
        self._first = True

    @torch.no_grad()
    def __call__(self) -> None:
        """Update the parameters by their gradients."""
        groups, state = self.optimizer.param_groups, self.optimizer.state
        if self._first or not self._plain or len(groups) > 1 or self._is_observed():
            self._first = False
            self.optimizer.step()
            return
        group = groups[0]
        gradients = [parameter.grad for parameter in group["params"]]
        buffers = []
        if group["momentum"]:
            buffers = [state[parameter].get("momentum_buffer") for parameter in group["params"]]
        if any(tensor is None for tensor in (*gradients, *buffers)):
            self.optimizer.step()
            return
        torch._fused_sgd_(
            group["params"],
            gradients,
            buffers,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            is_first_step=False,
        )

    def _is_observed(self) -> bool:
        """Whether a function is to be called before or after a step."""
        return (
            any(getattr(hooks, name) for name in OF_ALL)
            or any(getattr(self.optimizer, name) for name in OF_ONE)
            or "step" in vars(self.optimizer)
        )
