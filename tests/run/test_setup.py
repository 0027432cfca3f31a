"""What a run holds before its first round."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mentions import mentions
from object_walk import reachable
from torch import nn
from toy import Play, toy_suite

from flbench.core.dataset import Dataset
from flbench.core.local_training import LocalTraining
from flbench.core.model_bank import ModelBank
from flbench.engine.options import EngineOptions
from flbench.run.composition import compose
from flbench.run.setup import build_store, prepare
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


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))


@pytest.mark.parametrize("batch", range(2, 9))
def test_last_batches_from_which_batchnorm_learns_little_are_told_of(
    batch: int, play_toy: Play
) -> None:
    """Each client has 7 training samples: the last batch has 1, 1, 3, 2, 1, 7 or all of them."""
    line = (
        "6 of 6 clients end each epoch with a batch of 3 samples or fewer, from which BatchNorm"
        " learns little: local.drop_last=true leaves it out"
    )
    local = LocalTraining(epochs=1, batch_size=batch)
    assert play_toy("fedavg", net=normed, local=local, few=3, rounds=1).said == [line] * (
        batch in (4, 5)
    )
    assert play_toy("fedavg", local=local, few=3, rounds=1).said == []
    local = replace(local, drop_last=True)
    assert play_toy("fedavg", net=normed, local=local, few=3, rounds=1).said == []


def test_a_client_with_a_single_batch_is_not_told_of(play_toy: Play) -> None:
    """It has no other batch, so none could be left out."""
    local = LocalTraining(epochs=1, batch_size=8)
    assert play_toy("fedavg", net=normed, local=local, few=7, rounds=1).said == []


def test_processes_of_a_machine_share_the_memory_for_models(tmp_path: Path) -> None:
    engine = EngineOptions(devices=3, bank_budget=9000)
    asked = RunSpec(toy_suite(), compose("fedavg"), 0, tmp_path, tmp_path, engine)
    assert build_store(asked, torch.device("cpu")).budget == 3000
    assert build_store(asked, torch.device("cuda")).budget == 9000, "each has a GPU"


@pytest.mark.parametrize("policy", ["local", "reset"])
def test_a_policy_for_statistics_that_nobody_has_is_told(policy: str, play_toy: Play) -> None:
    changes: dict[str, Any] = {"local": LocalTraining(epochs=1, batch_size=7), "rounds": 1}
    line = f"buffers={policy} has no effect: 'mlp' has no BatchNorm"
    assert play_toy("fedavg", **changes, buffers=policy).said == [line]
    assert play_toy("fedavg", **changes, buffers=policy, net=normed).said == []


def test_what_a_suite_says_without_effect_is_told(play_toy: Play) -> None:
    """Of a file of an older version, say: it runs as it always did."""
    local = LocalTraining(epochs=1, batch_size=7, momentum=0.5, optimizer="adam")
    (line,) = play_toy("fedavg", local=local, rounds=1).said
    assert mentions(line, "'local.momentum'", "local.momentum=0.5", "local.optimizer=adam")


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.5, ""),
        (1.0, ""),
        (0.34, ""),
        (0.45, "participation=0.45 of 6 clients is 2.7: 2 are called in a round, as by 0.3333"),
        (0.01, "participation=0.01 of 6 clients is 0.06: 1 is called in a round, as by 0.1667"),
    ],
)
def test_a_cohort_that_is_rounded_is_said(play_toy: Play, share: float, said: str) -> None:
    assert play_toy("fedavg", participation=share, rounds=1).said == ([said] if said else [])
