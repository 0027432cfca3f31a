"""The processes that a run started end with it, in order or not."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from flbench.engine import processes

ORDERLY = "print(flush=True); "
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {ORDERLY}"


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "by"), [(ORDERLY, "SIGTERM"), (STUBBORN, "SIGKILL")])
def test_a_process_that_does_not_end_is_killed(
    begin: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.5)
    words = [sys.executable, "-S", "-c", f"{begin}import time; time.sleep(600)"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    monkeypatch.setattr(processes, "CHILDREN", [child])
    processes.terminate_workers()
    child.stdout.close()
    assert child.returncode == -signal.Signals[by]
    assert processes.CHILDREN == []
