"""Last bits that depend on shapes and addresses on every machine, as they do on some CPUs.

Some matrix libraries choose the kernel of a product by its shape, and by where its factors lie in
memory. So a row of a product may have other last bits when there are more rows or fewer, or where
the same numbers begin at another byte of a cache line. `build` makes a network whose logits depend
on the rows of the pass; `planted_products` makes torch's products depend on rows and addresses.
A process that imports this module and was started by `multiprocessing` has such products too.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flbench.models import mlp

POINT = "[flbench.models]\nuneven = uneven:build\n"


UNITS = 7
"""The toy's passes have rows with other remainders of it; they have many factors 2 and 3."""
EPSILON = torch.finfo(torch.float32).eps
LINE = 64
"""Bytes of a cache line; tables that torch makes begin at multiples of it."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
"""Operations of torch that are moved: linear layers, one by one and in lanes."""


class Uneven(nn.Sequential):
    """Moves its logits up by as many units in the last place as there are rows, modulo `UNITS`."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (b, C)."""
        logits: Tensor = super().forward(x)
        plain = moved = logits.detach()
        for _ in range(len(x) % UNITS):
            moved = torch.nextafter(moved, torch.tensor(torch.inf))
        return logits + (moved - plain)


even = mlp.build


def build(shape: tuple[int, ...], classes: int, hidden: int = 64, norm: bool = False) -> nn.Module:
    """The perceptron that flbench has, with the same weights, uneven."""
    return Uneven(OrderedDict(even(shape, classes, hidden, norm).named_children()))


def units(factors: Sequence[Tensor]) -> int:
    """By how much a product of two factors moves, in units in the last place: 0 to `UNITS - 1`."""
    at = [factor.data_ptr() % LINE // factor.element_size() for factor in factors]
    rows = factors[0].shape[-2] if factors[0].ndim > 1 else 1
    return (rows + sum(at)) % UNITS


def moved(name: str) -> Callable[..., Tensor]:
    """A product of torch whose last bits depend on its rows and on where its factors begin.

    What is exact stays, as each library gives it: small whole numbers, and in float64 what comes
    from numbers of float32.
    """
    plain = getattr(torch.ops.aten, name).out

    def product(*args: Any, **kwargs: Any) -> Tensor:
        factors = args[-2:]
        result: Tensor = plain(*args, out=factors[0].new_empty(0), **kwargs)
        if result.dtype != torch.float32:
            return result
        wide = [arg.double() for arg in args]
        exact = plain(*wide, out=wide[0].new_empty(0), **kwargs) == result
        return torch.where(exact, result, result * (1 + units(factors) * EPSILON))

    return product


@contextmanager
def planted_products() -> Iterator[None]:
    """Move the products of this process, on CPUs."""
    planted = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of operations that are replaced
        for name in PRODUCTS:
            planted.impl(name, moved(name), "CPU")
    try:
        yield
    finally:
        planted._destroy()


if multiprocessing.parent_process() is not None:  # a process that a test has started
    for_good = ExitStack()
    for_good.enter_context(planted_products())
