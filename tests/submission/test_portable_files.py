"""Files that were computed portably are run again portably, beside others, by whoever verifies."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flbench.engine.portable import NAME, SETTINGS
from flbench.results.files import read_result, result_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64")
        or torch.backends.cpu.get_cpu_capability() == "DEFAULT",
        reason="needs an x86-64 processor with AVX2",
    ),
]


def typed(folder: Path, *words: str) -> str:
    """What a command prints that is typed where no library is limited."""
    command = [sys.executable, "-m", "flbench", *words]
    environ = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_portable_files_are_verified_portably(tmp_path: Path) -> None:
    """One by itself begins the command anew; of several each begins a process."""
    run = "run", "-p", "fedavg", "-s", "noisy-noniid", "--rounds", "1", "--seeds", "2"
    typed(tmp_path, *run, "--portable", "--out", "files")
    files = result_files([tmp_path / "files"])
    assert [read_result(file).environment["processor"] for file in files] == [NAME, NAME]

    alone = typed(tmp_path, "verify", str(files[0]))
    assert "environment: the same" in alone
    assert "it agrees, to the last byte" in alone
    several = typed(tmp_path, "verify", "files", "--workers", "1", "--log", "log.jsonl")
    assert "2 agree, 2 of them to the last byte" in several
    log = (tmp_path / "log.jsonl").read_text("utf-8").splitlines()
    assert [NAME in line for line in log] == [True, True]
