"""Install packages as pip does, but unpack them in as many processes as there are cores.

python .ci/install.py [OPTION...] REQUIREMENT...

pip unpacks one wheel after the other: 50,000 files for flbench and its tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PIP = [sys.executable, "-I", "-m", "pip"]


def shares(wheels: list[Path], count: int) -> list[list[Path]]:
    """The wheels in groups of about the same size."""
    groups: list[list[Path]] = [[] for _ in range(count)]
    sizes = [0] * count
    for wheel in sorted(wheels, key=lambda wheel: -wheel.stat().st_size):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(wheel)
        sizes[smallest] += wheel.stat().st_size
    return [group for group in groups if group]


def main(words: list[str]) -> int:
    """Install what pip would; its exit code."""
    if "--no-deps" in words:
        return subprocess.run([*PIP, "install", *words], check=False).returncode
    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run([*PIP, "wheel", "-q", "--wheel-dir", folder, *words], check=False)
        if found.returncode:
            return found.returncode
        install = [*PIP, "install", "-q", "--no-index", "--no-deps"]
        groups = shares(list(Path(folder).glob("*.whl")), os.cpu_count() or 1)
        started = [subprocess.Popen([*install, *map(str, group)]) for group in groups]
        return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
