"""A phase in one call ends with the bits of its steps one by one, or is not made so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import Play, toy_dataset

from flbench.engine.lanes import phase, vectorised
from flbench.engine.options import EngineOptions
from flbench.engine.recording import cuda_graphs
from flbench.engine.recording.in_place import InPlace

FULL: dict[str, Any] = {
    "dataset": toy_dataset(samples=96),
    "partition": {"name": "iid"},
    "participation": 1.0,
    "rounds": 4,
}
"""Six clients of equally many samples, so that all lanes make all steps together."""


class Replays:
    """Stands for a CUDA graph: its outputs are other memory, which a replay overwrites."""

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        self.function = function
        for _ in range(2):
            self.outputs = [torch.full_like(one, 7) for one in function()]

    def replay(self) -> None:
        for own, new in zip(self.outputs, self.function(), strict=True):
            own.copy_(new)


class Unlike(Replays):
    """Its losses have another last bit."""

    def replay(self) -> None:
        super().replay()
        self.outputs[-1].copy_(self.outputs[-1].nextafter(torch.tensor(9.0).double()))


class Refuses(Replays):
    """Cannot capture a phase."""

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        super().__init__(function)
        if any(one.dtype == torch.float64 for one in self.outputs):
            raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps are recorded in the first round and phases made in the second; counts their calls."""
    monkeypatch.setattr(vectorised, "USES", 1)
    monkeypatch.setattr(cuda_graphs, "CALLS", 1)
    calls: list[int] = []
    real = InPlace.play
    monkeypatch.setattr(InPlace, "play", lambda one: (calls.append(id(one)), real(one))[1])
    return calls


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def last(play_toy: Play, method: str, **changes: Any) -> list[bytes]:
    """The last models and memories of a run."""
    local = {"epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": 0.9, **changes.pop("local", {})}
    engine = EngineOptions("vectorised", "cpu")
    run = play_toy(method, engine=engine, **{**FULL, **changes, "local": local})
    assert not run.said
    tables = [run.state.models, *run.state.memory.values()]
    return [bytes(table.numpy(force=True).tobytes()) for table in tables]


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("fedavg", {}),
    "a term and buffers": ("fedprox", {"net": normed}),
    "phases, a mask and counts": ("fedrep", {"local": {"optimizer": "adam", "momentum": 0.0}}),
    "received tensors": ("scaffold", {"local": {"batch_size": 5}}),
    "filled up": ("fedavg", {"dataset": toy_dataset(samples=105)}),
    "clipped": ("fedavg", {"local": {"clip_norm": 0.1}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("capture", [None, Replays], ids=["called", "captured"])
def test_a_phase_in_one_call_ends_with_the_bytes_of_its_steps(
    run: str,
    capture: Any,
    play_toy: Play,
    played: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, changes = RUNS[run]
    steps = last(play_toy, method, **changes)
    assert not played, "it is off by default"
    monkeypatch.setenv(phase.WANTED, "1")
    if capture is not None:
        monkeypatch.setitem(cuda_graphs.CAPTURES, "cpu", capture)
    assert last(play_toy, method, **changes) == steps
    assert len(played) > 2 * len(set(played)) > 0, "also after those that are compared"


def test_lanes_of_unequal_steps_make_them_one_by_one(
    play_toy: Play, played: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"partition": {"name": "dirichlet", "alpha": 0.5}}
    steps = last(play_toy, "fedavg", **changes)
    monkeypatch.setenv(phase.WANTED, "1")
    assert last(play_toy, "fedavg", **changes) == steps
    assert not played


@pytest.mark.parametrize("capture", [Unlike, Refuses])
def test_a_device_that_gives_other_bits_makes_steps_one_by_one(
    capture: Any, play_toy: Play, played: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = last(play_toy, "fedavg")
    monkeypatch.setenv(phase.WANTED, "1")
    monkeypatch.setitem(cuda_graphs.CAPTURES, "cpu", capture)
    assert last(play_toy, "fedavg") == steps
    assert len(played) == (capture is Unlike), "it was tried once"


def test_a_rate_that_changes_from_round_to_round_needs_another_function(
    play_toy: Play, played: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = {"lr_decay": 0.5}
    steps = last(play_toy, "fedavg", local=local)
    monkeypatch.setenv(phase.WANTED, "1")
    assert last(play_toy, "fedavg", local=local) == steps
    assert len(played) == len(set(played)) > 1
