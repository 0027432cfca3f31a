"""What a run holds before its first round."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from object_walk import reachable
from toy import toy_suite

from flbench.core.dataset import Dataset
from flbench.core.model_bank import ModelBank
from flbench.engine.options import EngineOptions
from flbench.run.composition import compose
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec

SAMPLES = 10


def held(clients: int, method: str, folder: Path) -> int:
    """Bytes of a run of clients that were never sampled, without the samples themselves."""
    count = clients * SAMPLES
    dataset = Dataset("toy", torch.zeros(count, 3), torch.arange(count) % 10, 10)
    spec = RunSpec(
        suite=toy_suite(clients=clients, partition={"name": "iid"}, validation_fraction=0.0),
        method=compose(method),
        seed=0,
        data_root=folder,
        out=folder,
        engine=EngineOptions(accelerator="cpu"),
    )
    run, state = prepare(spec, dataset)
    own = {id(pool) for one in (run.executor.samples, run.held_out) for pool in (one.x, one.y)}
    storages: dict[int, int] = {}
    objects = 0
    for thing in reachable((run, state)):
        if isinstance(thing, torch.Tensor) and not isinstance(thing, ModelBank):
            if id(thing) not in own and thing.device.type == "cpu":
                storage = thing.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        else:
            objects += sys.getsizeof(thing)
    return sum(storages.values()) + objects


@pytest.mark.parametrize("method", ["fedavg", "local-only"])
def test_a_client_that_was_never_sampled_takes_200_bytes(method: str, tmp_path: Path) -> None:
    few, many = held(200, method, tmp_path), held(1200, method, tmp_path)
    assert 40 < (many - few) / 1000 <= 200, "beyond its samples; 40 are the numbers of these"
