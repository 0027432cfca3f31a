"""Fixtures of all tests; what they are made of is in `toy.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import uneven
from toy import Play, Typed, player

from flbench.cli.main import main
from flbench.models import mlp


@pytest.fixture
def play_toy(tmp_path: Path) -> Play:
    """See `toy.player`."""
    return player(tmp_path)


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Type a command in an empty folder; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLBENCH_DATA", str(tmp_path / "empty"))

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flbench", *args])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0), *capsys.readouterr()

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --uneven`: the toy's logits depend on who shares the pass (`uneven.py`)."""
    parser.addoption(
        "--uneven", action="store_true", help="play the toy with support/uneven.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Replace the perceptron, in this process."""
    if config.getoption("--uneven"):
        mlp.build = uneven.build
