"""What a CUDA device is told before a run, so that it gives the same bits again."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from flbench.engine.machine import deterministic


@pytest.fixture(autouse=True)
def as_torch_begins() -> Iterator[None]:
    """Begin with torch's own settings, whatever ran on a device before; leave torch as it was."""
    before = settings()
    set_to(False, False, False)
    yield
    set_to(*before)


def set_to(algorithms: bool, cudnn: bool, float32: bool) -> None:
    torch.use_deterministic_algorithms(algorithms)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = cudnn, not float32


def settings() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        not torch.backends.cudnn.allow_tf32,
    )


def test_a_cuda_device_computes_deterministically_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(deterministic.WORKSPACE, "")
    monkeypatch.delenv(deterministic.WORKSPACE)
    deterministic.turn_on(torch.device("cpu"))
    assert settings() == (False, False, False)
    assert deterministic.WORKSPACE not in os.environ
    deterministic.turn_on(torch.device("cuda"))
    assert settings() == (True, True, True)
    assert torch.is_deterministic_algorithms_warn_only_enabled(), "what has none is computed"
    assert os.environ[deterministic.WORKSPACE]


def test_what_the_user_has_set_for_cublas_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(deterministic.WORKSPACE, ":16:8")
    deterministic.turn_on(torch.device("cuda"))
    assert os.environ[deterministic.WORKSPACE] == ":16:8"
