"""The example plugins: short, and lawful as installed from elsewhere."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy import install

from flbench.testing import Check, parametrize_with_checks

FOLDER = Path(__file__).resolve().parents[2] / "plugins" / "examples"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
POINTS = PROJECT["entry-points"]["flbench.methods"]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The examples, installed."""
    folder = tmp_path_factory.mktemp("examples")
    lines = "".join(f"{name} = {value}\n" for name, value in POINTS.items())
    install(folder, "flbench-examples", f"[flbench.methods]\n{lines}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.syspath_prepend(folder)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
@parametrize_with_checks(*POINTS)
def test_every_example_conforms(check: Check) -> None:
    check()
