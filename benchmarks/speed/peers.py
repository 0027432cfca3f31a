"""Other frameworks, each in an environment of its own with the torch of this one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from flbench.results.files import write_atomically

from .interleaved import Program, single_thread_environment
from .workload import Workload

HERE = Path(__file__).parent
READY = "flbench-ready.json"


@dataclass(frozen=True)
class Peer:
    """A framework.

    Attributes:
        package: what pip installs.
        relaxed: requirements whose version may be ignored where the package index has none that
            fits; the table says so.
        pythons: commands of the Pythons that it can run in, the best first; empty = this one.
        ways: how it can train several clients at once; each is a program of its own.
    """

    package: str
    relaxed: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    ways: tuple[str, ...] = ("",)


PEERS = {
    "pfl": Peer("pfl==0.6.0"),
    "flower": Peer("flwr[simulation]==1.42.0", ("certifi",)),
    "blazefl": Peer(
        "blazefl[contrib,reproducibility]==3.0.0",
        pythons=("python3.14t", "python3.14"),
        ways=("threads", "processes"),
    ),
}

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TQDM_DISABLE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""No telemetry, no progress bars."""

REQUIREMENTS = """
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
whole, relaxed = Requirement(sys.argv[1]), sys.argv[2].split(",")
for text in requires(whole.name):
    one = Requirement(text)
    extras = [*whole.extras, ""]
    if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
        one.marker = None
        one.specifier = "" if one.name in relaxed else one.specifier
        print(one)
"""


ABOUT = """
import sys
from importlib.metadata import version
import torch, blazefl.contrib  # a module that needs the lock turns it on
locked = getattr(sys, "_is_gil_enabled", lambda: True)()
threads = "whose threads take turns (GIL)" if locked else "whose threads run at once"
print(f"Python {sys.version.split()[0]}, {threads}, torch {version('torch')}")
"""


def programs(
    name: str, work: Workload, processes: int, net: Path, rounds: int, root: Path
) -> list[Program]:
    """A framework on a workload, a program for each way; its environment is made if there is none.

    Args:
        net: file of the network.
        root: folder of the environments.
    """
    peer = PEERS[name]
    shown = f"{name} {peer.package.partition('==')[2]}"
    try:
        note = ensure_environment(peer, root / name)
    except subprocess.CalledProcessError as error:
        return [Program(shown, (), note=f"cannot be installed: {_reason(error)}")]
    python, driver = root / name / "bin" / "python", HERE / f"peer_{name}.py"
    command = [str(python), str(driver), work.text(), str(processes), str(net), str(rounds)]
    return [
        Program(f"{shown} {way}".strip(), [*command, way], ENVIRONMENT, note)
        for way in (peer.ways if processes > 1 else ("",))
    ]


def ensure_environment(peer: Peer, folder: Path) -> str:
    """Make an environment if there is none.

    Raises:
        CalledProcessError: pip failed.
    """
    marker = folder / READY
    python = interpreter(peer.pythons) if peer.pythons else sys.executable
    wanted = {"package": peer.package, "torch": version("torch"), "python": python}
    with suppress(OSError, ValueError):  # there is none, or it is damaged
        made = json.loads(marker.read_text(encoding="utf-8"))
        if {**made, "note": ""} == {**wanted, "note": ""}:
            return str(made["note"])
    _run(python, "-m", "venv", "--clear", str(folder))
    torch, note = f"torch=={version('torch')}", ""
    if peer.pythons:  # another build of the same version
        torch = torch.partition("+")[0]
    try:
        _run_in(folder, "-m", "pip", "install", torch, peer.package)
    except subprocess.CalledProcessError as error:
        if not any(name in (error.stderr or "") for name in peer.relaxed):
            raise
        _run_in(folder, "-m", "pip", "install", "--no-deps", peer.package)
        needs = _run_in(folder, "-c", REQUIREMENTS, peer.package, ",".join(peer.relaxed)).split(
            "\n"
        )
        _run_in(folder, "-m", "pip", "install", torch, *filter(None, needs))
        note = f"with another {', '.join(peer.relaxed)} than it asks for: {_reason(error)}"
    if peer.pythons:
        note = _run_in(folder, "-c", ABOUT).strip()
    write_atomically(marker, json.dumps({**wanted, "note": note}).encode())
    return note


def interpreter(commands: Sequence[str]) -> str:
    """The path of the first of the commands that starts.

    Raises:
        CalledProcessError: there is none.
    """
    for command in commands:
        path = shutil.which(command)  # a command of pyenv may be one that only says why not
        if path and not subprocess.run([path, "-c", ""], capture_output=True).returncode:
            return path
    wanted = f"ERROR: it needs {' or '.join(commands)} on the PATH"
    raise subprocess.CalledProcessError(1, commands[-1], stderr=wanted)


def _run(*command: str) -> str:
    """Run a command; return its standard output."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=single_thread_environment()
    )
    return done.stdout


def _run_in(folder: Path, *arguments: str) -> str:
    """Run an environment's Python; return its standard output."""
    return _run(str(folder / "bin" / "python"), *arguments)


def _reason(error: subprocess.CalledProcessError) -> str:
    """The last error of pip, shortened."""
    lines = [line for line in (error.stderr or "").splitlines() if line.startswith("ERROR")]
    return (lines[-1] if lines else str(error)).removeprefix("ERROR: ")[:120]
