"""Suites: one setting is one TOML file, found through the entry points `flbench.suites`.

The attribute `noisy_noniid` of this package is the path of `noisy-noniid.toml`.
"""

from __future__ import annotations

from pathlib import Path


def __getattr__(name: str) -> Path:
    path = Path(__file__).with_name(f"{name.replace('_', '-')}.toml")
    if name.startswith("__") or not path.is_file():
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return path
