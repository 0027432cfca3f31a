"""Other frameworks, each in an environment of its own with the torch of this one."""

from __future__ import annotations

import json
import subprocess
import venv
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

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
    """

    package: str
    relaxed: tuple[str, ...] = ()


PEERS = {"pfl": Peer("pfl==0.6.0"), "flower": Peer("flwr[simulation]==1.42.0", ("certifi",))}

NO_TELEMETRY = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}

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


def program(
    name: str, work: Workload, processes: int, net: Path, rounds: int, root: Path
) -> Program:
    """A framework on a workload; its environment is made if there is none.

    Args:
        net: file of the network.
        root: folder of the environments.
    """
    peer = PEERS[name]
    shown = f"{name} {peer.package.partition('==')[2]}"
    try:
        note = ensure_environment(peer, root / name)
    except subprocess.CalledProcessError as error:
        return Program(shown, (), note=f"cannot be installed: {_reason(error)}")
    python = root / name / "bin" / "python"
    driver = HERE / f"peer_{name}.py"
    command = [str(python), str(driver), work.text(), str(processes), str(net), str(rounds)]
    return Program(shown, command, NO_TELEMETRY, note)


def ensure_environment(peer: Peer, folder: Path) -> str:
    """Make an environment if there is none.

    Raises:
        CalledProcessError: pip failed.
    """
    marker = folder / READY
    wanted = {"package": peer.package, "torch": version("torch")}
    if marker.is_file():
        made = json.loads(marker.read_text(encoding="utf-8"))
        if {**made, "note": ""} == {**wanted, "note": ""}:
            return str(made["note"])
    venv.create(folder, clear=True, with_pip=True)
    torch, note = f"torch=={version('torch')}", ""
    try:
        _run(folder, "-m", "pip", "install", torch, peer.package)
    except subprocess.CalledProcessError as error:
        if not any(name in (error.stderr or "") for name in peer.relaxed):
            raise
        _run(folder, "-m", "pip", "install", "--no-deps", peer.package)
        needs = _run(folder, "-c", REQUIREMENTS, peer.package, ",".join(peer.relaxed)).split("\n")
        _run(folder, "-m", "pip", "install", torch, *filter(None, needs))
        note = f"with another {', '.join(peer.relaxed)} than it asks for: {_reason(error)}"
    marker.write_text(json.dumps({**wanted, "note": note}), encoding="utf-8")
    return note


def _run(folder: Path, *arguments: str) -> str:
    """Run an environment's Python; return its standard output."""
    command = [str(folder / "bin" / "python"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=single_thread_environment()
    )
    return done.stdout


def _reason(error: subprocess.CalledProcessError) -> str:
    """The last error of pip, shortened."""
    lines = [line for line in (error.stderr or "").splitlines() if line.startswith("ERROR")]
    return (lines[-1] if lines else str(error)).removeprefix("ERROR: ")[:120]
