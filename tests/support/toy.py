"""What the tests share: a toy federation small enough to compute by hand.

N = 6 clients in 2 groups, a linear softmax on three features, 12 samples a client, and every
method played through the same `runner` the command line uses.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from flbench.core.client_module import LocalWork
from flbench.core.dataset import Dataset
from flbench.core.hookspecs import hookimpl
from flbench.core.state import Stage
from flbench.engine.options import EngineOptions
from flbench.errors import PluginError, Undefined
from flbench.federation.federation import Newcomers, Samples
from flbench.results.schema import Fingerprint, Method, Plugin, Tuning
from flbench.run import setup
from flbench.run.composition import MethodStack, compose
from flbench.run.rounds import run_rounds
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.suite import Suite
from flbench.testing import small_run
from flbench.testing.reproducibility import different_numbers
from flbench.testing.small_run import CLIENTS as CLIENTS
from flbench.testing.small_run import small_dataset, small_suite

torch.set_num_threads(1)

GROUPS = 2
WIDTH = 3 * 3 + 3 + 3 * 4 + 4  # the perceptron: 3 -> 3 -> 4


def toy_dataset(seed: int = 0, samples: int = 72) -> Dataset:
    """Four labels around four points in three dimensions."""
    return replace(small_dataset(seed, samples), name="toy")


def toy_suite(**changes: Any) -> Suite:
    """Two groups of three clients, two labels a group, everybody sampled half the time."""
    return small_suite(**{"name": "toy", "summary": "a toy", "dataset": "toy", **changes})


def composition(*plugins: tuple[str, object]) -> MethodStack:
    """A method made of plugin instances instead of installed names."""
    described = Method(
        name="+".join(name for name, _ in plugins),
        params={},
        plugins=[
            Plugin(
                name=name,
                distribution="test",
                version="0",
                uses_true_groups=bool(getattr(plugin, "uses_true_groups", False)),
                paper_leak=bool(getattr(plugin, "paper_leak", False)),
                pools_data=bool(getattr(plugin, "pools_data", False)),
            )
            for name, plugin in plugins
        ],
    )
    own = any(getattr(plugin, "row_per_client", False) for _, plugin in plugins)
    return MethodStack(plugins, described, row_per_client=own)


def watching(uploads: list[Any]) -> object:
    """A plugin that decides nothing and keeps every upload it sees aggregated."""

    @dataclass(frozen=True)
    class Watch:
        @hookimpl
        def aggregate(self, upload: Any) -> None:
            uploads.append(upload)

    return Watch()


class Played(small_run.SmallRun):
    """A finished toy run."""

    @property
    def marks(self) -> Fingerprint:
        return self.run.marks

    @property
    def personal(self) -> torch.Tensor:
        """The row that serves each client, shape (N, W)."""
        return self.state.models[self.state.membership.home]


def same_evaluations(one: Played, other: Played) -> None:
    """What is evaluated of two runs is equal to rounding: they need not share passes or memory."""
    assert different_numbers(one.run.history, other.run.history) == []


def plain_work(stage: Stage) -> LocalWork:
    """Training as no hook changes it."""
    return LocalWork()


Play = Callable[..., Played]

Typed = Callable[..., tuple[int, str, str]]
"""Types a command; gives exit code, standard output and standard error."""


def seeded(build: Callable[[], nn.Module]) -> Callable[..., nn.Module]:
    """Stands in for `build_network`: the given network with weights of its own, by index."""

    def network(suite: Any, shape: Any, classes: int, seed: int, index: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(index)
            return build()

    return network


def player(folder: Path) -> Play:
    """A function that plays a method (`"pfedlia"`, or a composition) on the toy federation.

    Keyword `settings` are `--set` values of the method, `net` replaces the network, `few` is what
    last batches are told of (`setup.FEW`), everything else changes the suite. Clients train one by
    one, so that what one of them computes has the same bits whoever else trains.
    """

    def played(
        method: str | MethodStack,
        *,
        settings: dict[str, object] | None = None,
        suite: Suite | None = None,
        dataset: Dataset | None = None,
        seed: int = 0,
        net: Callable[[], nn.Module] | None = None,
        executor: str = "sequential",
        engine: EngineOptions | None = None,
        sinks: tuple[tuple[str, object], ...] = (),
        few: int = 0,
        tuning: Tuning | None = None,
        **changes: Any,
    ) -> Played:
        if isinstance(method, str):
            method = compose(method, settings)
        said: list[str] = []
        job = RunSpec(
            suite=suite or toy_suite(**changes),
            method=method,
            seed=seed,
            data_root=folder,
            out=folder / "out",
            engine=engine or EngineOptions(executor=executor, accelerator="cpu"),
            sinks=sinks,
            say=said.append,
            tuning=tuning,
        )
        network = setup.build_network if net is None else seeded(net)
        with patch.object(setup, "build_network", network), patch.object(setup, "FEW", few):
            run, state = prepare(job, dataset or toy_dataset())
        return Played(run, run_rounds(run, state), job, said)

    return played


def bad(**hooks: Callable[..., Any]) -> MethodStack:
    """A method named `bad` whose hooks are the given functions."""
    body = {name: hookimpl(function) for name, function in hooks.items()}
    return composition(("bad", dataclass(frozen=True)(type("Bad", (), body))()))


def refused(play_toy: Play, method: str | MethodStack, **changes: Any) -> str:
    """The line a person reads where a plugin is refused."""
    with pytest.raises((PluginError, Undefined)) as caught:
        play_toy(method, **changes)
    return str(caught.value)


def install(folder: Path, name: str, points: str, **modules: str) -> None:
    """Put a distribution on a folder of sys.path, as pip would."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")


def python(code: str, *folders: Path) -> str:
    """What a fresh interpreter prints."""
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path.strip(os.pathsep)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def both(guests: Newcomers) -> Samples:
    """What newcomers own, in one pool: splits "train", "validation" and "test"."""
    seen, hidden = guests.visible, guests.held_out
    test = hidden.splits["test"].numbered(hidden.splits["test"].rows + len(seen.y))
    x, y = torch.cat([seen.x, hidden.x]), torch.cat([seen.y, hidden.y])
    return Samples(x, y, {**seen.splits, "test": test})
