"""The workload in BlazeFL: `peer_blazefl.py WORK PROCESSES NETWORK ROUNDS WAY`, in its environment.

Its own FedAvg server and client trainers (`blazefl.contrib`): one client after the other, or, with
more than one process, in a pool of `threads` or of `processes` (WAY). As in its own benchmark, but
the server does not evaluate its model after every round; samples are permuted once per epoch and
sliced, in place of a DataLoader that augments them one by one; SGD is fused; and the pool, which it
makes anew in every round, is forked, because spawned workers would import torch in every round.
On a device the samples are there from the beginning. It reports whether the interpreter lock is on:
its threads need a Python without it to run at once, and a module that needs the lock turns it on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgPartitionType,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import ModelSelector, PartitionedDataset
from peer_workload import DEVICE, arguments, data, network
from torch import Generator, Tensor, nn
from turns import Turns


class Batches:
    """The batches of an epoch of one client, in an order drawn anew each time."""

    def __init__(self, x: Tensor, y: Tensor, size: int, generator: Generator) -> None:
        self.x, self.y, self.size, self.generator = x, y, size, generator
        self.dataset = y  # BlazeFL asks for its length

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.y), generator=self.generator).to(DEVICE)
        return zip(self.x[order].split(self.size), self.y[order].split(self.size), strict=True)


class Clients(PartitionedDataset[FedAvgPartitionType]):
    """The clients' samples, which forked workers inherit."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.work = work

    def get_dataloader(
        self, type_: FedAvgPartitionType, cid: int, batch_size: int, generator: Generator
    ) -> Batches:
        """The batches of one client."""
        x, y = data(self.work)
        return Batches(x[cid], y[cid], batch_size, generator)

    def set_dataset(self, type_: FedAvgPartitionType, cid: int, dataset: object) -> None:
        """A client's samples never change."""


class OneNetwork(ModelSelector[str]):
    """A copy of the network; its name is its file."""

    def select_model(self, model_name: str) -> nn.Module:
        """A copy that may be trained."""
        copy: nn.Module = deepcopy(network(model_name))
        return copy


def main() -> None:
    """Play the rounds."""
    work, processes, path, rounds = arguments()
    turns = Turns()
    torch.multiprocessing.set_start_method("fork")
    fused = partial(torch.optim.SGD, fused=True)
    setattr(torch.optim, "SGD", fused)  # noqa: B010 - the trainers make their own optimiser
    fused(network(path).parameters(), lr=1.0)  # it imports torch._dynamo, once for all forks
    dataset, selector = Clients(work), OneNetwork()
    data(work)
    server = FedAvgBaseServerHandler(
        model_selector=selector,
        model_name=path,
        dataset=dataset,
        global_round=rounds + 1,
        num_clients=work["clients"],
        sample_ratio=min(1.0, (work["cohort"] + 0.5) / work["clients"]),  # it rounds down
        device=DEVICE,
        batch_size=work["batch"],
        seed=0,
    )
    folder = Path(path).with_suffix(".blazefl")
    settings = {
        "model_selector": selector,
        "model_name": path,
        "dataset": dataset,
        "device": DEVICE,
        "num_clients": work["clients"],
        "epochs": work["epochs"],
        "batch_size": work["batch"],
        "lr": work["lr"],
        "seed": 0,
    }
    if processes == 1:
        trainer = FedAvgBaseClientTrainer(**settings)
    elif sys.argv[5] == "threads":
        trainer = FedAvgThreadPoolClientTrainer(**settings, num_parallels=processes)
    else:
        trainer = FedAvgProcessPoolClientTrainer(
            **settings,
            num_parallels=processes,
            state_dir=folder,
        )
    turns.report_and_wait(lock=getattr(sys, "_is_gil_enabled", lambda: True)())
    while not server.is_stopped():
        trainer.local_process(server.downlink_package(), server.sample_clients())
        trained = 0
        for package in trainer.uplink_package():
            trained += package.data_size // work["samples"]
            server.load(package)
        turns.report_and_wait(steps=trained * -(-work["samples"] // work["batch"]))


if __name__ == "__main__":
    main()
