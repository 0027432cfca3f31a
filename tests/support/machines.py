"""Two machines, simulated: network namespaces with host names of their own, and a cable.

Linux and root are needed. The two see the same files, as machines with a shared folder do, and the
same processor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

FIRST, SECOND = "flbench-a", "flbench-b"
ADDRESSES = {FIRST: "10.77.0.1", SECOND: "10.77.0.2"}
CABLES = {FIRST: "fla0", SECOND: "flb0"}


def possible() -> bool:
    """Whether this machine lets us make network namespaces."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        return False
    try:
        with two_machines():
            return True
    except subprocess.CalledProcessError:
        return False


@dataclass(frozen=True)
class Machine:
    """One of two machines."""

    name: str

    @property
    def address(self) -> str:
        """Its address."""
        return ADDRESSES[self.name]

    def pids(self) -> list[int]:
        """Its processes."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        return [int(word) for word in done.stdout.split()]

    def kill(self) -> None:
        """Kill all its processes at once, as a machine that is switched off."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(
        self, words: Sequence[str], cwd: Path, log: IO[str], **environ: str
    ) -> subprocess.Popen[str]:
        """Start a command on it, in a session of its own."""
        shell = f"hostname {self.name}; exec " + '"$@"'
        command = ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", shell, "sh"]
        return subprocess.Popen(
            [*command, *words], cwd=cwd, stdout=log, stderr=log, text=True, start_new_session=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": CABLES[self.name], **environ},
        )  # fmt: skip


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines that reach each other and nothing else."""
    try:
        for name in (FIRST, SECOND):
            ip("netns", "add", name)
        one, other = CABLES.values()
        ip(
            "link", "add", one, "netns", FIRST,
            "type", "veth", "peer", "name", other, "netns", SECOND,
        )  # fmt: skip
        for name, cable in CABLES.items():
            ip("-n", name, "addr", "add", f"{ADDRESSES[name]}/24", "dev", cable)
            for device in (cable, "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield Machine(FIRST), Machine(SECOND)
    finally:
        for name in (FIRST, SECOND):
            Machine(name).kill()
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
