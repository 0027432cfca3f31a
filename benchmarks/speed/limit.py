"""The physical limit: a round's floating-point operations, done as matrix products and no more.

`python -m flbench_benchmarks.speed.limit WORK PROCESSES`. The operations of convolutions and
matrix products, forwards and backwards, are counted in the network; a round does as many in
products of two square matrices, of the size and the library that are the fastest on this machine
(the one of `torch.mm`, or oneDNN, which runs the convolutions). Everything else that a round does,
such as activations, pooling, dropout and the optimiser, is not in it. Two processes do half each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from .floor import network, start_helper
from .turns import Turns
from .workload import Workload

SIZES = (256, 512, 1024)
TRIAL = 4e9
"""Operations of a trial."""


def round_operations(work: Workload) -> int:
    """Floating-point operations of a round: a multiplication and an addition are two."""
    net, count = network(work), 2  # one sample alone has no BatchNorm statistics
    with FlopCounterMode(display=False) as counter:
        logits = net(torch.zeros(count, *work.shape))
        F.cross_entropy(logits, torch.zeros(count, dtype=torch.int64)).backward()
    operations: int = counter.get_total_flops()
    return operations // count * work.samples * work.epochs * work.cohort


@dataclass(frozen=True)
class Product:
    """A matrix product.

    Attributes:
        operations: a multiplication and an addition are two.
    """

    operations: int
    multiply: Callable[[], object]

    def repeat(self, operations: float) -> float:
        """Multiply until so many operations are done; return the seconds."""
        began = time.perf_counter()
        for _ in range(ceil(operations / self.operations)):
            self.multiply()
        return time.perf_counter() - began


def products() -> list[Product]:
    """Products of square matrices of several sizes, in both libraries."""
    found: list[Product] = []
    for size in SIZES:
        one, other = torch.randn(2, size, size)
        found.append(Product(2 * size**3, partial(torch.mm, one, other)))
        if torch.backends.mkldnn.is_available():
            dense = partial(F.linear, one.to_mkldnn(), other.to_mkldnn())
            found.append(Product(2 * size**3, dense))
    return found


def main() -> None:
    """Play rounds until standard input is closed."""
    work, processes = Workload.read(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    turns = Turns()
    share = round_operations(work) / processes
    with torch.inference_mode():
        fastest = min(products(), key=lambda one: min(one.repeat(TRIAL) for _ in range(5)))
        helper = start_helper(fastest.repeat) if processes == 2 else None
        turns.report_and_wait()
        while True:
            if helper is not None:
                helper.send(share)
            fastest.repeat(share)
            if helper is not None:
                helper.recv()
            turns.report_and_wait()


if __name__ == "__main__":
    main()
