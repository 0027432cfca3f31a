"""The example plugins, as installed from elsewhere."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from toy import install

FOLDER = Path(__file__).resolve().parents[2] / "plugins" / "examples"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
POINTS: dict[str, str] = PROJECT["entry-points"]["flbench.methods"]


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """The examples are found as long as the block runs; their metadata is in a folder."""
    lines = "".join(f"{name} = {value}\n" for name, value in POINTS.items())
    install(folder, "flbench-examples", f"[flbench.methods]\n{lines}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.syspath_prepend(folder)
        yield
