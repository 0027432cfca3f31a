"""Suites: one setting is one TOML file, found through the entry points `flbench.suites`.

The attribute `noisy_noniid` of this package is the path of `noisy-noniid.toml`: every other
character than a letter or digit becomes an underscore.
"""

from __future__ import annotations

import re
from pathlib import Path


def __getattr__(name: str) -> Path:
    for path in Path(__file__).parent.glob("*.toml"):
        if re.sub(r"\W", "_", path.stem) == name:
            return path
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
