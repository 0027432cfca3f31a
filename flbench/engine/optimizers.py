"""The optimisers and schedulers that a ClientModule configures, in every form of Lightning's."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose
from typing import Any

from torch.optim import Optimizer

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.client_module import ClientModule
from flbench.errors import FlbenchError, PluginError, Undefined, in_one_line, text_of

# isort: split
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.core import optimizer as lightning_forms
from lightning.pytorch.utilities.types import LRSchedulerConfig

RATES = "lr", "initial_lr", "max_lr", "min_lr"
"""Settings of a parameter group that are learning rates."""


@dataclass(frozen=True)
class Optimizers:
    """What `configure_optimizers` returned.

    Attributes:
        each: the optimisers.
        schedulers: with interval, frequency and monitor.
    """

    each: list[Optimizer]
    schedulers: list[LRSchedulerConfig]

    @property
    def is_plain(self) -> bool:
        """Whether it is one optimiser alone, whose step needs no closure."""
        return len(self.each) == 1 and not self.schedulers and not needs_closure(self.each[0])

    def groups(self) -> Iterator[dict[str, Any]]:
        """The parameter groups of all optimisers."""
        for optimizer in self.each:
            yield from optimizer.param_groups

    def rates(self) -> list[float]:
        """The learning rate of each group before a scheduler changes it."""
        return [group.get("initial_lr", group["lr"]) for group in self.groups()]

    def scale(self, rates: list[float]) -> None:
        """Let the groups begin with other learning rates; their schedulers follow."""
        for group, rate, wanted in zip(self.groups(), self.rates(), rates, strict=True):
            if not isclose(rate, wanted):
                group |= {name: group[name] * wanted / rate for name in RATES if name in group}
        for config in self.schedulers:
            scheduler: Any = config.scheduler
            if hasattr(scheduler, "base_lrs"):
                groups = scheduler.optimizer.param_groups
                scheduler.base_lrs = [group["initial_lr"] for group in groups]


def scaled_rate(rate: float, usual: float, now: float) -> float:
    """A parameter group's learning rate, where that of the suite changes from `usual` to `now`."""
    return now if rate == usual else rate * (now / usual)


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether a step must be given what computes the gradients, as that of LBFGS."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def configured(module: ClientModule) -> Optimizers:
    """Call `configure_optimizers`.

    Raises:
        PluginError: what it returned is not one of Lightning's forms.
        Undefined: the suite clips gradients, and the module optimises by hand.
    """
    who = module.provided_by or type(module).__name__
    automatic = module.automatic_optimization
    if module.local.clip_norm and not automatic:
        raise Undefined(
            f"local.clip_norm: {who} has automatic_optimization = False, so its training_step clips"
            " (self.clip_gradients)"
        )
    try:
        found = module.configure_optimizers()
    except (FlbenchError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit as well
        raise PluginError(f"{who}: configure_optimizers raised {in_one_line(error)}") from error
    try:
        each, schedulers, monitor = lightning_forms._configure_optimizers(found)
        if automatic:
            configs = lightning_forms._configure_schedulers_automatic_opt(schedulers, monitor)
        else:
            configs = lightning_forms._configure_schedulers_manual_opt(schedulers)
        lightning_forms._validate_optimizers_attached(each, configs)
        lightning_forms._validate_scheduler_api(configs, module)
    except (MisconfigurationException, TypeError, KeyError) as error:
        said = in_one_line(error) if isinstance(error, KeyError) else text_of(error)
        raise PluginError(f"{who}: configure_optimizers: {said}") from error
    if not each or not all(isinstance(one, Optimizer) for one in each):
        name = type(found).__name__
        raise PluginError(f"{who}: configure_optimizers returned {name}, expected an optimiser")
    if automatic and len(each) > 1:
        raise PluginError(
            f"{who}: configure_optimizers returned {len(each)} optimisers, expected one; with"
            " automatic_optimization = False, training_step may use several"
        )
    return Optimizers(each, configs)
