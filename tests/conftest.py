"""Fixtures of all tests; what they are made of is in `toy.py`."""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import own_process_of_tests as own_process_of_tests

# isort: split
import pytest
import uneven
from toy import Play, Typed, player

from flbench.cli.main import main
from flbench.models import mlp
from flbench.run import checkpoint
from flbench.submission import replay_folder

# isort: split
from lightning.fabric import fabric  # after flbench, which makes torchvision importable

fabric._load_external_callbacks = functools.cache(fabric._load_external_callbacks)
"""Fabric reads the metadata of all installed packages whenever it is made: once is enough here."""


def forgotten(descriptor: int) -> None:
    """Files of tests need not outlive a power cut; `tests/faults` simulates what syncing does."""


os.fsync = forgotten


@pytest.fixture
def play_toy(tmp_path: Path) -> Play:
    """See `toy.player`."""
    return player(tmp_path)


@pytest.fixture
def checkpoint_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write a checkpoint after every round, however short, so that they can be cut anywhere.

    Otherwise they write the first, and others as time passes.
    """
    monkeypatch.setattr(checkpoint, "pause", lambda writing: 0.0)


@pytest.fixture
def typed(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Typed:
    """Type a command in an empty folder; gives exit code, standard output and standard error.

    It believes that there is one CPU, so that it runs in this process unless it says --workers.
    """
    cached = tmp_path_factory.getbasetemp() / f"{tmp_path.name}-cache" / "verify"
    monkeypatch.setattr("joblib.cpu_count", lambda: 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLBENCH_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr(replay_folder, "cache", lambda: cached)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flbench", *args])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture(autouse=True)
def forget_modules_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """A module that a test wrote and imported is no other test's: names recur, orders differ."""
    known = set(sys.modules)
    yield
    written = tmp_path_factory.getbasetemp()
    for name in sys.modules.keys() - known:
        module = sys.modules[name]
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        if any(Path(place).is_relative_to(written) for place in places if place):
            del sys.modules[name]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of these tests."""
    parser.addoption("--uneven", action="store_true", help="plant the faults of support/uneven.py")
    parser.addoption(
        "--cpu-limit",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="CPU time that a test may take that is not marked slow; 0 = any (default: 1)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """`pytest --uneven`: last bits depend on who shares a pass, and on addresses (`uneven.py`)."""
    if config.getoption("--uneven"):
        mlp.build = uneven.build
        planted = ExitStack()
        planted.enter_context(uneven.planted_products())
        config.add_cleanup(planted.close)


def pytest_collection_finish() -> None:
    """Garbage collections need not look at what is imported and collected: it stays."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passes, is not marked slow, and takes more CPU time than `--cpu-limit`.

    CPU time and not seconds, so that a test does not fail for waiting. The limit grows with the
    time that this machine needs for a fixed loop just then. A test that imports libraries first is
    let off: the next one finds them imported.
    """
    before, modules = time.process_time(), len(sys.modules)
    outcome = yield
    spent, limit = time.process_time() - before, item.config.getoption("--cpu-limit")
    slow = item.get_closest_marker("slow") is not None
    if limit and not slow and spent > limit and len(sys.modules) - modules < IMPORTS:
        limit *= slowness()
        if spent > limit:
            line = f"it took {spent:.1f} s of CPU time, expected at most {limit:.1f} s:"
            pytest.fail(f"{line} make it smaller or mark it slow", pytrace=False)
    return outcome


IMPORTS = 20
"""So many modules that a test imports first excuse its time."""

FIXED = 0.05
"""CPU seconds of `slowness`'s loop on a quiet machine of 2 GHz."""


def slowness() -> float:
    """How many times longer than `FIXED` a fixed loop takes now; at least 1."""
    before, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.process_time() - before) / FIXED)
