"""What is done in another way on a device: at once, and without waiting for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from simulated_device import DEVICE, is_marked, simulated_device
from toy import Play

from flbench.core.bank_budget import RowStore
from flbench.core.model_bank import ModelBank, all_rows_finite
from flbench.engine.lanes import evaluation as lane_evaluation
from flbench.engine.lanes import training as lane_training
from flbench.engine.lanes import vectorised
from flbench.engine.lanes.lanes import sent
from flbench.engine.lanes.vectorised import Vectorised
from flbench.engine.recording.program import USES
from flbench.run.rounds import finite_clients
from flbench.toolbox import aggregation
from flbench.toolbox.aggregation import weighted_mean

INFINITE = torch.tensor([[1.0, 3e38, 3e38], [torch.inf, -torch.inf, 0.0], [torch.nan, 1.0, 1.0]])


@pytest.mark.parametrize("device", [torch.device("cpu"), DEVICE])
def test_clients_whose_models_are_not_finite_are_found(device: torch.device) -> None:
    """The first one's sum overflows in single precision, but the model is finite."""
    with simulated_device():
        params = INFINITE[:, None].to(device)
        assert finite_clients(params).tolist() == [True, False, False]
        assert all_rows_finite([params[0, 0], torch.ones(2)])
        for bad in (1, 2):
            assert not all_rows_finite([params[0, 0], params[bad, 0]])
        assert all_rows_finite([])


def test_a_bank_on_a_device_is_asked_once() -> None:
    with simulated_device():
        bank = ModelBank.repeated(torch.zeros(3, device=DEVICE), 3, RowStore(None, device=DEVICE))
        assert bank.all_finite()
        bank[1] = INFINITE[1].to(DEVICE)
        assert not bank.all_finite()


def test_indices_are_sent_as_they_are() -> None:
    with simulated_device():
        array = np.array([[3, 1], [2, 2]])
        there = sent(array, DEVICE)
        assert is_marked(there)
        assert there.tolist() == array.tolist()
        assert not is_marked(sent(array, torch.device("cpu")))


def test_rows_are_written_to_their_places_at_once() -> None:
    with simulated_device():
        table, rows = torch.zeros(4, 3, device=DEVICE), torch.arange(6.0, device=DEVICE).view(2, 3)
        lane_training.write_rows([table[3], table[1]], rows)
        assert table.tolist() == [[0.0] * 3, [3.0, 4.0, 5.0], [0.0] * 3, [0.0, 1.0, 2.0]]


@pytest.mark.parametrize("table", [1, 5, 2**26])
def test_means_on_a_device_are_those_of_the_host(
    table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some columns at a time, or all at once."""
    monkeypatch.setattr(aggregation, "TABLE", table)
    draw = torch.Generator().manual_seed(0)
    rows, uploads = torch.randn(3, 7, generator=draw), torch.randn(5, 7, generator=draw)
    weights = torch.rand(3, 5, generator=draw, dtype=torch.float64)
    weights[1], weights[2, 1:3] = 0.0, 0.0
    counters = torch.tensor([False] * 5 + [True] * 2)
    expected = weighted_mean(rows, uploads, weights, counters)
    with simulated_device():
        there = weighted_mean(rows.to(DEVICE), uploads, weights, counters)
        found = weighted_mean(rows.to(DEVICE), uploads.to(DEVICE), weights, counters).cpu()
        assert torch.equal(there.cpu(), found), "uploads may be on the host"
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(found[1], rows[1]), "nobody has a share in it"
    assert torch.equal(found[:, 5:], expected[:, 5:])


def lanes_of(device: torch.device, width: int, size: int) -> int:
    """Most lanes of models of a width, for a client of 100 samples in batches of a size."""
    space = SimpleNamespace(
        device=device,
        layout=SimpleNamespace(width=width),
        module=SimpleNamespace(local=SimpleNamespace(batch_size=size)),
    )
    executor = SimpleNamespace(workspace=space, samples=SimpleNamespace(x=torch.zeros(1, 3)))
    job: Any = SimpleNamespace(executor=executor, owned=[torch.arange(100)])
    return lane_training.most_lanes(job, (0, 0))


def test_steps_are_recorded_sooner_on_a_device(play_toy: Play) -> None:
    with simulated_device():
        played = play_toy("fedavg", executor="vectorised", rounds=1)
    assert isinstance(played.run.executor, Vectorised)
    assert played.run.executor.uses == vectorised.SOON < USES


def test_a_device_holds_as_many_lanes_as_its_memory() -> None:
    with simulated_device():  # of 2 GiB, one of which is free
        lane_training._memory.cache_clear()
        assert lanes_of(DEVICE, 2**20, 1) == 2**30 // 2**7 // 2**20
        assert lanes_of(DEVICE, 1, 50) == 2**30 // 2**13 // 150
        assert lanes_of(DEVICE, 2**40, 1) == 1
        lane_training._memory.cache_clear()
    host = torch.device("cpu")
    assert lanes_of(host, 2**20, 1) == lane_training.SCALARS // 2**20
    assert lanes_of(host, 1, 50) == lane_training.INPUTS // 150


@pytest.mark.parametrize(
    ("device", "width", "most"),
    [("cuda", 2**24, 16), ("cpu", 2**24, 1), ("cpu", 2**20, 16), ("cuda", 2**40, 1)],
)
def test_more_wide_models_share_a_pass_on_a_device(device: str, width: int, most: int) -> None:
    space: Any = SimpleNamespace(device=torch.device(device), layout=SimpleNamespace(width=width))
    assert lane_evaluation.most_models(space) == most
