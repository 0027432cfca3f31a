"""Papers as TOML files, found like suites: attribute `dc_pfl` is the path of `dc-pfl.toml`."""

from __future__ import annotations

import re
from pathlib import Path


def __getattr__(name: str) -> Path:
    for path in Path(__file__).parent.glob("*.toml"):
        if re.sub(r"\W", "_", path.stem) == name:
            return path
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
