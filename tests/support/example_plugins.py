"""The example plugins, as installed from elsewhere."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from toy import install

FOLDER = Path(__file__).resolve().parents[2] / "plugins" / "examples"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
POINTS: dict[str, str] = PROJECT["entry-points"]["flbench.methods"]


def create(name: str, **settings: object) -> Any:
    """An example's method: create("qsgd", levels=2). Its folder is on the path."""
    module, kind = POINTS[name].split(":")
    return getattr(importlib.import_module(module), kind)(**settings)


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """The examples are found as long as the block runs; their metadata is in a folder."""
    lines = "".join(f"{name} = {value}\n" for name, value in POINTS.items())
    install(folder, "flbench-examples", f"[flbench.methods]\n{lines}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.syspath_prepend(folder)
        yield
