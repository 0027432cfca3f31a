"""Suites: one setting is one TOML file, found through the entry points `flbench.suites`.

The attribute `noisy_noniid` of this package is the path of `noisy-noniid.toml`: every other
character than a letter or digit becomes an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def toml_files(module: str, folder: Path) -> Callable[[str], Path]:
    """The `__getattr__` of a package: its attributes are the paths of TOML files in a folder."""

    def find(name: str) -> Path:
        for path in folder.glob("*.toml"):
            if re.sub(r"\W", "_", path.stem) == name:
                return path
        raise AttributeError(f"module '{module}' has no attribute '{name}'")

    return find


__getattr__ = toml_files(__name__, Path(__file__).parent)
