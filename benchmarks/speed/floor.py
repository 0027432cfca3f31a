"""The floor: federated averaging written by hand, the shortest time that PyTorch allows.

`python -m flbench_benchmarks.speed.floor WORK PROCESSES DEVICE`. Every client starts from the
average, samples are permuted once per epoch and sliced, the optimiser is fused SGD. Two processes
take half of the cohort each; they share tensors and synchronise through a pipe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from flbench.plugin.registry import find, load_entry

from .turns import Turns, pin
from .workload import Workload, images


class Floor:
    """One network and its optimiser.

    Args:
        net: trained in place.
        work: batch size and optimiser.
    """

    def __init__(self, net: nn.Module, work: Workload) -> None:
        self.net, self.batch = net.train(), work.batch
        buffers = [buffer for buffer in net.buffers() if buffer.is_floating_point()]
        self.tensors = [tensor.detach() for tensor in (*net.parameters(), *buffers)]
        self.optimizer = torch.optim.SGD(
            net.parameters(), lr=work.lr, momentum=work.momentum, fused=True
        )

    def copy(self) -> list[Tensor]:
        """A copy of the current weights."""
        return [tensor.clone() for tensor in self.tensors]

    def train(self, start: list[Tensor], x: Tensor, y: Tensor, orders: Iterable[Tensor]) -> None:
        """Train one client from `start`; an order of its samples is an epoch."""
        torch._foreach_copy_(self.tensors, start)
        self.optimizer.state.clear()
        for order in orders:
            shuffled_x, shuffled_y = x[order], y[order]
            for at in range(0, len(order), self.batch):
                end = at + self.batch
                loss = F.cross_entropy(self.net(shuffled_x[at:end]), shuffled_y[at:end])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

    def add(
        self,
        sums: list[Tensor],
        start: list[Tensor],
        clients: Iterable[tuple[Tensor, Tensor, Sequence[Tensor]]],
    ) -> None:
        """Set `sums` to the sum of the clients' models; a client is x, y and its epochs' orders."""
        torch._foreach_zero_(sums)
        for x, y, orders in clients:
            self.train(start, x, y, orders)
            torch._foreach_add_(sums, self.tensors)


def network(work: Workload) -> nn.Module:
    """The network of a workload, with initial weights of a fixed seed."""
    torch.manual_seed(0)
    net: nn.Module = load_entry(find("models", work.model))(work.shape, work.classes)
    return net


def main() -> None:
    """Play rounds until standard input is closed."""
    work, processes, device = (
        Workload.read(sys.argv[1]),
        int(sys.argv[2]),
        torch.device(sys.argv[3]),
    )
    torch.set_num_threads(1)
    turns, steps = Turns(), [0]
    floor = Floor(network(work).to(device), work)
    x, y = (tensor.to(device) for tensor in images(work))
    start, sums = floor.copy(), floor.copy()

    def play(chosen: list[int], into: list[Tensor]) -> None:
        """Train the `chosen` clients and write the sum of their models to `into`."""
        each = [[torch.randperm(work.samples) for _ in range(work.epochs)] for _ in chosen]
        floor.add(into, start, ((x[c], y[c], o) for c, o in zip(chosen, each, strict=True)))

    helper: Connection | None = None
    other: list[Tensor] = []
    if processes == 2:
        other = floor.copy()
        for tensor in (*start, *other):
            tensor.share_memory_()
        helper = start_helper(lambda chosen: play(chosen, other))
    hook = register_optimizer_step_post_hook(lambda *_: steps.__setitem__(0, steps[0] + 1))
    turns.report_and_wait()
    while True:
        cohort = torch.randperm(work.clients)[: work.cohort].tolist()
        if helper is None:
            play(cohort, sums)
        else:
            helper.send(cohort[work.cohort // 2 :])
            play(cohort[: work.cohort // 2], sums)
            helper.recv()
            torch._foreach_add_(sums, other)
        torch._foreach_div_(sums, work.cohort)
        torch._foreach_copy_(start, sums)
        if device.type == "cuda":
            torch.cuda.synchronize()
        hook.remove()
        turns.report_and_wait(steps=steps[0])


def start_helper(work: Callable[[Any], object]) -> Connection:
    """Fork a second process; it does `work` with what the pipe brings, and answers None.

    Both processes are bound to a core of their own.
    """
    fork = torch.multiprocessing.get_context("fork")
    near, far = fork.Pipe()
    fork.Process(target=_help, args=(far, near, work), daemon=True).start()
    pin(0)
    return near


def _help(far: Connection, near: Connection, work: Callable[[Any], object]) -> None:
    """The second process: work until the pipe is closed."""
    near.close()
    pin(1)
    while True:
        try:
            work(far.recv())
            far.send(None)
        except (EOFError, OSError):
            os._exit(0)


if __name__ == "__main__":
    main()
