"""Forked processes: what they find imported, which signals reach them, what they do not inherit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # starts processes

JOB = """
import json, os, signal, sys
def look(file):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    found = {
        "blocked": sorted(int(one) for one in blocked),
        "preloaded": sorted({"flbench.run.runner", "tomllib"} & set(sys.modules)),
        "environment": {key: os.environ.get(key) for key in ("PYTHONSAFEPATH", "MARK")},
        "main": hasattr(sys.modules["__main__"], "UNGUARDED"),
    }
    with open(file, "w") as opened:
        json.dump(found, opened)
"""
SCRIPT = """
import os, signal, sys, time
import job
from flbench.engine.processes.fork_server import fork, start_server

UNGUARDED = start_server(["tomllib"])
os.environ["MARK"] = "late"
process = fork(job.look, "found.json")
process.join()
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(), "here they are as before"
assert "PYTHONSAFEPATH" not in os.environ
assert process.exitcode == 0
"""


WITHOUT = "import multiprocessing; multiprocessing.get_all_start_methods = lambda: ['spawn']\n"
"""Takes the server away, as it is on a system that cannot pass open files to other processes."""


@pytest.fixture(scope="module", params=["", WITHOUT], ids=["server", "no server"])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What a process sees that a script without a guard forks, beside a file `sklearn.py`."""
    bin_folder, here = tmp_path_factory.mktemp("bin"), tmp_path_factory.mktemp("here")
    (bin_folder / "job.py").write_text(JOB)
    (bin_folder / "script.py").write_text(request.param + SCRIPT)
    (here / "sklearn.py").write_text("raise SystemExit('shadowed')")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    script = [sys.executable, str(bin_folder / "script.py")]
    done = subprocess.run(script, cwd=here, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    content: dict[str, Any] = json.loads((here / "found.json").read_text())
    return content


@pytest.mark.long
@pytest.mark.parametrize("found", [""], indirect=True)
def test_it_finds_imported_what_a_run_needs_and_what_was_asked_for(found: dict[str, Any]) -> None:
    assert found["preloaded"] == ["flbench.run.runner", "tomllib"]


def test_interruptions_are_blocked_from_the_beginning(found: dict[str, Any]) -> None:
    assert found["blocked"] == [2, 15]


def test_it_has_the_environment_of_the_moment_and_not_the_server_s(found: dict[str, Any]) -> None:
    assert found["environment"] == {"PYTHONSAFEPATH": None, "MARK": "late"}


def test_it_does_not_run_the_script_again(found: dict[str, Any]) -> None:
    assert not found["main"]
