"""Files are run again with the instructions that computed them, whoever verifies them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flbench.engine.instructions import SAME_VENDOR, vendor
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

LIMITS = {*SETTINGS, *SAME_VENDOR}


def typed(folder: Path, *words: str, **variables: str) -> str:
    """What a command prints that is typed where these variables limit libraries, and no others."""
    command = [sys.executable, "-m", "flbench", *words]
    environ = {name: value for name, value in os.environ.items() if name not in LIMITS}
    environ |= variables
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


@pytest.mark.long
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="needs a processor with AVX-512"
)
def test_files_of_a_processor_with_avx2_are_verified_with_avx2(tmp_path: Path) -> None:
    """Unless somebody has limited a library: then it is left as it is."""
    run = "run", "-p", "fedavg", "-s", "noisy-noniid", "--rounds", "1", "--seeds", "2"
    typed(tmp_path, *run, "--out", "files", **SAME_VENDOR)
    files = result_files([tmp_path / "files"])
    there = " ".join([*vendor(), "AVX2"])
    assert [read_result(file).environment["processor"] for file in files] == [there, there]

    alone = typed(tmp_path, "verify", str(files[0]))
    assert "environment: the same" in alone
    assert "it agrees, to the last byte" in alone
    several = typed(tmp_path, "verify", "files", "--workers", "2", "--log", "log.jsonl")
    assert "2 agree, 2 of them to the last byte" in several
    log = (tmp_path / "log.jsonl").read_text("utf-8").splitlines()
    assert [there in line for line in log] == [True, True]
    chosen = typed(tmp_path, "verify", str(files[0]), ATEN_CPU_CAPABILITY="default")
    assert f"processor {there}, here {there.replace('AVX2', 'DEFAULT')}" in chosen
