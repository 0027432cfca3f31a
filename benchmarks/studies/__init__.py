"""Studies: grids of runs as TOML files, found like suites; and measurements as functions.

The attribute `flis_beta` of this package is the path of `flis-beta.toml`.
"""

from __future__ import annotations

import re
from pathlib import Path


def __getattr__(name: str) -> Path:
    for path in Path(__file__).parent.glob("*.toml"):
        if re.sub(r"\W", "_", path.stem) == name:
            return path
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
