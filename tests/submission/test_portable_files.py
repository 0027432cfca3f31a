"""Files are run again with the instructions that computed them, whoever verifies them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mentions import mentions

from flbench.engine.machine.instructions import SAME_VENDOR, vendor
from flbench.engine.machine.portable import NAME, SETTINGS
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


THERE = " ".join([*vendor(), "AVX2"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "variables", "processor"),
    [
        pytest.param(["--portable"], {}, NAME, id="portable"),
        pytest.param(
            [],
            SAME_VENDOR,
            THERE,
            id="AVX2",
            marks=pytest.mark.skipif(
                torch.backends.cpu.get_cpu_capability() != "AVX512",
                reason="needs a processor with AVX-512",
            ),
        ),
    ],
)
def test_files_are_verified_with_what_computed_them(
    tmp_path: Path, options: list[str], variables: dict[str, str], processor: str
) -> None:
    """One by itself begins the command anew; of several each begins a process."""
    run = "run", "-p", "fedavg", "-s", "noisy-noniid", "--rounds", "1", "--seeds", "2"
    typed(tmp_path, *run, *options, "--out", "files", **variables)
    files = result_files([tmp_path / "files"])
    assert [read_result(file).environment["processor"] for file in files] == [processor] * 2

    alone = typed(tmp_path, "verify", str(files[0]))
    assert "environment: the same" in alone
    assert mentions(alone, "agrees", "last")
    several = typed(tmp_path, "verify", "files", "--workers", "1", "--log", "log.jsonl")
    assert mentions(several, "2 agree", "2 of them")
    log = (tmp_path / "log.jsonl").read_text("utf-8").splitlines()
    assert [processor in line for line in log] == [True, True]
