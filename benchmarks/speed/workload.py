"""The workload of a comparison: clients, samples, epochs; and its data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flbench.core.dataset import Dataset
from flbench.engine.options import EngineOptions
from flbench.run.composition import compose
from flbench.run.spec import RunSpec
from flbench.suite import Suite


@dataclass(frozen=True)
class Workload:
    """Federated averaging on random images.

    Attributes:
        shape: of an image.
        samples: training samples of each client.
    """

    model: str = "lenet5"
    shape: tuple[int, ...] = (3, 32, 32)
    classes: int = 10
    clients: int = 100
    cohort: int = 10
    samples: int = 150
    epochs: int = 1
    batch: int = 32
    lr: float = 0.01
    momentum: float = 0.9
    method: str = "fedavg"

    def text(self) -> str:
        """The workload as JSON, an argument of a command; `read` is the inverse."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> Workload:
        """The inverse of `text`."""
        table = json.loads(text)
        return Workload(**{**table, "shape": tuple(table["shape"])})


def images(work: Workload, spare: int = 0) -> tuple[Tensor, Tensor]:
    """Samples and labels of all clients, from a fixed seed; `spare` more for each client."""
    draw = torch.Generator().manual_seed(0)
    count = (work.clients, work.samples + spare)
    return (
        torch.randn(*count, *work.shape, generator=draw),
        torch.randint(work.classes, count, generator=draw),
    )


def dataset(work: Workload) -> Dataset:
    """The same samples as a data set; each client has one more, for its test set."""
    x, y = images(work, spare=1)
    return Dataset("random", x.flatten(0, 1), y.flatten(), work.classes)


def run_spec(
    work: Workload, out: Path, engine: EngineOptions, sink: object = None, validation: float = 0.0
) -> RunSpec:
    """A run of the workload in flbench, with more rounds than are ever measured."""
    rounds = 10_000
    settings: dict[str, Any] = {
        "name": "speed",
        "version": 1,
        "summary": "random images",
        "dataset": "random",
        "partition": "iid",
        "model": work.model,
        "clients": work.clients,
        "participation": work.cohort / work.clients,
        "rounds": rounds,
        "eval_every": rounds,
        "test_fraction": 1e-6,
        "validation_fraction": validation,
        "local": {
            "epochs": work.epochs,
            "batch_size": work.batch,
            "lr": work.lr,
            "momentum": work.momentum,
        },
    }
    return RunSpec(
        suite=Suite.model_validate(settings),
        method=compose(work.method),
        seed=0,
        data_root=out,
        out=out,
        engine=engine,
        sinks=() if sink is None else (("speed", sink),),
    )
