"""The template of a clustered method, without a package around it."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import toy_upload
from simulated_device import simulated_device
from toy import Play, composition

PATH = Path(__file__).parents[2] / "plugins/template/methods/clustered/flbench_my_method.py"


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = spec_from_file_location(PATH.stem, PATH)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, PATH.stem, module)
    spec.loader.exec_module(module)
    return module.MyMethod()


def test_statistics_and_counts_do_not_enter_its_cosines(method: Any) -> None:
    """Two parameters and a count of batches: the updates are orthogonal, the counts large."""
    ctx = SimpleNamespace(layout=SimpleNamespace(parameters=2), initial=torch.zeros(3))
    upload = toy_upload([[1.0, 0.0, 90.0], [0.0, 1.0, 90.0]], [1.0, 1.0])
    probe = SimpleNamespace(kind="probe")
    assert method.score(probe, upload, ctx).values.tolist() == [[1, 0], [0, 1]]


@pytest.mark.slow
def test_it_groups_clients_that_train_on_a_device(method: Any, play_toy: Play) -> None:
    with simulated_device():
        played = play_toy(composition(("my-method", method)), rounds=1)
    assert played.state.membership.home.shape == (6,)
